"""Pairing codes: a stranger is told one, and the person at the terminal lets them in by it."""

import hashlib
import secrets

from talaria.model.clock import Clock
from talaria.platforms.base import Sender
from talaria.store.access import Access, Locked, Member, Request

ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
"""Without 0, O, 1 and I: 32 signs, 5 bits each."""
CODE_CHARS = 8
LIVES_S = 600.0
MAX_PENDING = 3
"""On each platform."""


def new_code() -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(CODE_CHARS))


def digest(platform: str, code: str) -> str:
    """What is kept of a code. People may type it in small letters, with spaces or hyphens."""
    typed = "".join(code.split()).replace("-", "").upper()
    return hashlib.sha256(f"talaria pairing {platform} {typed}".encode()).hexdigest()


class Pairing:
    def __init__(self, access: Access, clock: Clock) -> None:
        self._access = access
        self._clock = clock

    async def offer(self, platform: str, sender: Sender) -> str | None:
        """A code to tell them. None: they have one, or too many others wait."""
        code = new_code()
        request = Request(platform, sender.id, sender.name[:80], digest(platform, code), self._clock.now() + LIVES_S)
        return code if await self._access.request(request, MAX_PENDING) else None

    async def approve(self, platform: str, code: str) -> Member | Locked | None:
        return await self._access.approve(platform, digest(platform, code))
