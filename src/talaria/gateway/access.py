"""The one door: who may speak to the agent, and where. Without the `Principal` that it gives nothing is queued.

Everybody is a stranger until the settings or a pairing say otherwise. Only ids count, never names.
"""

import logging
from collections.abc import Mapping
from typing import Literal

import msgspec

from talaria.gateway.envelope import Principal
from talaria.platforms.base import Arrival, PlatformSettings, Press, Sender
from talaria.store.access import Access

log = logging.getLogger(__name__)

Verdict = Literal["stranger", "ignored"]


class Rules(msgspec.Struct, frozen=True):
    """Of one platform."""

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


class Gatekeeper:
    def __init__(self, access: Access, rules: Mapping[str, Rules]) -> None:
        self._access = access
        self._rules = dict(rules)
        self._members: frozenset[tuple[str, str]] = frozenset()

    async def refresh(self) -> None:
        """Who was let in, or sent away, by another process."""
        self._members = frozenset((one.platform, one.user) for one in await self._access.members())

    def set_rules(self, rules: Mapping[str, Rules]) -> None:
        self._rules = dict(rules)

    def judge(self, item: Arrival | Press) -> Principal | Verdict:
        """`stranger`: may be offered a way in. `ignored`: gets no sign that anybody is here."""
        platform, sender = item.where.platform, item.sender
        rules = self._rules.get(platform, Rules())
        if item.kind == "dm":
            return self._principal(platform, sender, rules) if self.knows(platform, sender) else "stranger"
        is_let_in = self._is_listed(sender, rules) and item.where.chat in rules.chats
        is_meant = isinstance(item, Press) or item.is_addressed or not rules.requires_mention
        return self._principal(platform, sender, rules) if is_let_in and is_meant else "ignored"

    def knows(self, platform: str, sender: Sender) -> bool:
        """May they speak to us directly? Somebody who was let in by a code may only that."""
        rules = self._rules.get(platform, Rules())
        return self._is_listed(sender, rules) or (platform, sender.id) in self._members

    def _is_listed(self, sender: Sender, rules: Rules) -> bool:
        return rules.is_open or sender.id in rules.users or sender.id in rules.admins

    def _principal(self, platform: str, sender: Sender, rules: Rules) -> Principal:
        return Principal(platform, sender.id, sender.name, sender.id in rules.admins)
