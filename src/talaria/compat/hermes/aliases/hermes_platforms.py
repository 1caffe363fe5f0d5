"""`gateway.platforms.base`, `gateway.platforms.helpers`: what adapters derive from and share."""

import re
import time
from collections.abc import Mapping
from typing import Any, cast

from talaria.compat.hermes.aliases.hermes_gateway import *  # noqa: F403
from talaria.compat.hermes.platforms.adapter import *  # noqa: F403
from talaria.compat.hermes.platforms.incoming_events import *  # noqa: F403
from talaria.compat.hermes.platforms.send_outcomes import kind_of
from talaria.platforms.splitting import units

_MARKS = (
    (re.compile(r"^```[^\n]*\n?", re.MULTILINE), ""),
    (re.compile(r"(\*\*|__)(?=\S)(.+?)(?<=\S)\1", re.DOTALL), r"\2"),
    (re.compile(r"(?<!\w)([*_])(?=\S)(.+?)(?<=\S)\1(?!\w)", re.DOTALL), r"\2"),
    (re.compile(r"`(.+?)`"), r"\1"),
    (re.compile(r"^#{1,6}\s+", re.MULTILINE), ""),
    (re.compile(r"\[([^\]]+)\]\([^)]+\)"), r"\1"),
)


def utf16_len(s: str) -> int:
    return units(s)


def classify_send_error(exc: BaseException | None, error_text: str = "") -> str:
    words = (error_text, "" if exc is None else f"{exc} {type(exc).__name__}")
    return kind_of(" ".join(words))


def resolve_channel_prompt(
    config_extra: Mapping[str, Any], channel_id: str, parent_id: str | None = None
) -> str | None:
    """From the settings of the channel, or else of the one that it is in."""
    prompts = config_extra.get("channel_prompts")
    known: Mapping[str, Any] = cast("Mapping[str, Any]", prompts) if isinstance(prompts, Mapping) else {}
    found = (str(known.get(one) or "").strip() for one in (channel_id, parent_id) if one)
    return next((prompt for prompt in found if prompt), None)


class MessageDeduplicator:
    """Remembers the ids of the last `max_size` messages, each for `ttl_seconds`."""

    def __init__(self, max_size: int = 2000, ttl_seconds: float = 300) -> None:
        self._max_size = max_size
        self._ttl_s = ttl_seconds
        self._seen: dict[str, float] = {}

    def is_duplicate(self, msg_id: str) -> bool:
        """Also remembers it."""
        if not msg_id or self.contains(msg_id):
            return bool(msg_id)
        self._seen[msg_id] = time.monotonic()
        while len(self._seen) > self._max_size:
            del self._seen[next(iter(self._seen))]
        return False

    def contains(self, msg_id: str) -> bool:
        seen_at = self._seen.get(msg_id)
        if seen_at is not None and time.monotonic() - seen_at >= self._ttl_s:
            self.discard(msg_id)
        return msg_id in self._seen

    def discard(self, msg_id: str) -> None:
        self._seen.pop(msg_id, None)

    def clear(self) -> None:
        self._seen.clear()


def redact_phone(phone: str) -> str:
    """For logs: the first and last digits."""
    if not phone:
        return "<none>"
    shown = 4 if len(phone) > 8 else 2 if len(phone) > 4 else 0
    return f"{phone[:shown]}****{phone[-shown:] if shown else ''}"


def strip_markdown(text: str) -> str:
    """For services that show plain text."""
    for mark, instead in _MARKS:
        text = mark.sub(instead, text)
    return text.strip()
