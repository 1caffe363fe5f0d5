"""Every built-in tool is known to have a way out or none. Once private data was read, those that have one ask."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from talaria.app.builtin_tools import NAMES, BuiltinTools
from talaria.config.schema import Config
from talaria.core.clock import SystemClock
from talaria.core.errors import Denied
from talaria.core.ids import CallId, OwnerId, SessionId
from talaria.core.messages import ToolCall
from talaria.net.settings import WebSettings
from talaria.store.memory import MemoryStore
from talaria.tools.base import Scope, Tool
from talaria.tools.browser.browser import Browser
from talaria.tools.browser.browser_tools import NAMES as OF_BROWSER
from talaria.tools.browser.browser_tools import browser_tools
from talaria.tools.gate import PolicyGate
from talaria.tools.policy import ApprovalSettings, Policy
from talaria.tools.protected import Protected
from talaria.tools.sandbox.sandbox_settings import TerminalSettings

INSIDE: dict[str, dict[str, Any]] = {
    "read_file": {"path": "x"},
    "write_file": {"path": "x", "content": "x"},
    "patch": {"path": "x", "old": "x", "new": "y"},
    "search_files": {"pattern": "x"},
    "view_image": {"path": "x"},
    "recall": {"query": "x"},
    "session_search": {"query": "x"},
    "todo": {},
    "clarify": {"question": "x"},
    "browser_snapshot": {},
    "browser_screenshot": {},
    "browser_console": {},
}
"""Nobody outside learns what these are told, or that they were called."""
COMMANDS: dict[str, dict[str, Any]] = {
    "terminal": {"command": "x"},
    "process": {"action": "write", "id": "x", "text": "x"},
    "execute_code": {"code": "x"},
}
"""They have a way out only if the settings give commands a network."""
OUTSIDE: dict[str, dict[str, Any]] = {
    "web_fetch": {"url": "https://example.org/x"},
    "web_search": {"query": "x"},
    "browser_navigate": {"url": "https://example.org/x"},
    "browser_click": {"ref": "e1"},
    "browser_type": {"ref": "e1", "text": "x"},
    "browser_press": {"key": "x"},
    "browser_scroll": {"direction": "down"},
    "browser_back": {},
}


def builtin(folder: Path, network: tuple[str, ...]) -> Iterator[Tool]:
    config = msgspec.structs.replace(Config(), terminal=TerminalSettings(network=network))
    clock = SystemClock()
    hands = BuiltinTools(folder / "home", config, {}, MemoryStore(clock), clock, Protected(folder, folder / "home"))
    yield from (one for one in hands.tools if one.spec.name in NAMES)
    yield from browser_tools(Browser(WebSettings(), clock))


def test_each_built_in_tool_is_on_one_of_the_lists() -> None:
    """A new one must be put there: what does it tell, and to whom?"""
    listed = [*INSIDE, *COMMANDS, *OUTSIDE]
    assert sorted(listed) == sorted((*NAMES, *OF_BROWSER))


@pytest.mark.parametrize("network", [(), ("pypi.org",)], ids=["no network", "a network"])
async def test_once_private_data_was_read_every_way_out_asks_and_nothing_else_does(
    tmp_path: Path, network: tuple[str, ...]
) -> None:
    store, clock = MemoryStore(SystemClock()), SystemClock()
    policy = Policy(ApprovalSettings(), Protected(tmp_path, tmp_path / "home"))
    gate = PolicyGate(
        policy, store.approvals, store.grants, session=SessionId("s"), owner=OwnerId("o"), clock=clock, timeout_s=9
    )
    project = tmp_path / "project"
    scope = Scope(SessionId("s"), project, tmp_path / "home/spill/s", turn="t")
    private = msgspec.structs.replace(scope, has_private_data=True)

    async def is_asking(tool: Tool, scope: Scope) -> bool:
        arguments = {**INSIDE, **COMMANDS, **OUTSIDE}[tool.spec.name]
        call = ToolCall(CallId("c"), tool.spec.name, msgspec.json.encode(arguments).decode())
        try:
            await gate.admit(call, tool.prepare(call.arguments, scope), scope)
        except Denied:
            return True
        return False

    asking: dict[str, bool] = {}
    for tool in builtin(tmp_path, network):
        assert not await is_asking(tool, scope), tool.spec.name
        asking[tool.spec.name] = await is_asking(tool, private)
    assert {name for name, asks in asking.items() if asks} == {*OUTSIDE, *(COMMANDS if network else ())}
