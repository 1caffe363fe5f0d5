"""Our rooms: which are direct chats, what was said while we were offline, and how we join new ones.

A room is a direct chat only while its members are known to be exactly us and the person who opened it. A room whose
members are not known is a group.

One small file keeps what must not be forgotten: pending invitations, direct chats, and the notices that we sent.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeGuard, cast
from urllib.parse import quote

import msgspec
import nio  # pyright: ignore[reportMissingTypeStubs]

from talaria.core.aio import in_thread
from talaria.core.fs import read_bytes, replace_file
from talaria.platforms.base import AccessLost, ChatKind, Kit, PlatformFailure, Refused, Rejected, Sender
from talaria.platforms.matrix.matrix_client import MatrixClient, read
from talaria.platforms.matrix.room_events import MatrixAccount

MAX_EVENTS = 200
MAX_AGE_S = 24 * 3600.0
MAX_INVITATIONS = 200
"""Anybody can invite us; the oldest invitations are forgotten."""
MEMBERS_S = 10.0
"""How long the server may take to list the members of a room."""
_PAGE = 100
_MAX_MEMORY_BYTES = 8 << 20

log = logging.getLogger(__name__)


class Timeline(Protocol):
    """nio's, with types."""

    events: list[nio.Event]
    limited: bool
    prev_batch: str | None


async def fetch_events(
    client: MatrixClient, room: str, timeline: Timeline, since: str, now: float
) -> Sequence[nio.Event]:
    """The events of a room after `since`, oldest first; if we joined the room since then, those after the invitation.

    Raises `NotTaken`, `Refused`.
    """
    us = client.user_id
    events: Sequence[nio.Event] = timeline.events
    is_new = any(_is_our_join(event, us) for event in events)
    is_whole = not timeline.limited or any(_is_invitation(event, us) for event in events)
    if timeline.prev_batch and not is_whole:
        earlier = await _fetch_earlier(client, room, timeline.prev_batch, None if is_new else since, now)
        events = [*earlier, *events]
    for at in range(len(events) - 1, -1, -1):
        event = events[at]
        if _is_invitation(event, us) or (_is_our_join(event, us) and event.prev_membership != "invite"):
            return events[at:]
    return events


async def _fetch_earlier(
    client: MatrixClient, room: str, start: str, since: str | None, now: float
) -> Sequence[nio.Event]:
    found: list[nio.Event] = []  # newest first
    at: str | None = start
    while at and len(found) < MAX_EVENTS:
        try:
            page = await read(client.room_messages(room, at, since, limit=_PAGE), nio.RoomMessagesResponse)
        except AccessLost:
            break
        chunk = cast("list[nio.Event]", page.chunk)
        oldest_ms = (now - MAX_AGE_S) * 1000
        young = [event for event in chunk if float(getattr(event, "server_timestamp", 0)) >= oldest_ms]
        found += young
        is_enough = len(young) < len(chunk) or any(_is_invitation(event, client.user_id) for event in young)
        at = None if is_enough or not chunk else page.end
    if at:
        log.warning("the Matrix room %s has more missed messages than are read; the oldest are left out", room)
    return found[:MAX_EVENTS][::-1]


def _is_invitation(event: nio.Event, us: str) -> bool:
    return isinstance(event, nio.RoomMemberEvent) and event.state_key == us and event.membership == "invite"


def _is_our_join(event: nio.Event, us: str) -> TypeGuard[nio.RoomMemberEvent]:
    if not isinstance(event, nio.RoomMemberEvent) or event.state_key != us:
        return False
    return event.membership == "join" and event.prev_membership != "join"


class Invitation(msgspec.Struct, frozen=True):
    sender: str
    is_direct: bool = False


class _Content(msgspec.Struct):
    invitations: dict[str, Invitation] = {}
    directs: dict[str, str] = {}
    """Direct chats, and who opened each."""
    told: dict[str, str] = {}
    """The last notice about encryption that we sent to each room."""


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
        """The invitation was accepted or withdrawn."""
        if self._content.invitations.pop(room, None) is not None:
            self._is_changed = True

    def direct_person(self, room: str) -> str:
        """Who opened the room as a direct chat; empty if nobody did."""
        return self._content.directs.get(room, "")

    def note_direct(self, room: str, person: str) -> None:
        """The first person stays, because what was said there before is theirs."""
        if room not in self._content.directs:
            self._content.directs[room] = person
            self._is_changed = True

    def find_notice(self, room: str) -> str:
        return self._content.told.get(room, "")

    def note_notice(self, room: str, notice: str) -> None:
        if self.find_notice(room) != notice:
            self._content.told[room] = notice
            self._is_changed = True

    def _read(self) -> _Content:
        try:
            return msgspec.json.decode(read_bytes(self._file, _MAX_MEMORY_BYTES), type=_Content)
        except (OSError, msgspec.MsgspecError):
            return _Content()


class RoomInfo(msgspec.Struct, frozen=True):
    kind: ChatKind
    person: str = ""
    """In a direct chat: the other person."""


class _MemberContent(msgspec.Struct, frozen=True):
    membership: str = ""


class _MemberEvent(msgspec.Struct, frozen=True):
    state_key: str = ""
    content: _MemberContent = _MemberContent()


class _Members(msgspec.Struct, frozen=True):
    chunk: tuple[_MemberEvent, ...]


