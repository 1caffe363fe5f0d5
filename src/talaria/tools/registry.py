"""The tools of a session, by name. Tools that are turned off keep their names, but are neither shown nor run.

Each tool belongs to a toolset; a person turns tools and toolsets on and off by name. Pure.
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
"""Begins the names of tools of MCP servers and their toolsets: `mcp_<server>_<tool>` in `mcp:<server>`."""
BUILTIN_TOOLSETS: Mapping[str, tuple[str, ...]] = {
    "files": ("read_file", "write_file", "patch", "search_files", "view_image"),
    "terminal": ("terminal", "process"),
    "code": ("execute_code",),
    "web": ("web_fetch", "web_search"),
    "browser": ("browser_*",),
    "recall": ("recall", "session_search"),
    "planning": ("todo", "clarify"),
    "skills": ("skill_view",),
    "memory": (),  # tools of the memory provider
    "context": (),  # tools of the context engine
}
"""The names of the tools in each; `*` stands for anything."""


def toolset_of(tool: Tool) -> str:
    """The toolset that the tool declares; otherwise the one that its name belongs to."""
    own: str = getattr(tool, "toolset", "")
    return own or builtin_toolset(tool.spec.name) or OTHERS


def builtin_toolset(name: str) -> str:
    """The toolset of a built-in tool; empty: no built-in tool has this name."""
    return next(
        (toolset for toolset, names in BUILTIN_TOOLSETS.items() if any(fnmatchcase(name, one) for one in names)), ""
    )


class ToolSwitches(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is turned on and off: tools, toolsets, or `all`. The most specific name counts; what is not named is on."""

    disabled: tuple[str, ...] = ()
    enabled: tuple[str, ...] = ()
    """Exceptions from `disabled`: a tool of a disabled toolset, or a toolset if `all` is disabled."""

    def admit(self, tool: Tool) -> bool:
        return not self.disabled or self.is_on(tool.spec.name, toolset_of(tool))

    def is_on(self, *names: str) -> bool:
        """`names`: a tool and its toolset, or a toolset."""
        for name in (*names, ALL):
            if name in self.disabled:
                return False
            if name in self.enabled:
                return True
        return True

    def switch(self, *names: str, on: bool, within: Collection[str] = ()) -> "ToolSwitches":
        """Turn a tool (named with its toolset) or a toolset on or off. Entries for those `within` it are dropped."""
        dropped = {names[0], *within}
        rest = ToolSwitches(
            disabled=tuple(name for name in self.disabled if name not in dropped),
            enabled=tuple(name for name in self.enabled if name not in dropped),
        )
        if rest.is_on(*names) == on:
            return rest
        if on:
            return msgspec.structs.replace(rest, enabled=(*rest.enabled, names[0]))
        return msgspec.structs.replace(rest, disabled=(*rest.disabled, names[0]))

    def find_unknown_names(self, tools: Iterable[Tool]) -> Iterator[str]:
        """Sentences about names that no tool or toolset has. Those of MCP servers may still appear."""
        known = {ALL, OTHERS, *BUILTIN_TOOLSETS}
        for tool in tools:
            known |= {tool.spec.name, toolset_of(tool)}
        for setting, names in (("disabled", self.disabled), ("enabled", self.enabled)):
            for name in names:
                if name not in known and not name.startswith(MCP_PREFIX) and not builtin_toolset(name):
                    yield f"tools.{setting} in config.yaml names {name!r}, but no tool or toolset is called that."


ALL_ON = ToolSwitches()


class Toolbox:
    def __init__(self, tools: Iterable[Tool] = (), switches: ToolSwitches = ALL_ON) -> None:
        self._switches = switches
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.spec.name in self._tools:
                raise BadConfig(f"Two tools are called {tool.spec.name!r}; rename one of them.")
            self._tools[tool.spec.name] = tool

    def with_tools(self, tools: Iterable[Tool]) -> "Toolbox":
        """Adds tools; one whose name is already taken is left out."""
        known = dict(self._tools)
        for tool in tools:
            known.setdefault(tool.spec.name, tool)
        return Toolbox(known.values(), self._switches)

    def without(self, names: AbstractSet[str]) -> "Toolbox":
        return Toolbox((tool for name, tool in self._tools.items() if name not in names), self._switches)

    @property
    def names(self) -> AbstractSet[str]:
        """Including tools that are turned off: their names stay taken."""
        return self._tools.keys()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Those that are turned on."""
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
