"""The rooms that we are in: which are direct chats, and how we come into new ones.

A room is a direct chat only while its members are known, and are exactly us and the person who opened it. A room whose
members are not known is a group.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import quote

import msgspec
import nio  # pyright: ignore[reportMissingTypeStubs]

from talaria.platforms.base import AccessLost, ChatKind, Kit, PlatformFailure, Refused, Rejected, Sender
from talaria.platforms.failures import harmless
from talaria.platforms.matrix import failures, history
from talaria.platforms.matrix.incoming import MatrixAccount
from talaria.platforms.matrix.matrix_client import API, MatrixClient, answered, read
from talaria.platforms.matrix.room_memory import MAX_INVITATIONS, Invitation, RoomMemory

MEMBERS_S = 10.0
"""How long the server may take to tell who is in a room."""

log = logging.getLogger(__name__)


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
        for person, rooms in (await self._kept_directs()).items():
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
        if person and await self._known_members(room) == frozenset({self._client.user_id, person}):
            return RoomInfo("dm", person)
        return RoomInfo("group")

    async def kind_for(self, room: str, sender: str) -> ChatKind:
        """What a message of `sender` is said in: a direct chat is one only for the person who opened it."""
        if sender != self._memory.direct_person(room):
            return "group"
        return (await self.describe(room)).kind

    async def _known_members(self, room: str) -> frozenset[str] | None:
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
                raise failures.refusal(status, complaint.errcode, complaint.error, None)
            return msgspec.json.decode(body, type=_Members)
        except msgspec.MsgspecError as fault:
            raise failures.refusal(status, "", "", None) from fault

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
                    self._memory.invited(room, Invitation(event.sender, is_direct))
        for room in [*news.leave, *news.join]:
            self._memory.settled(room)
        for room, joined in news.join.items():
            timeline = cast("history.Timeline", joined.timeline)
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
        self._memory.settled(room)

    async def _kept_directs(self) -> Mapping[str, tuple[str, ...]]:
        try:
            kept = await read(self._client.list_direct_rooms(), nio.DirectRoomsResponse)
            return msgspec.convert(kept.rooms, dict[str, tuple[str, ...]])
        except (Rejected, msgspec.ValidationError):  # there never was one
            return {}

    async def _keep_direct(self, room: str, person: str) -> None:
        """Where other apps of the account look for it, and we, should our own memory be lost."""
        kept = await self._kept_directs()
        directs = {**kept, person: tuple({*kept.get(person, ()), room})}
        path = f"{API}/v3/user/{quote(self._client.user_id, safe='')}/account_data/m.direct"
        await answered(self._put(path, msgspec.json.encode(directs)), bool)

    async def _put(self, path: str, content: bytes) -> bool:
        headers = {**self._client.authorization, "Content-Type": "application/json"}
        async with await self._client.send("PUT", path, content, headers) as answer:
            if answer.status != 200:
                raise harmless(failures.refusal(answer.status, "", "", None))
        return True
