"""The conversation of a chat: its live session, where it works, how it is answered, and when the chat starts a new one
by itself."""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from talaria.core.errors import SessionBusy, TalariaError
from talaria.core.ids import InboxId, SessionId, TurnId, new_session_id
from talaria.core.trees import Root
from talaria.gateway.chat_person import ChatPerson, WatchingPerson
from talaria.gateway.delivery import Delivery
from talaria.gateway.envelope import (
    Mail,
    OutgoingBody,
    Principal,
    Received,
    encode_body,
    folder_name,
    is_shared_conversation,
)
from talaria.gateway.gateway_settings import ResetPolicy
from talaria.gateway.gateway_state import GatewayState
from talaria.gateway.replies import EXPIRES_AFTER_S, Replies
from talaria.gateway.request_history import end_of_history
from talaria.platforms.base import Capabilities
from talaria.runtime.session import LiveSession
from talaria.runtime.session_config import Asker, TurnMail, TurnResult
from talaria.store.api_ports import HistoryPoint
from talaria.store.base import Session
from talaria.store.chat_ports import Outgoing

DEFAULT_CAPABILITIES = Capabilities(max_chars=2000)
"""For a platform that is not connected: every platform takes this much."""


class Conversations:
    def __init__(self, state: GatewayState, delivery: Delivery) -> None:
        self._state = state
        self._sessions = state.host.store.sessions
        self._pool = state.pool
        self._links = state.links
        self._delivery = delivery

    async def open(self, session: SessionId, received: Received) -> LiveSession:
        """The live session in the pool, or a new one."""
        host, principal = self._state.host, received.principal
        known = self._pool.find(session)
        row = None if known else await self._sessions.get(session)
        config = host.session_config(
            cwd=self._cwd(known, row, received),
            origin="platform",
            platform=principal.platform,
            conversation=received.key,
            person=principal.person,
            instructions=self._instructions(known, row, received),
        )
        if known is not None and known.config != config:
            row = await self._sessions.get(session)

        def build() -> LiveSession:
            # Without a person: each turn brings the one to ask, because the session outlives its first sender's rights.
            return host.live_session(session, row, config, leaves_mail=False)

        return self._pool.get(session, config, build)

    def replies_to(self, received: Received, folder: Path | None = None) -> Replies:
        """`folder` is where the conversation works; None: no files are sent."""
        where, host = received.arrival.where, self._state.host
        platform = self._links.find(where.platform)
        return Replies(
            where,
            platform.capabilities if platform else DEFAULT_CAPABILITIES,
            host.clock,
            reply_to(received),
            folder,
            host.home,
            is_wanted=received.arrival.request is None,
        )

    def turn_mail(
        self,
        ids: tuple[InboxId, ...],
        received: Received,
        live: LiveSession,
        on_end: Callable[[], None],
        *,
        turn: TurnId | None = None,
        is_asking: bool = True,
    ) -> TurnMail:
        """Without `is_asking`, nobody is asked for permission while the mail is answered."""

        def reply(ending: TurnResult) -> Sequence[Outgoing | HistoryPoint]:
            # Not before the turn ends: the platform may connect only while it runs.
            if (request := received.arrival.request) is not None:
                return end_of_history(request, received.principal.person, ending)
            if ending.outcome == "interrupted":
                ending = msgspec.structs.replace(ending, error=self._state.stopped.get(ending.turn, ""))
            return self.replies_to(received, live.config.cwd).of_turn(ending)

        asker = self.asker(live.id, received) if is_asking else Asker(received.principal.person)
        return TurnMail(ids, reply, on_end, asker, turn)

    def asker(self, session: SessionId, received: Received) -> Asker:
        """The sender, to be asked where they wrote."""

        def judge() -> Principal | None:
            still = self._state.gatekeeper.recheck(received)
            return still.principal if still else None

        if received.arrival.request is not None:
            return Asker(received.principal.person, WatchingPerson(judge))

        async def replies_once_connected() -> Replies:
            await self._links.wait(received.arrival.where.platform)
            return self.replies_to(received)

        person = ChatPerson(
            received.principal.person,
            session,
            received.arrival.where,
            judge=judge,
            replies=replies_once_connected,
            questions=self._state.questions,
            outbox=self._state.host.store.outbox,
            wake=self._delivery.wake,
        )
        return Asker(received.principal.person, person)

    async def find_folder(self, session: SessionId, received: Received) -> Path:
        """Does not open the conversation, which might be evicted again before its turn begins."""
        known = self._pool.find(session)
        row = None if known else await self._sessions.get(session)
        return self._cwd(known, row, received)

    def _cwd(self, known: LiveSession | None, row: Session | None, received: Received) -> Path:
        if known is not None:
            return known.config.cwd
        if row is not None and Path(row.cwd).is_dir():
            return Path(row.cwd)
        folder = self._folder(received)
        if self._state.settings.cwd is None:
            with Root.make(folder.parent) as people:
                people.make_folder(folder.name, 0o700).close()  # not through a link that somebody has put there
                return Path(people.path, folder.name)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder.resolve()

    def _instructions(self, known: LiveSession | None, row: Session | None, received: Received) -> str:
        """They are in the system prompt, which is written when a conversation begins and never changes."""
        if known is not None:
            return known.config.instructions
        request = received.arrival.request
        return request.instructions if request is not None and row is None else ""

    def _folder(self, received: Received) -> Path:
        settings = self._state.settings
        if settings.cwd is not None:
            return Path(settings.cwd).expanduser()
        where = received.arrival.where
        is_shared = is_shared_conversation(received.key, where, received.arrival.kind, self._state.key_rules)
        whose = f"group-{where.chat}-{where.thread}" if is_shared else received.principal.user
        return Path(settings.workspace).expanduser() / folder_name(where.platform, whose)


