"""What reaches us: each answer of the server's long poll becomes a batch, and its token the cursor.

Encrypted rooms: our keys are tended between two syncs, shared before a message, and others' used to read theirs.

A device is trusted when it is first seen; nio refuses one whose keys change later. Who is in a room may read it.
What we put into a room: encrypted where the room is, under a transaction id that makes it one event.
"""

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, cast

import nio  # pyright: ignore[reportMissingTypeStubs]
from nio.crypto import ENCRYPTION_ENABLED  # pyright: ignore[reportMissingTypeStubs]

from talaria.platforms.base import (
    AccessLost,
    Address,
    Arrival,
    Batch,
    ChatMoved,
    Deleted,
    Item,
    Kit,
    NotTaken,
    PlatformFailure,
    Quoted,
    Refused,
    Rejected,
    Sender,
)
from talaria.platforms.matrix import incoming, render, rooms
from talaria.platforms.matrix import matrix_client as wire
from talaria.platforms.matrix.incoming import NAME
from talaria.platforms.matrix.matrix_client import MatrixClient, await_answer, read
from talaria.platforms.matrix.rooms import RoomMemory, Rooms

IS_INSTALLED = ENCRYPTION_ENABLED
NOT_INSTALLED = (
    "This room is encrypted, and I cannot read encrypted messages: the package for it is not installed where I run "
    "(pip install 'talaria-agent[matrix-e2e]'). Until it is, talk to me in a room without encryption."
)
TURNED_OFF = (
    "This room is encrypted, and I do not read encrypted messages: encryption is off in my settings "
    "(gateway.platforms.matrix.encryption). Talk to me in a room without encryption."
)
UNREADABLE = (
    "I could not read an encrypted message here: its key has not reached me. Say it once more; if that does not help, "
    "turn off the option of your app that encrypts to verified devices only."
)

log = logging.getLogger(__name__)


async def tend(client: MatrixClient) -> None:
    """What fails is due again at the next call. Raises `Refused`."""
    if client.olm is None:
        return
    if client.should_upload_keys:
        await _read_or_warn(client.keys_upload(), nio.KeysUploadResponse)
    if client.should_query_keys:
        await _read_or_warn(client.keys_query(), nio.KeysQueryResponse)
    if client.should_claim_keys:
        await _read_or_warn(client.keys_claim(dict(client.get_users_for_key_claiming())), nio.KeysClaimResponse)
    for message in list(client.outgoing_to_device_messages):
        await _read_or_warn(client.to_device(message), nio.ToDeviceResponse)


async def _read_or_warn(work: Awaitable[object], kind: type[object]) -> None:
    try:
        await read(work, kind)
    except PlatformFailure as fault:
        log.warning("the keys for encrypted Matrix rooms: %s", fault)


async def share(client: MatrixClient, room_id: str) -> None:
    """Everybody in the room can read what we say next. Raises `NotTaken`, `AccessLost`, `Refused`."""
    room = client.rooms[room_id]
    if not room.members_synced:
        await read(client.joined_members(room_id), nio.JoinedMembersResponse)
    if client.should_query_keys:
        await read(client.keys_query(), nio.KeysQueryResponse)
    while room_id in client.sharing_session:
        await client.sharing_session[room_id].wait()
    if client.olm is not None and client.olm.should_share_group_session(room_id):
        shared = await read(
            client.share_group_session(room_id, ignore_unverified_devices=True), nio.ShareGroupSessionResponse
        )
        if _reachable(client, room) - cast("Any", shared).users_shared_with:
            client.invalidate_outbound_session(room_id)
            raise NotTaken("The keys of an encrypted Matrix room could not be shared with everybody in it.")


def _reachable(client: MatrixClient, room: nio.MatrixRoom) -> set[tuple[str, str]]:
    """Devices in the room to which there is a secure channel."""
    return {
        (user, device.id)
        for user in room.users
        for device in client.device_store.active_user_devices(user)
        if device.id != client.device_id and client.olm is not None and client.olm.session_store.get(device.curve25519)
    }


