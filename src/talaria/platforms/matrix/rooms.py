"""The rooms that we are in: which are direct chats, and how we come into new ones.

A room is a direct chat only while its members are known, and are exactly us and the person who opened it. A room whose
members are not known is a group.

What was said while we were away, or between an invitation and our coming: read backwards, within bounds.
What must not be forgotten about rooms: who invited us, which are for two, what was told there. One small file.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeGuard, cast
from urllib.parse import quote

import msgspec
import nio  # pyright: ignore[reportMissingTypeStubs]

from talaria.core.aio import in_thread
from talaria.core.fs import read_bytes, replace_file
from talaria.platforms.base import AccessLost, ChatKind, Kit, PlatformFailure, Refused, Rejected, Sender
from talaria.platforms.http_sessions import resolve_doubt
from talaria.platforms.matrix import matrix_client
from talaria.platforms.matrix.incoming import MatrixAccount
from talaria.platforms.matrix.matrix_client import API, MatrixClient, await_answer, read

MAX_EVENTS = 200
MAX_AGE_S = 24 * 3600.0
_PAGE = 100

log = logging.getLogger(__name__)


class Timeline(Protocol):
    """nio's, with types."""

    events: list[nio.Event]
    limited: bool
    prev_batch: str | None


async def fetch_events(
    client: MatrixClient, room: str, timeline: Timeline, since: str, now: float
) -> Sequence[nio.Event]:
    """The events of a room since then, oldest first; of one that we have entered meanwhile, since we were invited.

    Raises `NotTaken`, `Refused`.
    """
    events = timeline.events
    is_new = any(_has_come(event, client.user_id) for event in events)
    is_whole = not timeline.limited or any(_is_invitation(event, client.user_id) for event in events)
    if timeline.prev_batch and not is_whole:
        earlier = await _before(client, room, timeline.prev_batch, None if is_new else since, now)
        events = [*earlier, *events]
    return _since_invited(events, client.user_id)


async def _before(client: MatrixClient, room: str, start: str, since: str | None, now: float) -> Sequence[nio.Event]:
    found: list[nio.Event] = []  # newest first
    at: str | None = start
    while at and len(found) < MAX_EVENTS:
        try:
            page = await read(client.room_messages(room, at, since, limit=_PAGE), nio.RoomMessagesResponse)
        except AccessLost:
            break
        chunk = cast("list[nio.Event]", page.chunk)
        young = [event for event in chunk if _read_timestamp(event) >= now - MAX_AGE_S]
        found += young
        is_enough = len(young) < len(chunk) or any(_is_invitation(event, client.user_id) for event in young)
        at = None if is_enough or not chunk else page.end
    if at:
        log.warning("more was said in the Matrix room %s than is read after an absence; the oldest is left out", room)
    return found[:MAX_EVENTS][::-1]


def _since_invited(events: Sequence[nio.Event], us: str) -> Sequence[nio.Event]:
    """All of them, if we were invited, or came, before."""
    for at in range(len(events) - 1, -1, -1):
        event = events[at]
        if _is_invitation(event, us) or (_has_come(event, us) and event.prev_membership != "invite"):
            return events[at:]
    return events


def _is_invitation(event: nio.Event, us: str) -> bool:
    return isinstance(event, nio.RoomMemberEvent) and event.state_key == us and event.membership == "invite"


def _has_come(event: nio.Event, us: str) -> TypeGuard[nio.RoomMemberEvent]:
    if not isinstance(event, nio.RoomMemberEvent) or event.state_key != us:
        return False
    return event.membership == "join" and event.prev_membership != "join"


def _read_timestamp(event: nio.Event) -> float:
    return float(getattr(event, "server_timestamp", 0)) / 1000  # some are no events at all


MAX_INVITATIONS = 200
"""Anybody can invite; the oldest are forgotten."""
_MAX_BYTES = 8 << 20


class Invitation(msgspec.Struct, frozen=True):
    sender: str
    is_direct: bool = False


class _Content(msgspec.Struct):
    invitations: dict[str, Invitation] = {}
    directs: dict[str, str] = {}
    """Rooms that somebody opened to speak with us alone, and who."""
    told: dict[str, str] = {}
    """What was told in a room about its encryption, last."""


