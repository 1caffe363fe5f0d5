"""What becomes of each thing in a Hermes home, told and done: a step says what it does before it does it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from talaria.core.errors import OperatorError, TalariaError

Verdict = Literal["taken", "there", "left"]
"""Taken over, already there, or left where it is; before a dry run's end these are only meant."""


@dataclass(frozen=True, slots=True)
class Item:
    kind: str
    """`setting`, `key`, `conversations`, `memory`, `skill`, …"""
    name: str
    verdict: Verdict
    reason: str = ""
    """Why it is left; of what is taken, what else there is to know."""
    failure: TalariaError | None = None
    """It was to be taken, and could not be."""


@dataclass(frozen=True, slots=True)
class ImportStep:
    item: Item
    act: Callable[[], object] | None = None
    """What takes it over; raises `TalariaError`, `OSError`."""


def make_taken_step(kind: str, name: str, act: Callable[[], object], reason: str = "") -> ImportStep:
    return ImportStep(Item(kind, name, "taken", reason), act)


def there(kind: str, name: str) -> ImportStep:
    return ImportStep(Item(kind, name, "there"))


def make_left_step(kind: str, name: str, reason: str) -> ImportStep:
    return ImportStep(Item(kind, name, "left", reason))


def mark_failed(item: Item, failure: TalariaError) -> Item:
    return replace(item, verdict="left", reason=str(failure), failure=failure)


def carry_out(steps: Iterable[ImportStep], *, is_dry_run: bool) -> Iterator[Item]:
    """One that fails does not keep the others from being done."""
    for step in steps:
        yield step.item if is_dry_run or step.act is None else _perform(step.item, step.act)


def _perform(item: Item, act: Callable[[], object]) -> Item:
    try:
        act()
    except TalariaError as failure:
        return mark_failed(item, failure)
    except OSError as fault:
        return mark_failed(item, OperatorError(f"Cannot write {fault.filename or item.name}: {fault.strerror}."))
    return item
