"""The conversation of a chat: the live session for whoever speaks, where it works, and how it is answered."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from talaria.core.ids import InboxId, SessionId
from talaria.core.trees import Root
from talaria.gateway.attachments import find_file
from talaria.gateway.authorization import Gatekeeper
from talaria.gateway.chat_keys import folder_name, is_everybodys
from talaria.gateway.chat_person import ChatPerson, Questions
from talaria.gateway.delivery import Delivery
from talaria.gateway.envelope import Principal, Received
from talaria.gateway.gateway_state import GatewayState, PlatformLinks
from talaria.gateway.replies import Replies
from talaria.platforms.base import Capabilities
from talaria.runtime.session import LiveSession
from talaria.runtime.session_config import Asker, TurnMail, TurnResult
from talaria.runtime.session_pool import SessionPool
from talaria.store.base import Session
from talaria.store.mail import Outgoing

USUAL = Capabilities(max_chars=2000)
"""Of a platform that is not connected: every one takes that much."""


class Conversations:
    def __init__(
        self,
        desk: GatewayState,
        pool: SessionPool,
        links: PlatformLinks,
        delivery: Delivery,
        questions: Questions,
        gatekeeper: Gatekeeper,
    ) -> None:
        self._desk = desk
        self._sessions = desk.host.store.sessions
        self._pool = pool
        self._links = links
        self._delivery = delivery
        self._questions = questions
        self._gatekeeper = gatekeeper

    async def open(self, session: SessionId, received: Received) -> LiveSession:
        """As it is kept, or anew."""
        host, principal = self._desk.host, received.principal
        known = self._pool.find(session)
        row = None if known else await self._sessions.get(session)
        setup = host.setup(
            cwd=self._cwd(known, row, received),
            origin="platform",
            platform=principal.platform,
            conversation=received.key,
            person=principal.person,
        )
        if known is not None and known.setup != setup:
            row = await self._sessions.get(session)

        def build() -> LiveSession:
            # Nobody: who is asked comes with each turn, for the session outlives what was true when it was made.
            return host.live(session, row, setup, None, host.terms(), leaves_mail=False)

        return self._pool.get(session, setup, build)

    def replies(self, received: Received, folder: Path | None = None) -> Replies:
        """`folder` is the one in which the conversation works; None: the usual one of whoever speaks."""
        where = received.arrival.where
        platform = self._links.find(where.platform)
        return Replies(
            where,
            platform.capabilities if platform else USUAL,
            self._desk.host.clock,
            reply_to(received),
            lambda path, most: find_file(path, folder or self._folder(received), self._desk.host.home, most),
        )

    def letter(
        self, ids: tuple[InboxId, ...], received: Received, live: LiveSession, *, is_asking: bool = True
    ) -> TurnMail:
        """What a platform can show is asked when there is something to show: it may not be connected yet.

        Not `is_asking`: nobody is asked anything while it is answered.
        """

        def reply(ending: TurnResult) -> Sequence[Outgoing]:
            if ending.outcome == "interrupted":
                ending = msgspec.structs.replace(ending, error=self._desk.stopped.get(ending.turn, ""))
            return self.replies(received, live.setup.cwd).of_turn(ending)

        asker = self.asker(live.id, received) if is_asking else Asker(received.principal.person)
        return TurnMail(ids, reply, asker)

    async def _replies_once_connected(self, received: Received) -> Replies:
        await self._links.wait(received.arrival.where.platform)
        return self.replies(received)

    def asker(self, session: SessionId, received: Received) -> Asker:
        """Whoever wrote it, who is asked where they wrote it."""

        def judge() -> Principal | None:
            still = self._gatekeeper.still(received)
            return still.principal if still else None

        person = ChatPerson(
            received.principal.person,
            session,
            received.arrival.where,
            judge=judge,
            replies=lambda: self._replies_once_connected(received),
            questions=self._questions,
            outbox=self._desk.host.store.outbox,
            wake=self._delivery.wake,
        )
        return Asker(received.principal.person, person)

    async def workplace(self, session: SessionId, received: Received) -> Path:
        """Asked before the conversation is opened: whoever is not in a turn yet may have to leave the pool."""
        known = self._pool.find(session)
        row = None if known else await self._sessions.get(session)
        return self._cwd(known, row, received)

    def _cwd(self, known: LiveSession | None, row: Session | None, received: Received) -> Path:
        if known is not None:
            return known.setup.cwd
        if row is not None and Path(row.cwd).is_dir():
            return Path(row.cwd)
        folder = self._folder(received)
        if self._desk.settings.cwd is None:
            with Root.make(folder.parent) as people:
                people.make_folder(folder.name, 0o700).close()  # not through a link that somebody has put there
                return Path(people.path, folder.name)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder.resolve()

    def _folder(self, received: Received) -> Path:
        settings = self._desk.settings
        if settings.cwd is not None:
            return Path(settings.cwd).expanduser()
        where = received.arrival.where
        is_shared = is_everybodys(received.key, where, received.arrival.kind, self._desk.key_rules)
        whose = f"group-{where.chat}-{where.thread}" if is_shared else received.principal.user
        return Path(settings.workspace).expanduser() / folder_name(where.platform, whose)


def reply_to(received: Received) -> str:
    """In a group it is told which message is answered."""
    return received.arrival.message_id if received.arrival.kind == "group" else ""