def reply_to(received: Received) -> str:
    """In a group, a reply refers to the message that it answers."""
    return received.arrival.message_id if received.arrival.kind == "group" else ""


ATTEMPTS = 3

log = logging.getLogger(__name__)


def is_over(
    policy: ResetPolicy, last_at: float, now: float, wall: Callable[[float], datetime] = datetime.fromtimestamp
) -> bool:
    """Whether a conversation in which something last happened at `last_at` is over. `wall` converts to local time."""
    has_rested = now - last_at >= policy.idle_minutes * 60
    match policy.mode:
        case "none":
            return False
        case "idle":
            return has_rested
        case "daily":
            return _is_of_before(policy.at_hour, wall(last_at), wall(now))
        case "both":
            return has_rested or _is_of_before(policy.at_hour, wall(last_at), wall(now))


def _is_of_before(hour: int, last: datetime, now: datetime) -> bool:
    """The hour has come since."""
    struck = now.replace(hour=hour, minute=0, second=0, microsecond=0)
    if struck > now:
        struck -= timedelta(days=1)
    return last < struck


class SessionResets:
    def __init__(self, state: GatewayState, delivery: Delivery, conversations: Conversations) -> None:
        self._state = state
        self._store = state.host.store
        self._clock = state.host.clock
        self._pool = state.pool
        self._delivery = delivery
        self._conversations = conversations
        self._watched: dict[SessionId, Received] = {}
        """Conversations that will end some time, with the last message in each."""
        self._ended: set[SessionId] = set()
        """Sessions that have ended, but whose chats have not started a new one yet."""
        self._resumed: set[SessionId] = set()
        """Sessions that a person has resumed but not written in yet."""

    def note_resumed(self, session: SessionId) -> None:
        """A person has resumed this session: it is not over, however old it is."""
        if self._state.settings.session_reset.mode != "none":
            self._resumed.add(session)

    async def start_new_if_over(self, session: SessionId, mail: Mail) -> SessionId | None:
        """The chat's new conversation, to which the mail moves, if this one is over; None: this one continues."""
        if self._state.settings.session_reset.mode == "none":
            return None
        received = mail.received
        row = await self._store.sessions.get(session)
        if row is None or session in self._resumed or not self._is_over(row):
            self._resumed.discard(session)
            self._watched[session] = received
            self._ended.discard(session)
            return None
        if not await self._end(session, received):
            return None
        since = datetime.fromtimestamp(row.updated_at).astimezone()
        text = f"(A new conversation begins; the last one paused at {since:%Y-%m-%d %H:%M}. Go back: /resume {row.id})"
        where = str(received.arrival.where)
        notice = Outgoing(
            where, encode_body(OutgoingBody(text)), f"anew:{mail.row.id}", self._clock.now() + EXPIRES_AFTER_S
        )
        await self._store.outbox.add(row.id, [notice])
        self._delivery.wake(where)
        new = new_session_id(self._clock.now())
        await self._store.chats.bind(received.key, new, where)
        self._ended.discard(session)
        return new

    async def sweep(self) -> int:
        """End sessions whose time is over; how many. Their chats start a new one with the next message."""
        ended = 0
        for session, received in tuple(self._watched.items()):
            row = await self._store.sessions.get(session)
            if row is None:
                self._watched.pop(session, None)
            elif self._is_over(row):
                ended += await self._end(session, received)
        return ended

    def _is_over(self, row: Session) -> bool:
        policy = self._state.settings.session_reset
        return row.open_turn is None and is_over(policy, row.updated_at, self._clock.now())

    async def _end(self, session: SessionId, received: Received) -> bool:
        """Only once: marked first, so that messages that arrive meanwhile do not wait for it. False: it is busy."""
        self._watched.pop(session, None)
        if session in self._ended:
            return True
        self._ended.add(session)
        for _ in range(ATTEMPTS):
            try:
                live = await self._conversations.open(session, received)
                await live.catch_up()
                await self._pool.close(session, "session_expired")
            except SessionBusy:
                self._ended.discard(session)
                return False
            except TalariaError as fault:
                log.warning("session %s is over, but could not be ended: %s", session, fault)
            except Exception:  # plugins hear of the end
                log.exception("session %s is over, but could not be ended", session)
            else:
                break
        return True
