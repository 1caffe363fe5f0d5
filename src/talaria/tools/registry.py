"""The tools of a session, by name. Those that are turned off keep their names, but are neither shown nor run.

Every tool belongs to a toolset; a person turns tools and toolsets off and on by their names. Pure.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from fnmatch import fnmatchcase

import msgspec

from talaria.core.errors import BadArguments, BadConfig, Denied
from talaria.core.messages import ToolSpec
from talaria.tools.base import Tool

ALL = "all"
OTHERS = "others"
MCP_PREFIX = "mcp"
"""How tools of MCP servers and their toolsets begin: `mcp_<server>_<tool>` in `mcp:<server>`."""
BUILTIN_TOOLSETS: Mapping[str, tuple[str, ...]] = {
    "files": ("read_file", "write_file", "patch", "search_files", "view_image"),
    "terminal": ("terminal", "process"),
    "code": ("execute_code",),
    "web": ("web_fetch", "web_search"),
    "browser": ("browser_*",),
    "recall": ("recall", "session_search"),
    "planning": ("todo", "clarify"),
    "skills": ("skill_view",),
    "memory": (),  # those of the memory provider
    "context": (),  # those of the context engine
}
"""By the names of their tools; `*` stands for anything."""


def toolset_of(tool: Tool) -> str:
    """What it says itself, if it does; else by its name."""
    own: str = getattr(tool, "toolset", "")
    return own or builtin_toolset(tool.spec.name) or OTHERS


def builtin_toolset(name: str) -> str:
    """Of the tool that is called so; empty: none of ours is."""
    return next(
        (toolset for toolset, names in BUILTIN_TOOLSETS.items() if any(fnmatchcase(name, one) for one in names)), ""
    )


class ToolSwitches(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is turned off and on: tools, toolsets, or `all`. The closest name counts, and what is not named is on."""

    disabled: tuple[str, ...] = ()
    enabled: tuple[str, ...] = ()
    """Although more is disabled: a tool of a toolset, or a toolset of all."""

    def admit(self, tool: Tool) -> bool:
        return not self.disabled or self.is_on(tool.spec.name, toolset_of(tool))

    def is_on(self, *names: str) -> bool:
        """Of a tool and its toolset, or of a toolset."""
        for name in (*names, ALL):
            if name in self.disabled:
                return False
            if name in self.enabled:
                return True
        return True

    def switch(self, *names: str, on: bool, within: Collection[str] = ()) -> "ToolSwitches":
        """With a tool (and its toolset), or a toolset, off or on. What was said of those `within` it is gone."""
        gone = {names[0], *within}
        rest = ToolSwitches(disabled=_without(gone, self.disabled), enabled=_without(gone, self.enabled))
        if rest.is_on(*names) == on:
            return rest
        if on:
            return msgspec.structs.replace(rest, enabled=(*rest.enabled, names[0]))
        return msgspec.structs.replace(rest, disabled=(*rest.disabled, names[0]))

    def find_unknown_names(self, tools: Iterable[Tool]) -> Iterator[str]:
        """Sentences on names that nothing has. Those of MCP servers may come yet."""
        known = {ALL, OTHERS, *BUILTIN_TOOLSETS}
        for tool in tools:
            known |= {tool.spec.name, toolset_of(tool)}
        for setting, names in (("disabled", self.disabled), ("enabled", self.enabled)):
            for name in names:
                if name not in known and not name.startswith(MCP_PREFIX) and not builtin_toolset(name):
                    yield f"tools.{setting} in config.yaml names {name!r}, but no tool or toolset is called that."


ALL_ON = ToolSwitches()


def _without(gone: Collection[str], names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in gone)


class Toolbox:
    def __init__(self, tools: Iterable[Tool] = (), switches: ToolSwitches = ALL_ON) -> None:
        self._switches = switches
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.spec.name in self._tools:
                raise BadConfig(f"Two tools are called {tool.spec.name!r}; rename one of them.")
            self._tools[tool.spec.name] = tool

    def with_tools(self, tools: Iterable[Tool]) -> "Toolbox":
        """With these, too; one whose name is taken, also by one of these, is left out."""
        known = dict(self._tools)
        for tool in tools:
            known.setdefault(tool.spec.name, tool)
        return Toolbox(known.values(), self._switches)

    def without(self, names: AbstractSet[str]) -> "Toolbox":
        return Toolbox((tool for name, tool in self._tools.items() if name not in names), self._switches)

    @property
    def names(self) -> AbstractSet[str]:
        """Also of those that are turned off: nobody else may have them."""
        return self._tools.keys()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """That may be used."""
        return tuple(tool for tool in self._tools.values() if self._switches.admit(tool))

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self.tools)

    def find(self, name: str) -> Tool:
        """Raises `ModelCorrectable`."""
        tool = self._tools.get(name)
        if tool is None:
            known = ", ".join(spec.name for spec in self.specs) or "none"
            raise BadArguments(f"There is no tool called {name!r}. The tools are: {known}.")
        if not self._switches.admit(tool):
            raise Denied(f"The person has turned off the tool {name}, so it did not run. Continue without it.")
        return tool
