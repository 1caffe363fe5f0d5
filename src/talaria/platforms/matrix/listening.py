"""Syncing, encryption and sending. Each sync response becomes a batch, and its token the cursor.

Encryption: our keys are maintained between two syncs and shared before a message is sent. A device is trusted when it
is first seen; nio refuses one whose keys change later. Every member of a room may read it. What we send to a room is
encrypted if the room is; its transaction id makes repeated requests one event.
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
from talaria.platforms.matrix import room_events, rooms
from talaria.platforms.matrix.matrix_client import MatrixClient, await_answer, read
from talaria.platforms.matrix.room_events import NAME
from talaria.platforms.matrix.rooms import RoomMemory, Rooms

NOT_INSTALLED = (
    "This room is encrypted, and I cannot read encrypted messages: the package for that is not installed where I run "
    "(pip install 'talaria-agent[matrix-e2e]'). Until then, talk to me in a room without encryption."
)
TURNED_OFF = (
    "This room is encrypted, and I do not read encrypted messages: encryption is off in my settings "
    "(gateway.platforms.matrix.encryption). Talk to me in a room without encryption."
)
UNREADABLE = (
    "I could not read an encrypted message here: its key has not reached me. Please send it again. If that does not "
    "help, turn off the option in your app that encrypts to verified devices only."
)

log = logging.getLogger(__name__)


async def maintain_keys(client: MatrixClient) -> None:
    """What fails is tried again at the next call."""
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
        log.warning("the keys for encrypted Matrix rooms could not be updated: %s", fault)


async def share_keys(client: MatrixClient, room_id: str) -> None:
    """Lets everybody in the room read our next message. Raises `NotTaken`, `AccessLost`, `Refused`."""
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
        reachable = {  # devices in the room that we have a secure channel to
            (user, device.id)
            for user in room.users
            for device in client.device_store.active_user_devices(user)
            if device.id != client.device_id and client.olm.session_store.get(device.curve25519)
        }
        if reachable - cast("Any", shared).users_shared_with:
            client.invalidate_outbound_session(room_id)
            raise NotTaken("The keys of an encrypted Matrix room could not be shared with everybody in it.")


def decrypt(client: MatrixClient, room: str, event: nio.Event) -> nio.Event | None:
    """The event in plain text; None if it cannot be decrypted (yet)."""
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
    # the key must belong to a device of the person who is named as the sender
    if event.sender == client.user_id:
        return event
    device = client.device_store.device_from_sender_key(event.sender, event.sender_key or "")
    return event if device is not None else None


Content = dict[str, object]


class RoomSender:
    def __init__(self, client: MatrixClient, rooms: Rooms) -> None:
        self._client = client
        self._rooms = rooms

    async def is_encrypted(self, room: str) -> bool:
        return (await self._rooms.get(room)).encrypted

    async def send(self, room: str, content: Content, txn: str, type_: str = "m.room.message") -> str:
        """Returns the event's id. Raises like `Platform.send`."""
        if await self.is_encrypted(room):
            if self._client.olm is None:
                raise Rejected("The Matrix room is encrypted, and we cannot encrypt.")
            await share_keys(self._client, room)
        return await self._send(room, content, txn, type_)

    async def send_in_clear(self, room: str, content: Content, txn: str) -> str:
        """Sends in plain text, even to an encrypted room."""
        await self._rooms.get(room)
        return await self._send(room, content, txn, "m.room.message")

    async def _send(self, room: str, content: Content, txn: str, type_: str) -> str:
        if type_ == "m.room.message":
            content = room_events.without_previews(content)
        sending = self._client.room_send(room, type_, content, txn, ignore_unverified_devices=True)
        try:
            return (await await_answer(sending, nio.RoomSendResponse)).event_id
        except AccessLost:
            successor = self._client.rooms[room].replacement_room
            if not successor or successor not in self._client.rooms:
                raise
        raise ChatMoved(f"The Matrix room {room} has become {successor}.", Address(NAME, successor))


SYNC_S = 30.0
QUOTE_S = 10.0
MAX_THREADS = 500
MAX_UNREAD = 100
_TIMELINE = 50


