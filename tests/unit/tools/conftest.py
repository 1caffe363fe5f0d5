"""Every tool is called as the model calls it: by name and JSON, through the executor."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from talaria.core.ids import CallId, SessionId
from talaria.core.messages import ToolCall, ToolResult
from talaria.tools.base import OpenGate, Scope
from talaria.tools.builtin.file_tools import file_tools
from talaria.tools.builtin.search_tools import search_tools
from talaria.tools.executor import Executor
from talaria.tools.file_content import ReadFiles
from talaria.tools.protected import Protected
from talaria.tools.registry import Toolbox

Use = Callable[..., Awaitable[ToolResult]]


@pytest.fixture
def scope(tmp_path: Path) -> Scope:
    cwd, spill = tmp_path / "work", tmp_path / "home/spill"
    cwd.mkdir()
    spill.mkdir(parents=True)
    return Scope(SessionId("session-1"), cwd, spill / "session-1")


@pytest.fixture
def cwd(scope: Scope) -> Path:
    return scope.cwd


@pytest.fixture
def use(scope: Scope) -> Use:
    """`await use("read_file", path="a.txt")`"""
    executor = Executor(
        Toolbox((*file_tools(ReadFiles()), *search_tools(Protected(Path("/home/ada"), Path("/home/ada/.talaria"))))),
        OpenGate(),
        scope,
    )

    async def call(name: str, /, *, call_id: str = "call_1", **arguments: object) -> ToolResult:
        return await executor.call(ToolCall(CallId(call_id), name, json.dumps(arguments)))

    return call
