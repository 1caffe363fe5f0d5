"""What we put into a room: encrypted where the room is, under a transaction id that makes it one event."""

import nio  # pyright: ignore[reportMissingTypeStubs]

from talaria.platforms.base import AccessLost, Address, ChatMoved, Rejected
from talaria.platforms.matrix import encryption, render
from talaria.platforms.matrix.incoming import NAME
from talaria.platforms.matrix.matrix_client import MatrixClient, answered
from talaria.platforms.matrix.rooms import Rooms

Content = dict[str, object]


class Speaker:
    def __init__(self, client: MatrixClient, rooms: Rooms) -> None:
        self._client = client
        self._rooms = rooms

    async def is_encrypted(self, room: str) -> bool:
        return (await self._rooms.know(room)).encrypted

    async def put(self, room: str, content: Content, txn: str, type_: str = "m.room.message") -> str:
        """The event's id. Raises as a send does."""
        if await self.is_encrypted(room):
            if self._client.olm is None:
                raise Rejected("The Matrix room is encrypted, and nothing is sent there that is not.")
            await encryption.share(self._client, room)
        return await self._sent(room, content, txn, type_)

    async def put_in_clear(self, room: str, content: Content, txn: str) -> str:
        """Also into an encrypted room, if we cannot encrypt."""
        await self._rooms.know(room)
        return await self._sent(room, content, txn, "m.room.message")

    async def _sent(self, room: str, content: Content, txn: str, type_: str) -> str:
        if type_ == "m.room.message":
            content = render.without_previews(content)
        sending = self._client.room_send(room, type_, content, txn, ignore_unverified_devices=True)
        try:
            return (await answered(sending, nio.RoomSendResponse)).event_id
        except AccessLost:
            successor = self._client.rooms[room].replacement_room
            if not successor or successor not in self._client.rooms:
                raise
            to = Address(NAME, successor)
        raise ChatMoved(f"The Matrix room {room} has become {successor}.", to)