class RoomMemory:
    def __init__(self, home: Path) -> None:
        self._file = home / "rooms.json"
        self._content = _Content()
        self._is_changed = False

    async def load(self) -> None:
        self._content = await in_thread(self._read)

    async def save(self) -> None:
        """Raises `OSError`."""
        if self._is_changed:
            content = msgspec.json.encode(self._content)
            await in_thread(lambda: replace_file(self._file, content, mode=0o600))
            self._is_changed = False

    @property
    def invitations(self) -> Mapping[str, Invitation]:
        return dict(self._content.invitations)

    def note_invitation(self, room: str, invitation: Invitation) -> None:
        kept = self._content.invitations
        kept.pop(room, None)
        kept[room] = invitation
        for oldest in list(kept)[:-MAX_INVITATIONS]:
            del kept[oldest]
        self._is_changed = True

    def drop_invitation(self, room: str) -> None:
        """The invitation is followed, or is none any more."""
        if self._content.invitations.pop(room, None) is not None:
            self._is_changed = True

    def direct_person(self, room: str) -> str:
        """Who opened it to speak with us alone; empty: nobody did."""
        return self._content.directs.get(room, "")

    def direct(self, room: str, person: str) -> None:
        """Whoever was first stays: what was said there before is theirs."""
        if room not in self._content.directs:
            self._content.directs[room] = person
            self._is_changed = True

    def find_notice(self, room: str) -> str:
        return self._content.told.get(room, "")

    def tell(self, room: str, what: str) -> None:
        if self.find_notice(room) != what:
            self._content.told[room] = what
            self._is_changed = True

    def _read(self) -> _Content:
        try:
            return msgspec.json.decode(read_bytes(self._file, _MAX_BYTES), type=_Content)
        except (OSError, msgspec.MsgspecError):
            return _Content()


MEMBERS_S = 10.0
"""How long the server may take to tell who is in a room."""


class RoomInfo(msgspec.Struct, frozen=True):
    kind: ChatKind
    person: str = ""
    """Of a direct chat: who is in it besides us."""


class _MemberContent(msgspec.Struct, frozen=True):
    membership: str = ""


class _MemberEvent(msgspec.Struct, frozen=True):
    state_key: str = ""
    content: _MemberContent = _MemberContent()


class _Members(msgspec.Struct, frozen=True):
    chunk: tuple[_MemberEvent, ...]


class _Complaint(msgspec.Struct, frozen=True):
    errcode: str = ""
    error: str = ""


