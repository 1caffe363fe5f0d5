"""The tools of a session, by name. Those that are turned off keep their names, but are neither shown nor run."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from talaria.core.errors import BadArguments, BadConfig, Denied
from talaria.core.tool_spec import ToolSpec
from talaria.tools.base import Tool
from talaria.tools.toolsets import EVERYTHING, Switches


class Toolbox:
    def __init__(self, tools: Iterable[Tool] = (), switches: Switches = EVERYTHING) -> None:
        self._switches = switches
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
            raise Denied(f"The person has turned the tool {name} off, so it did not run. Go on without it.")
        return tool
