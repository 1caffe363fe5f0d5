"""What reaches us: each answer of the server's long poll becomes a batch, and its token the cursor."""

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator
from typing import Any

import nio  # pyright: ignore[reportMissingTypeStubs]

from talaria.platforms.base import (
    Arrival,
    Batch,
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
from talaria.platforms.matrix import encryption, history, incoming
from talaria.platforms.matrix import matrix_client as wire
from talaria.platforms.matrix.matrix_client import MatrixClient
from talaria.platforms.matrix.room_memory import RoomMemory
from talaria.platforms.matrix.rooms import Rooms
from talaria.platforms.matrix.speaking import Speaker

SYNC_S = 30.0
QUOTE_S = 10.0
MAX_THREADS = 500
MAX_UNREAD = 100
_TIMELINE = 50

log = logging.getLogger(__name__)


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
            await encryption.tend(self._client)
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
        heard: list[Item | None] = [await self._heard(room, event, is_late=True) for room, event in late]
        for room, joined in news.rooms.join.items():
            events = await history.heard(self._client, room, joined.timeline, since, self._kit.clock.now())
            heard += [await self._heard(room, event) for event in events]
        return tuple(item for item in heard if item is not None)

    async def _heard(self, room: str, event: nio.Event, *, is_late: bool = False) -> Arrival | Deleted | None:
        if (deleted := incoming.deleted(event.source, room)) is not None:
            self._unread.pop(deleted.message_id, None)
            return deleted
        read = encryption.readable(self._client, room, event)
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
        event = encryption.readable(self._client, room, found.event)
        if event is None:
            return None
        name = self._rooms.name_of(str(event.source.get("sender", "")), room)
        return incoming.quoted(event.source, self._rooms.me(room), name)

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
            return encryption.UNREADABLE
        return encryption.TURNED_OFF if encryption.IS_INSTALLED else encryption.NOT_INSTALLED

    async def _tell(self, room: str, words: str) -> None:
        if self._memory.told(room) == words:
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
