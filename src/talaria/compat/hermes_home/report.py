"""The steps of an import: what becomes of each thing in a Hermes home, and which settings its config.yaml proposes.

A step says what it does before it does it, so that a dry run and a real one report the same.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from talaria.core.errors import OperatorError, TalariaError

Verdict = Literal["taken", "there", "left"]
"""Imported, already here, or left where it is; in a dry run this is only the plan."""


@dataclass(frozen=True, slots=True)
class Item:
    kind: str
    """`setting`, `key`, `conversations`, `memory`, `skill`, …"""
    name: str
    verdict: Verdict
    reason: str = ""
    """Why it is left; for something taken, what else you should know about it."""
    failure: TalariaError | None = None
    """It should have been taken, but could not be."""


@dataclass(frozen=True, slots=True)
class ImportStep:
    item: Item
    act: Callable[[], object] | None = None
    """Does the import; raises `TalariaError`, `OSError`."""


def make_taken_step(kind: str, name: str, act: Callable[[], object], reason: str = "") -> ImportStep:
    return ImportStep(Item(kind, name, "taken", reason), act)


def make_present_step(kind: str, name: str) -> ImportStep:
    return ImportStep(Item(kind, name, "there"))


def make_left_step(kind: str, name: str, reason: str) -> ImportStep:
    return ImportStep(Item(kind, name, "left", reason))


def mark_failed(item: Item, failure: TalariaError) -> Item:
    return replace(item, verdict="left", reason=str(failure), failure=failure)


def carry_out(steps: Iterable[ImportStep], *, is_dry_run: bool) -> Iterator[Item]:
    """A step that fails does not stop the others."""
    for step in steps:
        failure: TalariaError | None = None
        if step.act is not None and not is_dry_run:
            try:
                step.act()
            except TalariaError as fault:
                failure = fault
            except OSError as fault:
                failure = OperatorError(f"Cannot write {fault.filename or step.item.name}: {fault.strerror}.")
        yield step.item if failure is None else mark_failed(step.item, failure)


# What Hermes' config.yaml proposes.

Document = Mapping[str, Any]
Key = tuple[str, ...]
"""The path to a setting, name by name."""
NO_COUNTERPART = "Talaria has no such setting"
ON_REQUEST = "a secret: `talaria import hermes --keys` takes it"


@dataclass(frozen=True, slots=True)
class SettingGroup:
    """All of `settings` or none of them."""

    origin: str
    """What Hermes calls it."""
    settings: tuple[tuple[Key, Any], ...]
    unless: tuple[Key, ...] = ()
    """If Talaria already has one of these, the group would mix with something else, and is not taken."""
    needs: str = ""
    """The origin of the group that this one depends on: a key, say, must not go to another provider's address."""
    note: str = ""
    """What you should know once it is taken."""


Proposals = Iterator[SettingGroup | ImportStep]
"""Settings to take over, and steps for what has no counterpart here."""


def propose(origin: str, key: str, value: Any, *, needs: str = "", note: str = "") -> SettingGroup:
    return SettingGroup(origin, ((tuple(key.split(".")), value),), needs=needs, note=note)


def section(document: Document, name: str) -> Document:
    """Empty if there is none."""
    found = document.get(name)
    return cast("Document", found) if isinstance(found, Mapping) else {}


def word(value: object) -> str:
    """A printable text without the spaces around it; anything else is empty."""
    return value.strip() if isinstance(value, str) and value.isprintable() else ""


def first(document: Document, *names: str) -> str:
    """The first of these settings that is a text."""
    return next((found for name in names if (found := word(document.get(name)))), "")


@dataclass(frozen=True, slots=True)
class Permissions:
    """What may be imported of secrets."""

    with_keys: bool
    known: Collection[str]
    """Names that are set here, or will be after this import."""
    theirs: Collection[str] = ()
    """Names under which Hermes has a key."""

    def key_of(self, entry: Document, origin: str) -> tuple[str | None, list[ImportStep]]:
        """What to write as `api_key`: a reference if the key is in .env; the key itself only on request."""
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
