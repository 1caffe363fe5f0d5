"""For authors of tools, plugins and platforms: real servers on loopback, a clock that you advance, crashes at named
moments, and power cuts. docs/how-to/test-what-you-write.md shows how to use them.

Each name is loaded on first use, so a test that only scripts a model server does not load the store.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "PATIENCE_S",
    "Call",
    "CrashPoints",
    "CrashingPlatform",
    "CrashingProvider",
    "Disk",
    "DiskRecorder",
    "Failure",
    "Faults",
    "Harness",
    "LostAnswer",
    "ManualClock",
    "ModelServer",
    "Moment",
    "RecordedRequest",
    "Refusal",
    "Reply",
    "ReplyUsage",
    "SeenMessage",
    "Slow",
    "TelegramServer",
    "World",
    "call",
    "crashing_store",
    "moments",
]

if TYPE_CHECKING:
    from talaria.testing.crash import (
        CrashingPlatform,
        CrashingProvider,
        CrashPoints,
        Moment,
        World,
        crashing_store,
        moments,
    )
    from talaria.testing.harness import Harness
    from talaria.testing.manual_clock import ManualClock
    from talaria.testing.patience import PATIENCE_S
    from talaria.testing.powercut import Disk, DiskRecorder
    from talaria.testing.servers.chat_service import LostAnswer, Refusal, SeenMessage, Slow
    from talaria.testing.servers.model_server import ModelServer, RecordedRequest
    from talaria.testing.servers.scripted_replies import Call, Failure, Faults, Reply, ReplyUsage, call
    from talaria.testing.servers.telegram_server import TelegramServer

_HOMES = {
    "crash": (
        *("CrashPoints", "CrashingPlatform", "CrashingProvider", "Moment", "World"),
        *("crashing_store", "moments"),
    ),
    "harness": ("Harness",),
    "manual_clock": ("ManualClock",),
    "patience": ("PATIENCE_S",),
    "powercut": ("Disk", "DiskRecorder"),
    "servers.chat_service": ("LostAnswer", "Refusal", "SeenMessage", "Slow"),
    "servers.model_server": ("ModelServer", "RecordedRequest"),
    "servers.scripted_replies": ("Call", "Failure", "Faults", "Reply", "ReplyUsage", "call"),
    "servers.telegram_server": ("TelegramServer",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'talaria.testing' has no attribute {name!r}")
    return getattr(import_module(f"talaria.testing.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
