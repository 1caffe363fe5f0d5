"""What a Hermes config wishes of ours, setting by setting. `settings.py` says which wishes are granted.

Keys in Hermes' .env. They are taken only on request; their values are never shown.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from talaria.compat.hermes_home.report import ImportStep, make_left_step, make_taken_step, there
from talaria.config.edit import set_value
from talaria.config.secrets import strip_quotes
from talaria.core.fs import read_text
from talaria.providers.catalog import catalog

MAX_FILE_BYTES = 1 << 20
ON_REQUEST = "a secret: `talaria import hermes --keys` takes it"
_SECRET = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD)(?:_\d+)?$")


def read_keys(file: Path) -> dict[str, str]:
    """What the file sets; lines that set nothing are passed over, and who else may read it is not our affair."""
    pairs = (
        line.strip().removeprefix("export ").partition("=")
        for line in (read_text(file, MAX_FILE_BYTES) or "").splitlines()
    )
    found = {name.strip(): strip_quotes(value.strip()) for name, equals, value in pairs if equals}
    return {name: value for name, value in found.items() if name.isidentifier() and name.isupper() and value}


def is_key(name: str) -> bool:
    """Also another address of a provider: a key must not go to the usual one instead."""
    return bool(_SECRET.search(name)) or name in _list_known_names()


def _list_known_names() -> Iterable[str]:
    return {name for facts in catalog().values() for name in (*facts.keys, *facts.base_url_names)}


def find_missing_keys(found: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Keys that our .env does not have."""
    return {name: value for name, value in found.items() if is_key(name) and name not in own}


def key_steps(
    found: Mapping[str, str], own: Mapping[str, str], home: Path, *, on_request: bool
) -> Iterator[ImportStep]:
    """`own` is what our .env says."""
    for name, value in found.items():
        if not is_key(name):
            yield make_left_step("key", name, "no key, and Talaria has no such setting")
        elif own.get(name) == value:
            yield there("key", name)
        elif name in own:
            yield make_left_step("key", name, "Talaria's .env has another, which stays")
        elif on_request:
            yield make_taken_step("key", name, lambda name=name, value=value: set_value(home, name, value))
        else:
            yield make_left_step("key", name, ON_REQUEST)


Document = Mapping[str, Any]
Key = tuple[str, ...]
"""The names on the way to a setting."""
NO_COUNTERPART = "Talaria has no such setting"


@dataclass(frozen=True, slots=True)
class SettingGroup:
    """All of `settings` or none of them."""

    origin: str
    """What Hermes calls it."""
    settings: tuple[tuple[Key, Any], ...]
    unless: tuple[Key, ...] = ()
    """If we have one of these, ours is meant for something else."""
    needs: str = ""
    """The wish without which it would belong to something else: a key, say, to another's address."""
    note: str = ""
    """What the person must know of it when it is granted."""


Wishes = list[SettingGroup | ImportStep]
"""And what is left, because nothing here fulfils it."""


def wish(origin: str, key: str, value: Any, *, needs: str = "", note: str = "") -> SettingGroup:
    return SettingGroup(origin, ((tuple(key.split(".")), value),), needs=needs, note=note)


def section(document: Document, name: str) -> Document:
    """Empty if there is none."""
    found = document.get(name)
    return cast("Document", found) if isinstance(found, Mapping) else {}


def word(value: object) -> str:
    """A text that says something; else empty."""
    return value.strip() if isinstance(value, str) and value.isprintable() else ""


def first(document: Document, *names: str) -> str:
    """The first of these settings that is a text."""
    return next((found for name in names if (found := word(document.get(name)))), "")


@dataclass(frozen=True, slots=True)
class Permissions:
    """What may be said of secrets."""

    with_keys: bool
    known: Collection[str]
    """Names that are set here, or will be when this comes to pass."""
    theirs: Collection[str] = ()
    """Names that Hermes has a key under."""

    def key_of(self, entry: Document, origin: str) -> tuple[str | None, list[ImportStep]]:
        """What to write as `api_key`: a reference where the key stands in .env, the key itself only on request."""
        name = first(entry, "key_env", "api_key_env")
        written = first(entry, "api_key")
        if written.startswith("${") and written.endswith("}"):
            name, written = written[2:-1], ""
        if name in self.known:
            return f"${{{name}}}", []
        if name:
            return None, [make_left_step("setting", f"{origin}.api_key", f"{name} is not set here")]
        if written and not self.with_keys:
            return None, [make_left_step("setting", f"{origin}.api_key", ON_REQUEST)]
        return written or None, []
