"""What plugins for Hermes expect around them."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from talaria.compat.hermes import finder
from talaria.plugins.discovery import Found


class Surroundings:
    """What plugins for Hermes expect around them: its names, its home, and of `.env` what they declare to need."""

    def __init__(self, home: Path, environment: Mapping[str, str], found: Sequence[Found]) -> None:
        self._home = home
        self._environment = environment
        self._found = found
        self._added: list[str] = []
        self._is_prepared = False

    def prepare(self) -> None:
        self._is_prepared = True
        finder.install()
        self._add("HERMES_HOME", str(self._home))
        for one in self._found:
            for need in (*one.manifest.requires_env, *one.manifest.optional_env):
                self._add(need.name, self._environment.get(need.name, ""))

    def _add(self, name: str, value: str) -> None:
        if value and name not in os.environ:
            os.environ[name] = value
            self._added.append(name)

    def restore(self) -> None:
        for name in self._added:
            os.environ.pop(name, None)
        if self._is_prepared:
            finder.remove()
