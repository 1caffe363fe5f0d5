"""`gateway.status`: an account of a service is used by one process of this person at a time, whatever their homes."""

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

_MAX_BYTES = 4_096
_held: dict[Path, int] = {}


def acquire_scoped_lock(
    scope: str, identity: str, metadata: Mapping[str, Any] | None = None
) -> tuple[bool, dict[str, Any] | None]:
    """Or what is known of whoever has it. The kernel frees it when the process dies."""
    file = _file(scope, identity)
    if file in _held:
        return True, None
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        known = _read(descriptor)
        os.close(descriptor)
        return False, known
    told = {"pid": os.getpid(), "scope": scope, "metadata": dict(metadata or {})}
    os.truncate(descriptor, 0)
    os.write(descriptor, json.dumps(told, default=str).encode())
    _held[file] = descriptor
    return True, None


def release_scoped_lock(scope: str, identity: str) -> None:
    descriptor = _held.pop(_file(scope, identity), None)
    if descriptor is not None:
        os.close(descriptor)


def write_runtime_status(**_: object) -> None:
    """`talaria gateway status` tells that."""


def _file(scope: str, identity: str) -> Path:
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    digest = hashlib.sha256(f"{scope}\0{identity}".encode()).hexdigest()
    return state / "talaria" / "locks" / f"{digest[:32]}.lock"


def _read(descriptor: int) -> dict[str, Any] | None:
    try:
        known = json.loads(os.pread(descriptor, _MAX_BYTES, 0))
    except (OSError, ValueError):
        return None
    return cast("dict[str, Any]", known) if isinstance(known, dict) else None
