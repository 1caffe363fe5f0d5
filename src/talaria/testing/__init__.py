"""For authors of tools, providers and plugins: fakes that are real servers on loopback, a clock turned by hand,
crashes at named moments.

Each name is loaded on first use: a test that scripts a model server does not pay for the store.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "Call",
    "CrashPoints",
    "CrashingProvider",
    "Failure",
    "Faults",
    "ManualClock",
    "ModelServer",
    "Moment",
    "RecordedRequest",
    "Reply",
    "ScriptedProvider",
    "World",
    "call",
    "chat_problems",
    "crashing_store",
    "messages_problems",
    "moments",
    "responses_problems",
    "transcript_problems",
]

if TYPE_CHECKING:
    from talaria.testing.crash import CrashingProvider, CrashPoints, Moment, World, crashing_store, moments
    from talaria.testing.manual_clock import ManualClock
    from talaria.testing.rules import (
        chat_problems,
        messages_problems,
        responses_problems,
        transcript_problems,
    )
    from talaria.testing.scripted_provider import ScriptedProvider
    from talaria.testing.servers.model_server import ModelServer, RecordedRequest
    from talaria.testing.servers.scripted_replies import Call, Failure, Faults, Reply, call

_HOMES = {
    "manual_clock": ("ManualClock",),
    "crash": ("CrashPoints", "CrashingProvider", "Moment", "World", "crashing_store", "moments"),
    "scripted_provider": ("ScriptedProvider",),
    "rules": ("chat_problems", "messages_problems", "responses_problems", "transcript_problems"),
    "servers.model_server": ("ModelServer", "RecordedRequest"),
    "servers.scripted_replies": ("Call", "Failure", "Faults", "Reply", "call"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'talaria.testing' has no attribute {name!r}")
    return getattr(import_module(f"talaria.testing.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
