"""`gateway.platforms.helpers`: small things that adapters share."""

import re
import time

_MARKS = (
    (re.compile(r"^```[^\n]*\n?", re.MULTILINE), ""),
    (re.compile(r"(\*\*|__)(?=\S)(.+?)(?<=\S)\1", re.DOTALL), r"\2"),
    (re.compile(r"(?<!\w)([*_])(?=\S)(.+?)(?<=\S)\1(?!\w)", re.DOTALL), r"\2"),
    (re.compile(r"`(.+?)`"), r"\1"),
    (re.compile(r"^#{1,6}\s+", re.MULTILINE), ""),
    (re.compile(r"\[([^\]]+)\]\([^)]+\)"), r"\1"),
)


class MessageDeduplicator:
    """Knows the ids of the last `max_size` messages, each for `ttl_seconds`."""

    def __init__(self, max_size: int = 2000, ttl_seconds: float = 300) -> None:
        self._max_size = max_size
        self._ttl_s = ttl_seconds
        self._seen: dict[str, float] = {}

    def is_duplicate(self, msg_id: str) -> bool:
        """From now on it is one."""
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
    """For logs: how it begins, and how it ends."""
    if not phone:
        return "<none>"
    shown = 4 if len(phone) > 8 else 2 if len(phone) > 4 else 0
    return f"{phone[:shown]}****{phone[-shown:] if shown else ''}"


def strip_markdown(text: str) -> str:
    """For services that show text as it is."""
    for mark, instead in _MARKS:
        text = mark.sub(instead, text)
    return text.strip()
