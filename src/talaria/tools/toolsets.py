"""Every tool belongs to a toolset; a person turns tools and toolsets off and on by their names. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

import msgspec

from talaria.tools.base import Tool

ALL = "all"
OTHERS = "others"
OF_SERVERS = "mcp"
"""How tools of MCP servers and their toolsets begin: `mcp_<server>_<tool>` in `mcp:<server>`."""
BUILTIN: Mapping[str, tuple[str, ...]] = {
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
    return next((toolset for toolset, names in BUILTIN.items() if any(fnmatchcase(name, one) for one in names)), "")


class Switches(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
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

    def turned(self, *names: str, on: bool, within: Collection[str] = ()) -> "Switches":
        """With a tool (and its toolset), or a toolset, off or on. What was said of those `within` it is gone."""
        gone = {names[0], *within}
        rest = Switches(disabled=_without(gone, self.disabled), enabled=_without(gone, self.enabled))
        if rest.is_on(*names) == on:
            return rest
        if on:
            return msgspec.structs.replace(rest, enabled=(*rest.enabled, names[0]))
        return msgspec.structs.replace(rest, disabled=(*rest.disabled, names[0]))

    def strangers(self, tools: Iterable[Tool]) -> Iterator[str]:
        """Sentences on names that nothing has. Those of MCP servers may come yet."""
        known = {ALL, OTHERS, *BUILTIN}
        for tool in tools:
            known |= {tool.spec.name, toolset_of(tool)}
        for setting, names in (("disabled", self.disabled), ("enabled", self.enabled)):
            for name in names:
                if name not in known and not name.startswith(OF_SERVERS) and not builtin_toolset(name):
                    yield f"tools.{setting} in config.yaml names {name!r}, but no tool or toolset is called that."


EVERYTHING = Switches()


def _without(gone: Collection[str], names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in gone)
