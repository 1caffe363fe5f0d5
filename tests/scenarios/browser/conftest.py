"""A real headless Chromium, one for all of these tests, and pages on loopback. To it `127.0.0.2` stands for the public
internet; all other addresses of this machine are what it must never reach.
"""

import asyncio
import inspect
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from talaria.app import builtin_tools
from talaria.core.clock import SystemClock
from talaria.core.errors import ToolFailed
from talaria.core.ids import CallId, SessionId
from talaria.net.web_settings import WebSettings
from talaria.testing.manual_clock import ManualClock
from talaria.testing.patience import PATIENCE_S
from talaria.tools.base import RichResult, Run, Scope, Tool
from talaria.tools.browser import browser_process
from talaria.tools.browser.browser import Browser
from talaria.tools.browser.browser_tools import browser_tools

PUBLIC = "127.0.0.2"
PRIVATE = "127.0.0.3"
IMPATIENT_S = 1.5


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One browser: one worker, one event loop."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("browser"))
            if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
                item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@dataclass
class Site:
    """Pages by their path; what is sent to them is kept."""

    port: int = 0
    pages: dict[str, str | web.StreamResponse] = field(default_factory=dict[str, "str | web.StreamResponse"])
    heard: list[tuple[str, Mapping[str, str]]] = field(default_factory=list[tuple[str, Mapping[str, str]]])
    handlers: dict[str, Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]] = field(
        default_factory=dict[str, Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]]
    )

    def url(self, path: str = "/", host: str = PUBLIC) -> str:
        return f"http://{host}:{self.port}{path}"

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        sent = {**request.query, **{name: str(value) for name, value in (await request.post()).items()}}
        self.heard.append((request.path, sent))
        if request.path in self.handlers:
            return await self.handlers[request.path](request)
        page = self.pages.get(request.path)
        if page is None:
            return web.Response(status=404, text="nothing here")
        return web.Response(text=page, content_type="text/html") if isinstance(page, str) else page


@dataclass
class Canary:
    """What must never be reached; it hears everything that comes to its address, by TCP and by UDP."""

    port: int = 0
    heard: int = 0

    async def arrive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard += 1
        writer.write(b"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nContent-Length: 6\r\n\r\nsecret")
        writer.close()


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, canary: Canary) -> None:
        self._canary = canary

    def datagram_received(self, data: bytes, addr: object) -> None:
        self._canary.heard += 1


@dataclass
class Names:
    """A name server: each question takes the next answer of that name, and its last one for ever."""

    answers: dict[str, list[Sequence[str]]] = field(default_factory=dict[str, list[Sequence[str]]])
    asked: list[str] = field(default_factory=list[str])

    def say(self, host: str, *answers: Sequence[str]) -> None:
        self.answers[host] = list(answers)

    async def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        waiting = self.answers.get(host, [()])
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]


class Visitor:
    """A session: calls the tools as the model does."""

    def __init__(self, browser: Browser, session: SessionId, folder: Path) -> None:
        self.browser = browser
        self.session = session
        self.tools: dict[str, Tool] = {tool.spec.name: tool for tool in browser_tools(browser)}
        self.scope = Scope(session, folder, folder / "spill" / session)

    async def call(self, name: str, /, **arguments: object) -> str:
        result = await self.shown(name, **arguments)
        assert isinstance(result, str)
        return result

    async def shown(self, name: str, /, **arguments: object) -> str | RichResult:
        invocation = self.tools[f"browser_{name}"].prepare(json.dumps(arguments), self.scope)
        async with asyncio.timeout(PATIENCE_S):
            return await invocation.run(Run(CallId("c"), self.scope))

    async def open(self, url: str) -> str:
        return await self.call("navigate", url=url)

    async def seen(self, words: str, said: str = "") -> str:
        """Looks at the page until it, or what was said before, holds these words; all that was said."""
        async with asyncio.timeout(PATIENCE_S):
            while words not in said:
                with suppress(ToolFailed):
                    said += "\n" + await self.call("snapshot")
        return said


