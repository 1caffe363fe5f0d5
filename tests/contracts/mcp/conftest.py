"""MCP servers as they are published, and one that misbehaves; their tools called as the model calls them."""

import asyncio
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from tests.own_home import RUNNERS_HOME

from talaria.core.clock import Clock
from talaria.core.ids import CallId, SessionId
from talaria.core.messages import ToolCall, ToolResult
from talaria.testing.manual_clock import ManualClock
from talaria.testing.patience import PATIENCE_S
from talaria.tools.base import OpenGate, Scope, Tool
from talaria.tools.executor import Executor
from talaria.tools.mcp.sandboxing import ServerSandboxes
from talaria.tools.mcp.server_entries import ServerEntry
from talaria.tools.mcp.servers import Servers, open_servers
from talaria.tools.registry import Toolbox
from talaria.tools.sandbox.sandbox_settings import Backend, TerminalSettings

EVERYTHING = "@modelcontextprotocol/server-everything"
VERSION = "2026.8.31"
ODD = Path(__file__).with_name("odd_server.py")

Open = Callable[..., AbstractAsyncContextManager[Servers]]
Use = Callable[..., Awaitable[ToolResult]]
Odd = Callable[..., ServerEntry]


@pytest.fixture(scope="session")
def everything() -> Path:
    """The reference server, from npm, once per .venv."""
    folder = Path(sys.prefix) / "mcp-everything"
    script = folder / "node_modules" / EVERYTHING / "dist" / "index.js"
    npm = shutil.which("npm")
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not script.exists():
            if npm is None:
                pytest.skip(f"npm is not there: {EVERYTHING} cannot be installed")
            wanted = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", f"{EVERYTHING}@{VERSION}"]
            settings = {"NPM_CONFIG_USERCONFIG": str(RUNNERS_HOME / ".npmrc")}
            subprocess.run(wanted, env={**os.environ, **settings}, check=True, capture_output=True, timeout=300)
    return script


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the odd server keeps its notes."""
    made = tmp_path / "odd"
    made.mkdir()
    return made


@pytest.fixture
def odd(folder: Path) -> Odd:
    """`odd("silent", timeout=5)`"""

    def entry(behaviour: str, **more: Any) -> ServerEntry:
        arguments = ("-I", "-S", str(ODD), behaviour, str(folder))
        return ServerEntry(command=sys.executable, args=arguments, **more)

    return entry


@pytest.fixture
def opened(home: Path, clock: ManualClock) -> Open:
    """`async with opened(name=entry) as servers`; nothing here takes longer than its limit.

    Without a `backend` they run outside of the sandbox.
    """

    @asynccontextmanager
    async def open_them(
        environment: Mapping[str, str] = os.environ,
        clock: Clock = clock,
        backend: Backend | None = None,
        **entries: ServerEntry,
    ) -> AsyncGenerator[Servers]:
        outside = () if backend else entries
        settings = TerminalSettings(backend=backend or "auto")
        sandboxes = ServerSandboxes(settings, home, clock, configured=entries, earlier=outside)
        async with asyncio.timeout(PATIENCE_S), open_servers(entries, home, clock, environment, sandboxes) as servers:
            yield servers

    return open_them


@pytest.fixture
def use(tmp_path: Path) -> Use:
    """`await use(servers.tools(), "mcp_odd_work", a=1)`"""
    scope = Scope(SessionId("s"), tmp_path, tmp_path / "spill")

    async def call(tools: list[Tool], name: str, /, **arguments: object) -> ToolResult:
        executor = Executor(Toolbox(tools), OpenGate(), scope)
        return await executor.call(ToolCall(CallId("c"), name, json.dumps(arguments)))

    return call


def names(servers: Servers) -> list[str]:
    return [tool.spec.name for tool in servers.tools()]


def received(folder: Path) -> list[dict[str, Any]]:
    file = folder / "received"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def closing_connections(app: Any) -> Any:
    """The application, with a connection for each request."""

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        async def say(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        await app(scope, receive, say)

    return wrapped


class Serving:
    """An application on loopback, in a thread of its own."""

    def __init__(self, app: Any, port: int) -> None:
        config = uvicorn.Config(app, log_level="critical", ws="none", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._listening = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listening.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._server.serve([self._listening]))

    def start(self) -> None:
        self._thread.start()

    def shut(self) -> None:
        """Who is in stays in; nobody else is let in."""
        closed = threading.Event()

        def close() -> None:
            for server in self._server.servers:
                server.close()
            closed.set()

        self._loop.call_soon_threadsafe(close)
        assert closed.wait(10)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._listening.close()


@contextmanager
def serving(app: Any, port: int = 0) -> Generator[Serving]:
    served = Serving(app, port)
    served.start()
    try:
        yield served
    finally:
        served.stop()
