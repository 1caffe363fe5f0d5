"""Ids. Each kind is its own type, so that a turn's id cannot be used as a session's."""

import os
import time
from typing import NewType

SessionId = NewType("SessionId", str)
TurnId = NewType("TurnId", str)
CallId = NewType("CallId", str)
OwnerId = NewType("OwnerId", str)
InboxId = NewType("InboxId", int)
OutboxId = NewType("OutboxId", int)
HoldId = NewType("HoldId", int)
ApprovalId = NewType("ApprovalId", str)
GrantId = NewType("GrantId", str)

Epoch = NewType("Epoch", int)
"""Fencing token: grows by one with every change of a session's owner."""


def new_session_id(at: float) -> SessionId:
    """Sortable by start, e.g. `20261115_093012_4f7a1c02`."""
    return SessionId(f"{time.strftime('%Y%m%d_%H%M%S', time.localtime(at))}_{os.urandom(4).hex()}")


def new_turn_id() -> TurnId:
    return TurnId(f"turn_{os.urandom(8).hex()}")


def new_call_id() -> CallId:
    return CallId(f"call_{os.urandom(8).hex()}")


def new_owner_id() -> OwnerId:
    return OwnerId(f"{os.getpid()}-{os.urandom(6).hex()}")


def new_handoff_id() -> str:
    return os.urandom(8).hex()


def new_approval_id() -> ApprovalId:
    """Nobody can guess it, so a button that carries it was shown to the person who presses it."""
    return ApprovalId(os.urandom(16).hex())


def new_grant_id() -> GrantId:
    return GrantId(os.urandom(16).hex())


def pid_of(owner: OwnerId) -> int:
    """The owner's process, which may have ended."""
    return int(owner.partition("-")[0])