async def works(visitor: Visitor, site: Site) -> None:
    """Again; the impatient one may need a second try on a busy machine."""
    site.pages["/works"] = "<p>it works</p>"
    for _ in range(5):
        with suppress(ToolFailed):
            assert "it works" in await visitor.open(site.url("/works"))
            return
    pytest.fail("it does not work again")


def ref(snapshot: str, words: str) -> str:
    """Of the first element whose line holds these words."""
    line = next(line for line in snapshot.splitlines() if words in line and "[ref=" in line)
    return line.partition("[ref=")[2].partition("]")[0]


def below(ancestor: int) -> list[int]:
    """All processes that it has started, and those that they have."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(folder.name))
    found: list[int] = []
    pending = [ancestor]
    while pending:
        more = children.get(pending.pop(), [])
        found += more
        pending += more
    return found


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def processes(word: str) -> list[int]:
    """Those that we have started, and that hold this word in their command line."""
    return [pid for pid in below(os.getpid()) if is_alive(pid) and word in command(pid)]


def command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


@pytest.fixture(scope="session")
def needs_chromium() -> None:
    if "browser_navigate" not in builtin_tools.names():
        pytest.skip("needs Chromium and the playwright package")


@pytest.fixture(scope="session")
def names() -> Names:
    return Names({"pages.example": [[PUBLIC]]})


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(needs_chromium: None, names: Names) -> AsyncIterator[Browser]:
    browser = Browser(WebSettings(allow_private=(PUBLIC,)), SystemClock(), lookup=names)
    async with browser.visiting(SessionId("keeps it open"), opens=True):
        pass
    yield browser
    await browser.aclose()


@pytest_asyncio.fixture(loop_scope="session")
async def visitor(browser: Browser, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Visitor]:
    session = SessionId(request.node.name)
    yield Visitor(browser, session, tmp_path)
    await browser.close(session)


@pytest.fixture(scope="session")
def clock() -> ManualClock:
    return ManualClock(auto=True)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def bare_browser(needs_chromium: None, names: Names, clock: ManualClock) -> AsyncIterator[Browser]:
    """Another one: without bubblewrap, impatient, and with a clock that is turned by hand."""
    browser = Browser(WebSettings(allow_private=(PUBLIC,), timeout_s=IMPATIENT_S), clock, lookup=names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(browser_process, "BWRAP", "/nonexistent/bwrap")
        async with browser.visiting(SessionId("keeps it open"), opens=True):
            pass
    yield browser
    await browser.aclose()


@pytest_asyncio.fixture(loop_scope="session")
async def impatient(bare_browser: Browser, tmp_path: Path, request: pytest.FixtureRequest) -> Visitor:
    return Visitor(bare_browser, SessionId(request.node.name), tmp_path)


@asynccontextmanager
async def serving(
    address: str, answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
) -> AsyncGenerator[int]:
    """The port."""
    runner = web.ServerRunner(web.Server(answer), shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, address, 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@pytest_asyncio.fixture(loop_scope="session")
async def site() -> AsyncIterator[Site]:
    site = Site()
    async with serving(PUBLIC, site.answer) as port:
        site.port = port
        yield site


async def _listening(canary: Canary) -> tuple[asyncio.Server, asyncio.DatagramTransport]:
    """On one port by TCP and by UDP: somebody may have taken the latter, then on another."""
    loop = asyncio.get_running_loop()
    while True:
        server = await asyncio.start_server(canary.arrive, PRIVATE)
        canary.port = server.sockets[0].getsockname()[1]
        try:
            transport, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(canary), (PRIVATE, canary.port))
        except OSError:
            server.close()
            await server.wait_closed()
        else:
            return server, transport


@pytest_asyncio.fixture(loop_scope="session")
async def canary() -> AsyncIterator[Canary]:
    canary = Canary()
    server, transport = await _listening(canary)
    yield canary
    transport.close()
    server.close()
