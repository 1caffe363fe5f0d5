"""The rooms that we are in: which are for two, and how we come into new ones."""

import logging
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import quote

import msgspec
import nio  # pyright: ignore[reportMissingTypeStubs]

from talaria.platforms.base import AccessLost, Kit, PlatformFailure, Refused, Rejected, Sender
from talaria.platforms.failures import harmless
from talaria.platforms.matrix import failures
from talaria.platforms.matrix.client import API, Client, answered, read
from talaria.platforms.matrix.incoming import Me, Room
from talaria.platforms.matrix.memory import MAX_INVITATIONS, Invitation, Memory

log = logging.getLogger(__name__)


class Rooms:
    def __init__(self, client: Client, kit: Kit, memory: Memory) -> None:
        self._client = client
        self._kit = kit
        self._memory = memory

    async def load(self) -> None:
        """Those for two that the server has kept for us. Raises `NotTaken`, `Refused`."""
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

    def view(self, room_id: str) -> Room:
        room = self._client.rooms.get(room_id)
        is_for_two = room is not None and len(room.users) <= 2 and self._memory.is_direct(room_id)
        return Room(room_id, "dm" if is_for_two else "group")

    async def describe(self, room_id: str) -> Room:
        return self.view(room_id)

    def me(self, room_id: str) -> Me:
        us = self._client.user_id
        return Me(us, self.name_of(us, room_id))

    def name_of(self, user_id: str, room_id: str) -> str:
        """What somebody is called there."""
        room = self._client.rooms.get(room_id)
        return room.users[user_id].name if room is not None and user_id in room.users else ""

    def note(self, news: nio.Rooms) -> None:
        """Invitations that came, and those that are none any more."""
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
