"""An attack as data: what a page, a file or a server would have the model do, answer by answer."""

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from talaria.testing.servers.scripted_replies import Call

Defence = Literal["floor", "consent", "sandbox", "redaction", "limits"]
"""Always refused; refused because nobody says yes; run without reach; run on dots; run, and ended in time."""

ENCODINGS: Mapping[str, Callable[[str], str]] = {
    "plain": str,
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "hex": lambda text: text.encode().hex(),
    "reversed": lambda text: text[::-1],
    "url": lambda text: "".join(f"%{byte:02X}" for byte in text.encode()),
}
_PLACE = re.compile(r"@([A-Z]+)(?::(\w+))?@")
_PROCESS = re.compile(r"in the background as (\w+)")
_LOOT = re.compile(r"canary-[a-z]+-[A-Za-z0-9]+")


@dataclass(frozen=True, slots=True)
class Action:
    """A call. In its arguments `@HOME@` and the like stand for places, `@LOOT:hex@` for what the last calls brought,
    `@STARTED@` for what they started."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Payload:
    name: str
    steps: tuple[tuple[Action, ...], ...]
    stopped_by: Defence
    is_proven: bool = True
    """Whether it is let through once where nothing stops it, to see that it would do harm there."""


def do(tool: str, /, **arguments: Any) -> Action:
    return Action(tool, arguments)


def shell(command: str, **more: Any) -> Action:
    """Leaves nothing to the next, unless it says so."""
    return do("terminal", command=command, **{"independent": True, **more})


def calls(step: Iterable[Action], places: Mapping[str, str], loot: str, prefix: str) -> tuple[Call, ...]:
    stolen, started = _LOOT.search(loot), _PROCESS.search(loot)
    known = {
        **places,
        "LOOT": stolen[0] if stolen else quote(loot[:60], safe=""),
        "STARTED": started[1] if started else "",
    }

    def filled(value: Any) -> Any:
        if isinstance(value, str):
            return _PLACE.sub(lambda found: ENCODINGS[found[2] or "plain"](known[found[1]]), value)
        return value

    return tuple(
        Call(f"{prefix}{number}", action.tool, json.dumps({key: filled(one) for key, one in action.arguments.items()}))
        for number, action in enumerate(step)
    )