class Rooms:
    def __init__(self, client: MatrixClient, kit: Kit, memory: RoomMemory) -> None:
        self._client = client
        self._kit = kit
        self._memory = memory
        self._members: dict[str, frozenset[str]] = {}
        """The joined and invited members of direct chats, until the next change there."""
        self._changes = 0
        """How often entries of `_members` were dropped."""

    async def load(self) -> None:
        """Loads the direct chats from our account data. Raises `NotTaken`, `Refused`."""
        self._forget(*self._members)
        for person, rooms in (await self._fetch_directs()).items():
            for room in rooms:
                self._memory.note_direct(room, person)

    async def get(self, room: str) -> nio.MatrixRoom:
        """A room of which at least `encrypted` is known. Raises `NotTaken`, `AccessLost`, `Refused`."""
        if room not in self._client.rooms:
            is_encrypted = room in self._client.encrypted_rooms
            if not is_encrypted:
                with suppress(Rejected):
                    asking = self._client.room_get_state_event(room, "m.room.encryption")
                    await read(asking, nio.RoomGetStateEventResponse)
                    is_encrypted = True
            self._client.rooms[room] = nio.MatrixRoom(room, self._client.user_id, is_encrypted)
        return self._client.rooms[room]

    async def describe(self, room: str) -> RoomInfo:
        """Asks the server for the members if they are not known. Raises `Refused`."""
        person = self._memory.direct_person(room)
        if person and await self._find_members(room) == frozenset({self._client.user_id, person}):
            return RoomInfo("dm", person)
        return RoomInfo("group")

    async def kind_for(self, room: str, sender: str) -> ChatKind:
        """The kind of chat for a message from `sender`: a direct chat is one only for the person who opened it."""
        if sender != self._memory.direct_person(room):
            return "group"
        return (await self.describe(room)).kind

    async def _find_members(self, room: str) -> frozenset[str] | None:
        """The joined and invited members; None if the server does not list them."""
        if room in self._members:
            return self._members[room]
        before = self._changes
        try:
            async with asyncio.timeout(MEMBERS_S):
                path = f"/v3/rooms/{quote(room, safe='')}/members?not_membership=leave"
                found = msgspec.json.decode(await self._client.request("GET", path), type=_Members)
        except Refused:
            raise
        except (PlatformFailure, TimeoutError, msgspec.MsgspecError) as fault:
            why = str(fault) or "it took too long"
            log.warning("the members of the Matrix room %s are not known, so it counts as a group: %s", room, why)
            return None
        members = frozenset(one.state_key for one in found.chunk if one.content.membership in ("join", "invite"))
        if before == self._changes:
            self._members[room] = members
        return members

    def _forget(self, *rooms: str) -> None:
        for room in rooms:
            self._members.pop(room, None)
        self._changes += 1

    def me(self, room_id: str) -> MatrixAccount:
        us = self._client.user_id
        return MatrixAccount(us, self.name_of(us, room_id))

    def name_of(self, user_id: str, room_id: str) -> str:
        """The person's display name in the room."""
        room = self._client.rooms.get(room_id)
        return room.users[user_id].name if room is not None and user_id in room.users else ""

    def apply(self, news: nio.Rooms) -> None:
        """Notes new and withdrawn invitations, and forgets the members of rooms where they changed."""
        for room, invited in news.invite.items():
            for event in cast("Any", invited).invite_state:
                if isinstance(event, nio.InviteMemberEvent) and event.state_key == self._client.user_id:
                    is_direct = cast("Any", event).content.get("is_direct") is True
                    known = self._memory.invitations
                    is_new = room not in known and len(known) < MAX_INVITATIONS  # else strangers could fill the log
                    if is_new and not self._kit.is_allowed(Sender(event.sender)):
                        log.info("invitation refused: person=matrix:%s room=%s", event.sender, room)
                    self._memory.note_invitation(room, Invitation(event.sender, is_direct))
        for room in [*news.leave, *news.join]:
            self._memory.drop_invitation(room)
        for room, joined in news.join.items():
            timeline = cast("Timeline", joined.timeline)
            events = [*cast("list[nio.Event]", cast("Any", joined).state), *timeline.events]
            # by type, because nio has another class for events that it finds malformed
            if timeline.limited or any(event.source.get("type") == "m.room.member" for event in events):
                self._forget(room)
        self._forget(*news.leave)

    async def follow_invitations(self) -> None:
        """Joins the rooms that allowed people invited us to. Other invitations are only remembered: their senders
        may be allowed later. Raises `Refused`.
        """
        for room, invitation in self._memory.invitations.items():
            if not self._kit.is_allowed(Sender(invitation.sender)):
                continue
            if invitation.is_direct:
                self._memory.note_direct(room, invitation.sender)
                await self._memory.save()
            try:
                await read(self._client.join(room), nio.JoinResponse)
                if invitation.is_direct:  # in our account data, for other apps, and in case our own file is lost
                    kept = await self._fetch_directs()
                    rooms = tuple({*kept.get(invitation.sender, ()), room})
                    path = f"/v3/user/{quote(self._client.user_id, safe='')}/account_data/m.direct"
                    directs = msgspec.json.encode({**kept, invitation.sender: rooms})
                    await self._client.request("PUT", path, directs)
            except Refused:
                raise
            except (AccessLost, Rejected) as fault:
                log.warning("the Matrix room %s could not be joined: %s", room, fault)
            except PlatformFailure as fault:
                log.warning("the Matrix room %s is joined later: %s", room, fault)
                continue
            self._memory.drop_invitation(room)

    async def _fetch_directs(self) -> Mapping[str, tuple[str, ...]]:
        try:
            kept = await read(self._client.list_direct_rooms(), nio.DirectRoomsResponse)
            return msgspec.convert(kept.rooms, dict[str, tuple[str, ...]])
        except (Rejected, msgspec.ValidationError):  # there are none
            return {}