def readable(client: MatrixClient, room: str, event: nio.Event) -> nio.Event | None:
    """The event itself, if it was not encrypted or can be read; None if it cannot be read (yet)."""
    if isinstance(event, nio.RedactedEvent):
        return event
    if isinstance(event, nio.MegolmEvent):
        event.room_id = room
        try:
            event = cast("nio.Event", client.decrypt_event(event))
        except (nio.EncryptionError, nio.LocalProtocolError, AssertionError):
            return None
    if not event.decrypted:
        return None if event.source.get("type") == "m.room.encrypted" else event
    return event if _is_genuine(client, event) else None


def _is_genuine(client: MatrixClient, event: nio.Event) -> bool:
    """Whether the key that opened it belongs to a device of whoever is said to have sent it."""
    return event.sender == client.user_id or (
        client.device_store.device_from_sender_key(event.sender, event.sender_key or "") is not None
    )


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
            await share(self._client, room)
        return await self._send(room, content, txn, type_)

    async def put_in_clear(self, room: str, content: Content, txn: str) -> str:
        """Also into an encrypted room, if we cannot encrypt."""
        await self._rooms.know(room)
        return await self._send(room, content, txn, "m.room.message")

    async def _send(self, room: str, content: Content, txn: str, type_: str) -> str:
        if type_ == "m.room.message":
            content = render.without_previews(content)
        sending = self._client.room_send(room, type_, content, txn, ignore_unverified_devices=True)
        try:
            return (await await_answer(sending, nio.RoomSendResponse)).event_id
        except AccessLost:
            successor = self._client.rooms[room].replacement_room
            if not successor or successor not in self._client.rooms:
                raise
            to = Address(NAME, successor)
        raise ChatMoved(f"The Matrix room {room} has become {successor}.", to)


SYNC_S = 30.0
QUOTE_S = 10.0
MAX_THREADS = 500
MAX_UNREAD = 100
_TIMELINE = 50


