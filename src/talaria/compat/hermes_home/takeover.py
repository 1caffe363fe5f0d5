"""Imports the files of a Hermes home, in this order: keys before the settings that refer to them, SOUL.md before the
prompts that contain it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, cast

from talaria.api.api_settings import VARIABLES
from talaria.compat.hermes_home.home_files import plan_files
from talaria.compat.hermes_home.report import (
    ON_REQUEST,
    Document,
    ImportStep,
    Item,
    Permissions,
    carry_out,
    make_left_step,
    make_present_step,
    make_taken_step,
    mark_failed,
    section,
)
from talaria.compat.hermes_home.setting_import import plan_settings, propose_settings
from talaria.config import paths
from talaria.config.edit import set_value
from talaria.config.load import read_yaml
from talaria.config.paths import plugin_home
from talaria.config.secrets import read_env, strip_quotes
from talaria.core.errors import BadConfig, BadInput
from talaria.core.fs import read_text
from talaria.providers.catalog import catalog

MAX_FILE_BYTES = 1 << 20
_MARKS = ("config.yaml", "state.db", "SOUL.md", "memories", "auth.json")
_SECRET = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD)(?:_\d+)?$")


def locate(given: Path | None, environment: Mapping[str, str], own: Path) -> Path:
    """The Hermes home to import. Raises `BadInput` if it is not one, or if it is our own (`own`)."""
    path = given or Path(environment.get("HERMES_HOME") or "~/.hermes")
    try:
        path = path.expanduser()
    except RuntimeError as fault:
        raise BadInput("You have no home folder: name the Hermes home, `talaria import hermes PATH`.") from fault
    if path.resolve() in (own.resolve(), plugin_home(own).resolve()):
        raise BadInput(f"{path} is Talaria's own home: name the one of Hermes, `talaria import hermes PATH`.")
    if not any((path / mark).exists() for mark in _MARKS):
        raise BadInput(f"{path} is not a Hermes home: it contains none of {', '.join(_MARKS)}.")
    return path


@dataclass(frozen=True, slots=True)
class Ours:
    """Our home before the import."""

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


def import_files(root: Path, ours: Ours, *, with_keys: bool, is_dry_run: bool) -> list[Item]:
    """Imports everything but the conversations."""
    problems: list[Item] = []
    theirs: Document = {}
    try:
        theirs = read_yaml(root / "config.yaml")
    except BadConfig as fault:
        problems.append(mark_failed(Item("setting", "config.yaml", "left"), fault))
    keys = read_keys(root / ".env")
    coming = {name: value for name, value in keys.items() if with_keys and is_key(name) and name not in ours.keys}
    environment = {**coming, **ours.environment}
    proposals = propose_settings(theirs, Permissions(with_keys=with_keys, known=environment, theirs=keys))
    file = paths.config_file(ours.home)
    enabled: Any = section(theirs, "plugins").get("enabled")
    items: list[Item] = []
    for steps in (
        plan_keys(keys, ours.keys, ours.home, on_request=with_keys),
        plan_settings(proposals, ours.document, environment, ours.home, file),
        (
            make_left_step(
                "plugin", name, f"it was enabled; after installing it: `talaria plugins enable {quote(name)}`"
            )
            for name in map(str, cast("list[Any]", enabled) if isinstance(enabled, list) else ())
        ),
        plan_files(root, ours.home),
    ):
        items.extend(carry_out(steps, is_dry_run=is_dry_run))
    return [*items, *problems]


def read_keys(file: Path) -> dict[str, str]:
    """What a .env sets. Other lines are skipped, and it does not matter who else can read the file."""
    pairs = (
        line.strip().removeprefix("export ").partition("=")
        for line in (read_text(file, MAX_FILE_BYTES) or "").splitlines()
    )
    found = {name.strip(): strip_quotes(value.strip()) for name, equals, value in pairs if equals}
    return {name: value for name, value in found.items() if name.isidentifier() and name.isupper() and value}


def is_key(name: str) -> bool:
    """Also the name of a provider's address: without it a key might go to the usual address instead."""
    known = {one for facts in catalog().values() for one in (*facts.keys, *facts.base_url_names)}
    return bool(_SECRET.search(name)) or name in known


def plan_keys(
    found: Mapping[str, str], own: Mapping[str, str], home: Path, *, on_request: bool
) -> Iterator[ImportStep]:
    """`own` is our .env. Values are never shown."""
    for name, value in found.items():
        if name in VARIABLES and not is_key(name):
            yield make_left_step("key", name, "it opens the HTTP API to others: put it into .env yourself")
        elif not is_key(name):
            yield make_left_step("key", name, "not a key, and Talaria has no such setting")
        elif own.get(name) == value:
            yield make_present_step("key", name)
        elif name in own:
            yield make_left_step("key", name, "Talaria's .env has a different one and keeps it")
        elif on_request:
            yield make_taken_step("key", name, lambda name=name, value=value: set_value(home, name, value))
        else:
            yield make_left_step("key", name, ON_REQUEST)
