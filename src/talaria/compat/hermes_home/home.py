"""Where a Hermes home is."""

from collections.abc import Mapping
from pathlib import Path

from talaria.config.paths import plugin_home
from talaria.core.errors import BadInput

_MARKS = ("config.yaml", "state.db", "SOUL.md", "memories", "auth.json")


def locate(given: Path | None, environment: Mapping[str, str], own: Path) -> Path:
    """The Hermes home that is meant. Raises `BadInput` if it is none, or our own (`own`)."""
    path = given or Path(environment.get("HERMES_HOME") or "~/.hermes")
    try:
        path = path.expanduser()
    except RuntimeError as fault:
        raise BadInput("There is no home folder here: name the Hermes home, `talaria import hermes PATH`.") from fault
    if path.resolve() in (own.resolve(), plugin_home(own).resolve()):
        raise BadInput(f"{path} is Talaria's own home: name that of Hermes, `talaria import hermes PATH`.")
    if not any((path / mark).exists() for mark in _MARKS):
        raise BadInput(f"{path} is no Hermes home: there is none of {', '.join(_MARKS)} in it.")
    return path
