"""What plugins for Hermes expect around them: its names, its home, and what `.env` says."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from talaria.compat.hermes import finder
from talaria.plugins.discovery import FoundPlugin
from talaria.providers.catalog import catalog


class PluginEnvironment:
    """The keys of model providers stay with us, unless a plugin declares that it needs one. Commands of the model are
    given none of this."""

    def __init__(self, home: Path, environment: Mapping[str, str], theirs: Mapping[str, str]) -> None:
        """`home` is that of plugins, `theirs` what they keep in the .env there."""
        self._home = home
        self._environment = environment
        self._theirs = theirs
        self._added: list[str] = []
        self._is_prepared = False

    def prepare(self, found: Sequence[FoundPlugin]) -> None:
        """For these, which the person has agreed to."""
        self._is_prepared = True
        finder.install()
        self._add("HERMES_HOME", str(self._home))
        needed = {need.name for one in found for need in (*one.manifest.requires_env, *one.manifest.optional_env)}
        for name, value in self._environment.items():
            if name in needed or not _is_model_key(name):
                self._add(name, value)
        for name in self._theirs.keys() - self._environment.keys():
            self._add(name, self._theirs[name])

    def _add(self, name: str, value: str) -> None:
        if value and name not in os.environ:
            os.environ[name] = value
            self._added.append(name)

    def restore(self) -> None:
        for name in self._added:
            os.environ.pop(name, None)
        if self._is_prepared:
            finder.remove()


def _is_model_key(name: str) -> bool:
    """Also a further one, `NAME_2`."""
    return re.sub(r"_\d$", "", name) in {key for facts in catalog().values() for key in facts.keys}