class Rooms:
    def __init__(self, client: MatrixClient, kit: Kit, memory: RoomMemory) -> None:
        self._client = client
        self._kit = kit
        self._memory = memory
        self._members: dict[str, frozenset[str]] = {}
        """Who has joined or is invited, of direct chats that were asked about since the last change there."""
        self._changes = 0
        """How often something in `_members` was dropped."""

    async def load(self) -> None:
        """The direct chats that the server has kept for us. Raises `NotTaken`, `Refused`."""
        self._forget(*self._members)
        for person, rooms in (await self._fetch_directs()).items():
            for room in rooms:
                self._memory.direct(room, person)

    async def know(self, room: str) -> nio.MatrixRoom:
        """At least whether it is encrypted. Raises `NotTaken`, `AccessLost`, `Refused`."""
        if room not in self._client.rooms:
            is_encrypted = room in self._client.encrypted_rooms or await self._is_encrypted(room)
            self._client.rooms[room] = nio.MatrixRoom(room, self._client.user_id, is_encrypted)
        return self._client.rooms[room]

    async def _is_encrypted(self, room: str) -> bool:
        asking = self._client.room_get_state_event(room, "m.room.encryption")
        try:
            await read(asking, nio.RoomGetStateEventResponse)
        except Rejected:
            return False
        return True

    async def describe(self, room: str) -> RoomInfo:
        """What is known now; the server is asked who is there if that is not known. Raises `Refused`."""
        person = self._memory.direct_person(room)
        if person and await self._find_members(room) == frozenset({self._client.user_id, person}):
            return RoomInfo("dm", person)
        return RoomInfo("group")

    async def kind_for(self, room: str, sender: str) -> ChatKind:
        """What a message of `sender` is said in: a direct chat is one only for the person who opened it."""
        if sender != self._memory.direct_person(room):
            return "group"
        return (await self.describe(room)).kind

    async def _find_members(self, room: str) -> frozenset[str] | None:
        """Who has joined or is invited; None: the server does not tell."""
        if room in self._members:
            return self._members[room]
        before = self._changes
        try:
            async with asyncio.timeout(MEMBERS_S):
                found = await read(self._ask_members(room), _Members)
        except Refused:
            raise
        except (PlatformFailure, TimeoutError) as fault:
            why = fault or "it took too long"
            log.warning("who is in the Matrix room %s is not known, so it counts as a group: %s", room, why)
            return None
        members = frozenset(one.state_key for one in found.chunk if one.content.membership in ("join", "invite"))
        if before == self._changes:
            self._members[room] = members
        return members

    async def _ask_members(self, room: str) -> _Members:
        path = f"{API}/v3/rooms/{quote(room, safe='')}/members?not_membership=leave"
        async with await self._client.send("GET", path, None, self._client.authorization) as answer:
            body = await answer.read()
            status = answer.status
        try:
            if status != 200:
                complaint = msgspec.json.decode(body, type=_Complaint)
                raise matrix_client.refusal(status, complaint.errcode, complaint.error, None)
            return msgspec.json.decode(body, type=_Members)
        except msgspec.MsgspecError as fault:
            raise matrix_client.refusal(status, "", "", None) from fault

    def _forget(self, *rooms: str) -> None:
        for room in rooms:
            self._members.pop(room, None)
        self._changes += 1

    def me(self, room_id: str) -> MatrixAccount:
        us = self._client.user_id
        return MatrixAccount(us, self.name_of(us, room_id))

    def name_of(self, user_id: str, room_id: str) -> str:
        """What somebody is called there."""
        room = self._client.rooms.get(room_id)
        return room.users[user_id].name if room is not None and user_id in room.users else ""

    def note(self, news: nio.Rooms) -> None:
        """Invitations that came, and those that are none any more; whose members have changed."""
        for room, invited in news.invite.items():
            for event in cast("Any", invited).invite_state:
                if isinstance(event, nio.InviteMemberEvent) and event.state_key == self._client.user_id:
                    is_direct = cast("Any", event).content.get("is_direct") is True
                    known = self._memory.invitations
                    is_new = room not in known and len(known) < MAX_INVITATIONS  # else the log would grow with them
                    if is_new and not self._kit.is_allowed(Sender(event.sender)):
                        log.info("invitation refused: person=matrix:%s room=%s", event.sender, room)
                    self._memory.note_invitation(room, Invitation(event.sender, is_direct))
        for room in [*news.leave, *news.join]:
            self._memory.drop_invitation(room)
        for room, joined in news.join.items():
            timeline = cast("Timeline", joined.timeline)
            events = [*cast("list[nio.Event]", cast("Any", joined).state), *timeline.events]
            # by its type: nio has another class for an event that it finds malformed
            if timeline.limited or any(event.source.get("type") == "m.room.member" for event in events):
                self._forget(room)
        self._forget(*news.leave)

    async def follow_invitations(self) -> None:
        """Of people who are allowed. Others are not answered at all, and remembered: they may be allowed later.

        Raises `Refused`.
        """
        for room, invitation in self._memory.invitations.items():
            if self._kit.is_allowed(Sender(invitation.sender)):
                await self._follow(room, invitation)

    async def _follow(self, room: str, invitation: Invitation) -> None:
        if invitation.is_direct:
            self._memory.direct(room, invitation.sender)
            await self._memory.save()
        try:
            await read(self._client.join(room), nio.JoinResponse)
            if invitation.is_direct:
                await self._keep_direct(room, invitation.sender)
        except Refused:
            raise
        except (AccessLost, Rejected) as fault:
            log.warning("an invitation to the Matrix room %s could not be followed: %s", room, fault)
        except PlatformFailure as fault:
            log.warning("an invitation to the Matrix room %s is followed later: %s", room, fault)
            return
        self._memory.drop_invitation(room)

    async def _fetch_directs(self) -> Mapping[str, tuple[str, ...]]:
        try:
            kept = await read(self._client.list_direct_rooms(), nio.DirectRoomsResponse)
            return msgspec.convert(kept.rooms, dict[str, tuple[str, ...]])
        except (Rejected, msgspec.ValidationError):  # there never was one
            return {}

    async def _keep_direct(self, room: str, person: str) -> None:
        """Where other apps of the account look for it, and we, should our own memory be lost."""
        kept = await self._fetch_directs()
        directs = {**kept, person: tuple({*kept.get(person, ()), room})}
        path = f"{API}/v3/user/{quote(self._client.user_id, safe='')}/account_data/m.direct"
        await await_answer(self._put(path, msgspec.json.encode(directs)), bool)

    async def _put(self, path: str, content: bytes) -> bool:
        headers = {**self._client.authorization, "Content-Type": "application/json"}
        async with await self._client.send("PUT", path, content, headers) as answer:
            if answer.status != 200:
                raise resolve_doubt(matrix_client.refusal(answer.status, "", "", None))
        return True
