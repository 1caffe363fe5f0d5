"""Who may speak to the agent, and where: decided only here. Without a `Principal` from here nothing is queued, and
nothing that was queued is answered.

Everybody is a stranger until the settings or a pairing say otherwise. Only ids count, never names. In a pairing, a
stranger is given a code, with which the person at the terminal lets them in.
"""

import hashlib
import secrets
from collections.abc import Mapping
from typing import Literal

import msgspec

from talaria.core.clock import Clock
from talaria.gateway.envelope import NO_SESSION, OutgoingBody, Principal, Received, encode_body
from talaria.gateway.replies import EXPIRES_AFTER_S as REPLY_LIVES_S
from talaria.platforms.base import Address, Arrival, PlatformSettings, Press, Sender
from talaria.store.api_ports import API, ApiToken
from talaria.store.base import Store
from talaria.store.permission_ports import Access, Greeting, Locked, Member, PairingRequest

ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
"""Without 0, O, 1 and I: 32 characters, 5 bits each."""
CODE_CHARS = 8
CODE_EXPIRES_AFTER_S = 600.0
MAX_PENDING = 3
"""On each platform."""
APPROVED = "You can talk to the agent now. Send a message to begin; /help lists the commands."


class TooManyWaiting(Exception):
    """Too many others on this platform have a pending code."""


def new_code() -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(CODE_CHARS))


def digest(platform: str, code: str) -> str:
    """What is stored of a code. People may type it in lower case, with spaces or hyphens."""
    typed = "".join(code.split()).replace("-", "").upper()
    return hashlib.sha256(f"talaria pairing {platform} {typed}".encode()).hexdigest()


class Pairing:
    def __init__(self, access: Access, clock: Clock) -> None:
        self._access = access
        self._clock = clock

    async def offer(self, platform: str, sender: Sender, where: Address | None = None) -> str | None:
        """A code to send them there; None: they have one. Raises `TooManyWaiting`."""
        code, address = new_code(), str(where) if where else ""
        dies_at = self._clock.now() + CODE_EXPIRES_AFTER_S
        request = PairingRequest(platform, sender.id, sender.name[:80], digest(platform, code), dies_at, address)
        requested = await self._access.request(request, MAX_PENDING)
        if requested == "full":
            raise TooManyWaiting
        return code if requested == "added" else None

    async def approve(self, platform: str, code: str) -> Member | Locked | None:
        """Let in the person with this code, and tell them: the running gateway, or the next one, sends the message."""
        greeting = Greeting(NO_SESSION, encode_body(OutgoingBody(APPROVED)), self._clock.now() + REPLY_LIVES_S)
        return await self._access.approve(platform, digest(platform, code), greeting)


Verdict = Literal["stranger", "ignored"]


class Rules(msgspec.Struct, frozen=True):
    """The rules of one platform."""

    users: frozenset[str] = frozenset()
    admins: frozenset[str] = frozenset()
    chats: frozenset[str] = frozenset()
    is_open: bool = False
    requires_mention: bool = True

    @classmethod
    def of(cls, settings: PlatformSettings) -> "Rules":
        return cls(
            frozenset(settings.allowed_users),
            frozenset(settings.admins),
            frozenset(settings.allowed_chats),
            settings.allow_all_users,
            settings.require_mention,
        )

    def lists(self, sender: Sender) -> bool:
        """The settings let them in, without a pairing."""
        return self.is_open or sender.id in self.users or sender.id in self.admins


NO_RULES = Rules()


class Gatekeeper:
    def __init__(self, store: Store, clock: Clock, rules: Mapping[str, Rules]) -> None:
        self._access = store.access
        self._tokens = store.api_tokens
        self._clock = clock
        self._rules = dict(rules)
        self._members: frozenset[tuple[str, str]] = frozenset()
        self._token_of: Mapping[str, ApiToken] = {}
        """By name."""

    async def refresh(self) -> None:
        """Read who was let in, or removed, by another process."""
        self._members = frozenset((one.platform, one.user) for one in await self._access.members())
        self._token_of = {one.name: one for one in await self._tokens.list()}

    def token(self, principal: Principal) -> ApiToken | None:
        """With which they speak over the API."""
        return self._token_of.get(principal.user) if principal.platform == API else None

    def set_rules(self, rules: Mapping[str, Rules]) -> None:
        self._rules = dict(rules)

    def judge(self, item: Arrival | Press) -> Principal | Verdict:
        """`stranger`: may be offered a pairing code. `ignored`: gets no sign that anybody is here."""
        principal = self._principal(item)
        if item.kind == "dm":
            return principal or "stranger"
        requires_mention = self._rules.get(item.where.platform, NO_RULES).requires_mention
        is_meant = isinstance(item, Press) or item.is_addressed or not requires_mention
        return principal if principal is not None and is_meant else "ignored"

    def admins(self, platform: str) -> frozenset[str]:
        """Ids of people who may do all that the person at the terminal may."""
        return self._rules.get(platform, NO_RULES).admins

    def has_rules(self, platform: str) -> bool:
        """Otherwise the platform is not set up, and who may write there is unknown."""
        return platform in self._rules

    def recheck(self, received: Received) -> Received | None:
        """The same message with the sender's present rights; None: they may no longer write."""
        principal = self._principal(received.arrival)
        return msgspec.structs.replace(received, principal=principal) if principal else None

    def may_write_directly(self, platform: str, sender: Sender) -> bool:
        """In direct messages, which is all that a pairing allows."""
        return self._rules.get(platform, NO_RULES).lists(sender) or (platform, sender.id) in self._members

    def _principal(self, item: Arrival | Press) -> Principal | None:
        """The sender, if they may write there."""
        platform, sender = item.where.platform, item.sender
        if platform == API:
            token = self._token_of.get(sender.id)
            is_let_in = token is not None and token.is_valid(self._clock.now())
            may_approve = token is not None and "approve" in token.scopes
            return Principal(API, sender.id, sender.id, may_approve) if is_let_in else None
        rules = self._rules.get(platform, NO_RULES)
        if item.kind == "dm":
            is_let_in = self.may_write_directly(platform, sender)
        else:
            is_let_in = rules.lists(sender) and item.where.chat in rules.chats
        return Principal(platform, sender.id, sender.name, sender.id in rules.admins) if is_let_in else None
