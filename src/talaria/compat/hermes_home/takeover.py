"""The whole import, in its order: keys before the settings that name them, SOUL.md before the prompts that hold it.

Where a Hermes home is.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, cast

from talaria.compat.hermes_home.home_files import belongings
from talaria.compat.hermes_home.report import ImportStep, Item, carry_out, make_left_step, mark_failed
from talaria.compat.hermes_home.setting_import import setting_steps, wishes
from talaria.compat.hermes_home.wishes import Document, Permissions, find_missing_keys, key_steps, read_keys, section
from talaria.config import paths
from talaria.config.load import read_yaml
from talaria.config.paths import plugin_home
from talaria.config.secrets import read_env
from talaria.core.errors import BadConfig, BadInput

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


@dataclass(frozen=True, slots=True)
class Ours:
    """Our home as it stands before the import."""

    home: Path
    document: dict[str, Any]
    """config.yaml."""
    keys: Mapping[str, str]
    """.env."""
    environment: Mapping[str, str]

    @classmethod
    def read(cls, home: Path, environment: Mapping[str, str]) -> "Ours":
        """Raises `BadConfig` as every command would."""
        return cls(home, read_yaml(paths.config_file(home)), read_env(paths.secrets_file(home)), environment)


def take_files(root: Path, ours: Ours, *, with_keys: bool, is_dry_run: bool) -> list[Item]:
    """All but the conversations."""
    items: list[Item] = []
    theirs, problem = _config(root / "config.yaml")
    found = read_keys(root / ".env")
    for steps in (
        key_steps(found, ours.keys, ours.home, on_request=with_keys),
        _setting_steps(theirs, found, ours, with_keys=with_keys),
        _list_enabled_plugins(theirs),
        belongings(root, ours.home),
    ):
        items.extend(carry_out(steps, is_dry_run=is_dry_run))
    return [*items, *problem]


def _config(file: Path) -> tuple[Document, list[Item]]:
    try:
        return read_yaml(file), []
    except BadConfig as fault:
        return {}, [mark_failed(Item("setting", file.name, "left"), fault)]


def _setting_steps(theirs: Document, found: Mapping[str, str], ours: Ours, *, with_keys: bool) -> Iterator[ImportStep]:
    coming = find_missing_keys(found, ours.keys) if with_keys else {}
    environment = {**coming, **ours.environment}
    told = wishes(theirs, Permissions(with_keys=with_keys, known=environment, theirs=found))
    return setting_steps(told, ours.document, environment, ours.home, paths.config_file(ours.home))


def _list_enabled_plugins(theirs: Document) -> Iterator[ImportStep]:
    enabled: Any = section(theirs, "plugins").get("enabled")
    for name in map(str, cast("list[Any]", enabled) if isinstance(enabled, list) else ()):
        yield make_left_step(
            "plugin", name, f"it was enabled; once it is installed: `talaria plugins enable {quote(name)}`"
        )
