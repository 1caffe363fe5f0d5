"""What a Hermes config wishes of ours, setting by setting. `settings.py` says which wishes are granted."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

from talaria.compat.hermes_home.api_keys import ON_REQUEST
from talaria.compat.hermes_home.report import ImportStep, left

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
            return None, [left("setting", f"{origin}.api_key", f"{name} is not set here")]
        if written and not self.with_keys:
            return None, [left("setting", f"{origin}.api_key", ON_REQUEST)]
        return written or None, []
