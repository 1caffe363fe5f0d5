"""What plugins do wrong while they run: each kind of fault once, and not without end."""

from collections.abc import Iterator

from talaria.plugin_calls import PluginError

MAX_PROBLEMS = 200


class Problems:
    def __init__(self) -> None:
        self._known: dict[tuple[str, str], str] = {}
        self._untold: list[str] = []

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Of which plugin, and what."""
        return ((plugin, problem) for (plugin, _), problem in self._known.items())

    def add(self, plugin: str, what: str, fault: PluginError) -> None:
        """`what` of it did that. Of faults that differ only in what they say the first one counts."""
        kind = (plugin, f"{what} {str(fault).partition(':')[0]}")
        if kind not in self._known and len(self._known) < MAX_PROBLEMS:
            self._known[kind] = f"{what} {fault}"
            self._untold.append(f"Plugin {plugin}: {what} {fault}.")

    def untold(self) -> list[str]:
        """For the person; each is given once."""
        told, self._untold = self._untold, []
        return told