class MatrixListener:
    def __init__(self, client: MatrixClient, kit: Kit, memory: RoomMemory, rooms: Rooms, speaker: Speaker) -> None:
        self._client = client
        self._kit = kit
        self._memory = memory
        self._rooms = rooms
        self._speaker = speaker
        self._threads: OrderedDict[str, bool] = OrderedDict()
        """Whether we began them."""
        self._unread: OrderedDict[str, tuple[str, nio.Event]] = OrderedDict()
        """Encrypted messages whose keys may still come, by id, with their rooms."""

    async def batches(self, cursor: str | None) -> AsyncGenerator[Batch]:
        """Raises `NotTaken`, `Refused`."""
        await self._rooms.load()
        self._client.has_stumbled = True  # as yet nothing is known of the rooms
        while True:
            news = await self._news(cursor)
            if news is None:
                cursor = None
                continue
            self._rooms.note(news.rooms)
            await tend(self._client)
            items = () if cursor is None else await self._items(news, cursor)
            await self._rooms.follow_invitations()
            await self._memory.save()
            cursor = news.next_batch
            yield Batch(items, cursor)

    async def _news(self, cursor: str | None) -> nio.SyncResponse | None:
        """None: the server does not know the cursor."""
        wants_all, self._client.has_stumbled = self._client.has_stumbled, False
        self._client.next_batch = ""  # nio drops an answer whose token it knows, and with it the state of the rooms
        asking = self._client.sync(
            timeout=int(SYNC_S * 1000),
            sync_filter=_filter(_TIMELINE if cursor else 1),
            since=cursor,
            full_state=wants_all,
        )
        try:
            return await wire.read(asking, nio.SyncResponse)
        except Rejected as fault:
            if cursor is None:
                raise NotTaken(str(fault)) from fault
            log.warning("the Matrix server does not know how far we had read (%s): we go on from now", fault)
            self._client.has_stumbled = True
            return None

    async def _items(self, news: nio.SyncResponse, since: str) -> tuple[Item, ...]:
        late = [self._unread.pop(key) for key in list(self._unread)]
        heard: list[Item | None] = [await self._read_event(room, event, is_late=True) for room, event in late]
        for room, joined in news.rooms.join.items():
            events = await rooms.fetch_events(self._client, room, joined.timeline, since, self._kit.clock.now())
            heard += [await self._read_event(room, event) for event in events]
        return tuple(item for item in heard if item is not None)

    async def _read_event(self, room: str, event: nio.Event, *, is_late: bool = False) -> Arrival | Deleted | None:
        if (deleted := incoming.read_deletion(event.source, room)) is not None:
            self._unread.pop(deleted.message_id, None)
            return deleted
        read = readable(self._client, room, event)
        if read is None:
            await self._miss(room, event, is_late=is_late)
            return None
        me = self._rooms.me(room)
        said = incoming.message(read.source, me)
        if said is None:
            return None
        if read.decrypted:
            self._memory.tell(room, "")  # the next that cannot be read is told of again
        is_wanted = self._kit.is_allowed(Sender(said.sender))  # for others nothing is looked up
        return incoming.arrival(
            said,
            incoming.JoinedRoom(room, await self._rooms.kind_for(room, said.sender)),
            me,
            name=self._rooms.name_of(said.sender, room),
            quoted=await self._quote(room, said.reply_to) if is_wanted and said.reply_to else None,
            is_our_thread=is_wanted and said.thread != "" and await self._is_ours(room, said.thread),
        )

    async def _is_ours(self, room: str, thread: str) -> bool:
        if thread not in self._threads:
            root = await self._quote(room, thread)
            if root is None:
                return False
            self._threads[thread] = root.is_ours
            while len(self._threads) > MAX_THREADS:
                self._threads.popitem(last=False)
        return self._threads[thread]

    async def _quote(self, room: str, event_id: str) -> Quoted | None:
        asking = asyncio.wait_for(self._client.room_get_event(room, event_id), QUOTE_S)
        try:
            found = await wire.read(asking, nio.RoomGetEventResponse)
        except Refused:
            raise
        except PlatformFailure:
            return None
        event = readable(self._client, room, found.event)
        if event is None:
            return None
        name = self._rooms.name_of(str(event.source.get("sender", "")), room)
        return incoming.read_quote(event.source, self._rooms.me(room), name)

    async def _miss(self, room: str, event: nio.Event, *, is_late: bool) -> None:
        """What cannot be read is tried again later, and is told of in the room, once."""
        sender = str(event.source.get("sender", ""))
        if sender == self._client.user_id or not self._kit.is_allowed(Sender(sender)):
            return
        self._unread[str(event.source.get("event_id", ""))] = (room, event)
        while len(self._unread) > MAX_UNREAD:
            self._unread.popitem(last=False)
        if not is_late:
            await self._tell(room, self._why())

    def _why(self) -> str:
        if self._client.olm is not None:
            return UNREADABLE
        return TURNED_OFF if IS_INSTALLED else NOT_INSTALLED

    async def _tell(self, room: str, words: str) -> None:
        if self._memory.find_notice(room) == words:
            return
        log.warning("an encrypted message in the Matrix room %s cannot be read; that is told there: %s", room, words)
        content: dict[str, object] = {"msgtype": "m.notice", "body": words, "m.mentions": {}}
        put = self._speaker.put_in_clear if self._client.olm is None else self._speaker.put
        try:
            await put(room, content, f"notice.{secrets.token_hex(8)}")
        except Refused:
            raise
        except PlatformFailure as fault:
            log.warning("nothing could be told in the Matrix room %s: %s", room, fault)
            return
        self._memory.tell(room, words)


def _filter(limit: int) -> dict[str, Any]:
    nothing: dict[str, Any] = {"types": []}
    return {"presence": nothing, "room": {"timeline": {"limit": limit}, "ephemeral": nothing}}
