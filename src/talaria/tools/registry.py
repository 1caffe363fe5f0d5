"""The tools of a session, by name."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from talaria.model.errors import BadArguments, BadConfig
from talaria.model.tools import ToolSpec
from talaria.tools.base import Tool


class Toolbox:
    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.spec.name in self._tools:
                raise BadConfig(f"Two tools are called {tool.spec.name!r}; rename one of them.")
            self._tools[tool.spec.name] = tool

    def joined(self, tools: Iterable[Tool]) -> "Toolbox":
        """With these, too; one whose name is taken, also by one of these, is left out."""
        known = dict(self._tools)
        for tool in tools:
            known.setdefault(tool.spec.name, tool)
        return Toolbox(known.values())

    def without(self, names: AbstractSet[str]) -> "Toolbox":
        return Toolbox(tool for name, tool in self._tools.items() if name not in names)

    @property
    def names(self) -> AbstractSet[str]:
        return self._tools.keys()

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self._tools.values())

    def find(self, name: str) -> Tool:
        try:
            return self._tools[name]
        except KeyError:
            known = ", ".join(self._tools) or "none"
            raise BadArguments(f"There is no tool called {name!r}. The tools are: {known}.") from None