class MatrixListener:
    def __init__(self, client: MatrixClient, kit: Kit, memory: RoomMemory, rooms: Rooms, sender: RoomSender) -> None:
        self._client = client
        self._kit = kit
        self._memory = memory
        self._rooms = rooms
        self._sender = sender
        self._threads: OrderedDict[str, bool] = OrderedDict()
        """Whether we started each thread."""
        self._unread: OrderedDict[str, tuple[str, nio.Event]] = OrderedDict()
        """Encrypted messages whose keys may still arrive: by id, with their rooms."""

    async def batches(self, cursor: str | None) -> AsyncGenerator[Batch]:
        """Raises `NotTaken`, `Refused`."""
        await self._rooms.load()
        self._client.needs_full_state = True
        while True:
            news = await self._sync(cursor)
            if news is None:
                cursor = None
                continue
            self._rooms.apply(news.rooms)
            await maintain_keys(self._client)
            found: list[Item | None] = []
            if cursor is not None:
                late = [self._unread.pop(key) for key in list(self._unread)]
                found += [await self._read_event(room, event, is_late=True) for room, event in late]
                now = self._kit.clock.now()
                for room, joined in news.rooms.join.items():
                    events = await rooms.fetch_events(self._client, room, joined.timeline, cursor, now)
                    found += [await self._read_event(room, event) for event in events]
            items = tuple(item for item in found if item is not None)
            await self._rooms.follow_invitations()
            await self._memory.save()
            cursor = news.next_batch
            yield Batch(items, cursor)

    async def _sync(self, cursor: str | None) -> nio.SyncResponse | None:
        """None if the server does not know the cursor."""
        wants_all, self._client.needs_full_state = self._client.needs_full_state, False
        self._client.next_batch = ""  # nio drops a response with a token that it knows, and so the rooms' state
        nothing: dict[str, object] = {"types": []}
        timeline = {"limit": _TIMELINE if cursor else 1}
        asking = self._client.sync(
            timeout=int(SYNC_S * 1000),
            sync_filter={"presence": nothing, "room": {"timeline": timeline, "ephemeral": nothing}},
            since=cursor,
            full_state=wants_all,
        )
        try:
            return await read(asking, nio.SyncResponse)
        except Rejected as fault:
            if cursor is None:
                raise NotTaken(str(fault)) from fault
            log.warning("the Matrix server does not know how far we had read (%s): we continue from now", fault)
            self._client.needs_full_state = True
            return None

    async def _read_event(self, room: str, event: nio.Event, *, is_late: bool = False) -> Arrival | Deleted | None:
        if (deleted := room_events.read_deletion(event.source, room)) is not None:
            self._unread.pop(deleted.message_id, None)
            return deleted
        plain = decrypt(self._client, room, event)
        if plain is None:
            await self._note_unread(room, event, is_late=is_late)
            return None
        me = self._rooms.me(room)
        said = room_events.message(plain.source, me)
        if said is None:
            return None
        if plain.decrypted:
            self._memory.note_notice(room, "")  # the next unreadable message causes a new notice
        is_wanted = self._kit.is_allowed(Sender(said.sender))  # nothing is looked up for strangers
        return room_events.arrival(
            said,
            room_events.JoinedRoom(room, await self._rooms.kind_for(room, said.sender)),
            me,
            name=self._rooms.name_of(said.sender, room),
            quoted=await self._quote(room, said.reply_to) if is_wanted and said.reply_to else None,
            is_our_thread=is_wanted and said.thread != "" and await self._is_our_thread(room, said.thread),
        )

    async def _is_our_thread(self, room: str, thread: str) -> bool:
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
            found = await read(asking, nio.RoomGetEventResponse)
        except Refused:
            raise
        except PlatformFailure:
            return None
        event = decrypt(self._client, room, found.event)
        if event is None:
            return None
        name = self._rooms.name_of(str(event.source.get("sender", "")), room)
        return room_events.read_quote(event.source, self._rooms.me(room), name)

    async def _note_unread(self, room: str, event: nio.Event, *, is_late: bool) -> None:
        """Tries the event again later, and tells the room once that it cannot be read."""
        sender = str(event.source.get("sender", ""))
        if sender == self._client.user_id or not self._kit.is_allowed(Sender(sender)):
            return
        self._unread[str(event.source.get("event_id", ""))] = (room, event)
        while len(self._unread) > MAX_UNREAD:
            self._unread.popitem(last=False)
        if self._client.olm is not None:
            notice, send = UNREADABLE, self._sender.send
        else:
            notice, send = TURNED_OFF if ENCRYPTION_ENABLED else NOT_INSTALLED, self._sender.send_in_clear
        if is_late or self._memory.find_notice(room) == notice:
            return
        log.warning("an encrypted message in the Matrix room %s cannot be read; we send: %s", room, notice)
        content: Content = {"msgtype": "m.notice", "body": notice, "m.mentions": {}}
        try:
            await send(room, content, f"notice.{secrets.token_hex(8)}")
        except Refused:
            raise
        except PlatformFailure as fault:
            log.warning("the notice could not be sent to the Matrix room %s: %s", room, fault)
            return
        self._memory.note_notice(room, notice)
