"""What `talaria doctor` found out about one thing, what to do about it, and what was done."""

from collections.abc import Callable
from typing import Literal

import msgspec

from talaria.core.errors import TalariaError

Verdict = Literal["ok", "warn", "fail", "skip"]
"""`skip`: it could not be tried here."""


class Finding(msgspec.Struct, frozen=True):
    subject: str
    verdict: Verdict
    text: str
    remedy: str = ""
    """What to do about it, as a clause."""
    fixed: bool = False
    """`--fix` has done something about it."""


def mended(found: Finding, mend: Callable[[], str], *, is_fixing: bool) -> Finding:
    """The finding as it is, or as it is after `mend`, which answers what it did."""
    if not is_fixing:
        return found
    try:
        done = mend()
    except (OSError, TalariaError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else str(fault)
        return msgspec.structs.replace(found, text=f"{found.text}; it cannot be changed: {reason}")
    return Finding(found.subject, "ok", f"fixed: {done}", fixed=True)
