from pathlib import Path

import pytest

from talaria import tool
from talaria.app.build import builtin_tools
from talaria.app.settings import Settings
from talaria.config.schema import Config
from talaria.core.clock import SystemClock
from talaria.core.errors import BadArguments, Denied
from talaria.core.ids import CallId
from talaria.core.messages import ToolCall
from talaria.store.memory import MemoryStore
from talaria.tools.base import OpenGate, Run, Scope, Tool
from talaria.tools.builtin.planning import clarify, todo
from talaria.tools.executor import Executor
from talaria.tools.function import SchemaTool, parse_schema
from talaria.tools.registry import ALL_ON, OTHERS, Toolbox, ToolSwitches, toolset_of


def named(name: str, toolset: str = "") -> Tool:
    """A tool of a plugin."""

    async def handle(arguments: object, run: Run) -> str:
        return f"{name} ran"

    return SchemaTool(parse_schema({"name": name}), handle, toolset=toolset)


def plain(name: str) -> Tool:
    def function() -> str:
        return f"{name} ran"

    return tool(function, name=name)


READ, WRITE, RUN = plain("read_file"), plain("write_file"), plain("terminal")


def switches(disabled: str = "", enabled: str = "") -> ToolSwitches:
    return ToolSwitches(disabled=tuple(disabled.split()), enabled=tuple(enabled.split()))


@pytest.mark.parametrize(
    ("one", "toolset"),
    [
        (READ, "files"),
        (plain("process"), "terminal"),
        (plain("browser_click"), "browser"),
        (plain("browser"), OTHERS),
        (todo, "planning"),
        (clarify, "planning"),
        (plain("add"), OTHERS),
        (named("wave", "hands"), "hands"),
        (named("read_file", "hands"), "hands"),
        (named("read_file"), "files"),
    ],
)
def test_tool_belongs_to_the_toolset_that_it_names_or_that_names_it(one: Tool, toolset: str) -> None:
    assert toolset_of(one) == toolset


def test_every_builtin_tool_has_a_toolset(tmp_path: Path) -> None:
    clock = SystemClock()
    tools = builtin_tools(MemoryStore(clock), Settings(tmp_path, Config(), {}), clock)
    assert [one.spec.name for one in tools if toolset_of(one) == OTHERS] == []


@pytest.mark.parametrize(
    ("disabled", "enabled", "are_on"),
    [
        ("", "", "read_file write_file terminal wave"),
        ("files", "", "terminal wave"),
        ("read_file", "", "write_file terminal wave"),
        ("files", "read_file", "read_file terminal wave"),
        ("files read_file", "read_file", "terminal wave"),
        ("read_file", "files", "write_file terminal wave"),
        ("all", "", ""),
        ("all", "files", "read_file write_file"),
        ("all write_file", "files hands", "read_file wave"),
        ("hands", "", "read_file write_file terminal"),
        ("", "files", "read_file write_file terminal wave"),
        ("nonsense file", "", "read_file write_file terminal wave"),
    ],
)
def test_closest_name_counts(disabled: str, enabled: str, are_on: str) -> None:
    chosen = switches(disabled, enabled)
    tools = [READ, WRITE, RUN, named("wave", "hands")]
    assert [one.spec.name for one in tools if chosen.admit(one)] == are_on.split()


@pytest.mark.parametrize(
    ("before", "turning", "on", "after"),
    [
        (("", ""), "files", False, ("files", "")),
        (("", ""), "read_file files", False, ("read_file", "")),
        (("files", ""), "read_file files", True, ("files", "read_file")),
        (("files", "read_file"), "read_file files", False, ("files", "")),
        (("files", "read_file"), "files", True, ("", "")),
        (("read_file web", ""), "files", False, ("web files", "")),
        (("read_file web", ""), "files", True, ("web", "")),
        (("", ""), "files", True, ("", "")),
        (("files", ""), "files", False, ("files", "")),
        (("all", ""), "files", True, ("all", "files")),
        (("all", "files"), "files", False, ("all", "")),
        (("all", "files"), "read_file files", False, ("all read_file", "files")),
    ],
)
def test_turning_says_no_more_than_is_needed(
    before: tuple[str, str], turning: str, on: bool, after: tuple[str, str]
) -> None:
    names = turning.split()
    within = ("read_file", "write_file") if len(names) == 1 else ()
    turned = switches(*before).switch(*names, on=on, within=within)
    assert turned == switches(*after)
    assert turned.is_on(*names) == on


def test_name_that_nothing_has_is_told_unless_it_may_come_yet() -> None:
    chosen = switches("files read_file hands mcp:far mcp_far_tool browser_click nosuch", "all gone memory others")
    assert list(chosen.find_unknown_names([named("wave", "hands")])) == [
        "tools.disabled in config.yaml names 'nosuch', but no tool or toolset is called that.",
        "tools.enabled in config.yaml names 'gone', but no tool or toolset is called that.",
    ]
    assert list(ALL_ON.find_unknown_names([])) == []


def test_tool_that_is_off_is_neither_shown_nor_found_nor_replaced() -> None:
    box = Toolbox([READ, WRITE], switches("files", "write_file")).with_tools([named("read_file", "hands"), RUN])
    assert [spec.name for spec in box.specs] == ["write_file", "terminal"]
    assert box.names == {"read_file", "write_file", "terminal"}
    with pytest.raises(Denied, match=r"turned off the tool read_file, so it did not run\. Continue without it\."):
        box.find("read_file")
    with pytest.raises(BadArguments, match=r"no tool called 'x'\. The tools are: write_file, terminal\."):
        box.find("x")
    assert box.without({"write_file"}).specs == (RUN.spec,)
    with pytest.raises(Denied):
        box.without({"write_file"}).find("read_file")


async def test_tool_that_joins_later_is_off_as_well(scope: Scope) -> None:
    box = Toolbox([READ], switches("hands")).with_tools([named("wave", "hands"), named("nod", "head")])
    executor = Executor(box, OpenGate(), scope)
    with pytest.raises(Denied, match="turned off the tool wave"):
        executor.prepare(ToolCall(CallId("c"), "wave", "{}"))
    assert (await executor.call(ToolCall(CallId("c"), "nod", "{}"))).text == "nod ran"
