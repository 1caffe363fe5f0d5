"""Keeps bytecode of its own while plugins are loaded: what came with a plugin may be of other code than the one that
the person has agreed to, and Python would run it unseen. It holds for all that is imported meanwhile, also late."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_users: list[str] = []
_before: list[str | None] = []
"""What the first of them found; import machinery is global."""


@contextmanager
def kept_in(folder: Path) -> Generator[None]:
    """Until the last that has asked for it leaves."""
    place = str(folder)
    if not _users:
        _before[:] = [sys.pycache_prefix]
    _users.append(place)
    sys.pycache_prefix = place
    try:
        yield
    finally:
        _users.remove(place)
        sys.pycache_prefix = _users[-1] if _users else _before[0]
