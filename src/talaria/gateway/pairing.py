"""Pairing codes: a stranger is told one, and the person at the terminal lets them in by it."""

import hashlib
import secrets

from talaria.core.clock import Clock
from talaria.gateway.envelope import BESIDE, OutgoingBody, written
from talaria.gateway.replies import LIVES_S as REPLY_LIVES_S
from talaria.platforms.base import Address, Sender
from talaria.store.access import Access, Greeting, Locked, Member, PairingRequest

ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
"""Without 0, O, 1 and I: 32 signs, 5 bits each."""
CODE_CHARS = 8
LIVES_S = 600.0
MAX_PENDING = 3
"""On each platform."""
LET_IN = "You have been let in. Send a message to begin; /help lists the commands."


class TooManyWaiting(Exception):
    """So many others on this platform have a code that nobody else gets one now."""


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

    async def offer(self, platform: str, sender: Sender, where: Address | None = None) -> str | None:
        """A code to tell them there. None: they have one. Raises `TooManyWaiting`."""
        code, address = new_code(), str(where) if where else ""
        dies_at = self._clock.now() + LIVES_S
        request = PairingRequest(platform, sender.id, sender.name[:80], digest(platform, code), dies_at, address)
        requested = await self._access.request(request, MAX_PENDING)
        if requested == "full":
            raise TooManyWaiting
        return code if requested == "added" else None

    async def approve(self, platform: str, code: str) -> Member | Locked | None:
        """Let in whoever was told this code, and tell them so: the gateway that runs, or the next one, sends it."""
        greeting = Greeting(BESIDE, written(OutgoingBody(LET_IN)), self._clock.now() + REPLY_LIVES_S)
        return await self._access.approve(platform, digest(platform, code), greeting)
