"""Matrix as the gateway sees it."""

import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import nio  # pyright: ignore[reportMissingTypeStubs]

from talaria.platforms.base import (
    AccessLost,
    Address,
    Attachment,
    Batch,
    Capabilities,
    ChatInfo,
    Kit,
    NotTaken,
    Outbound,
    Press,
    Refused,
    Rejected,
    SentId,
)
from talaria.platforms.matrix import listening, matrix_client, media, render
from talaria.platforms.matrix.config import MatrixSettings, check
from talaria.platforms.matrix.incoming import NAME
from talaria.platforms.matrix.listening import Content, MatrixListener, Speaker
from talaria.platforms.matrix.matrix_client import MatrixClient, await_answer, close, log_in, make_client, read
from talaria.platforms.matrix.rooms import RoomMemory, Rooms

TYPING_S = 8.0
DEDUP_S = 23 * 3600.0
"""Synapse forgets transaction ids after a day."""
MAX_EDITED = 500
CAPABILITIES = Capabilities(
    max_chars=render.MAX_CHARS,
    length=render.length,
    can_edit=True,
    can_delete=True,
    can_type=True,
    has_threads=True,
    dedup_s=DEDUP_S,
    edit_every_s=3.0,  # servers usually take ten messages at once, and then one in five seconds
)


@asynccontextmanager
async def open(settings: MatrixSettings, kit: Kit) -> AsyncGenerator["Matrix"]:  # noqa: A001  (the port calls it so)
    """Raises `BadConfig`, `NotTaken`, `Refused`."""
    check(settings)
    kit.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    client = await make_client(settings, kit.home)
    try:
        await log_in(client, settings, kit.home)
        await listening.tend(client)
        memory = RoomMemory(kit.home)
        await memory.load()
        yield Matrix(client, settings, kit, memory)
    finally:
        await close(client)


class Matrix:
    def __init__(self, client: MatrixClient, settings: MatrixSettings, kit: Kit, memory: RoomMemory) -> None:
        self.name = NAME
        self.account = client.user_id
        self.capabilities = CAPABILITIES
        self._client = client
        self._settings = settings
        self._rooms = rooms = Rooms(client, kit, memory)
        self._speaker = Speaker(client, rooms)
        self._listener = MatrixListener(client, kit, memory, rooms, self._speaker)
        self._edits: OrderedDict[str, tuple[int, str]] = OrderedDict()
        """How often we have changed a message, and how it reads now."""
        self._nonce = secrets.token_hex(4)

    async def receive(self, cursor: str | None) -> AsyncGenerator[Batch]:
        try:
            with self._lasting():
                async with aclosing(self._listener.batches(cursor)) as batches:
                    async for batch in batches:
                        yield batch
        except AccessLost as fault:  # not of a room: of everything
            raise Refused(str(fault)) from fault
        except Rejected as fault:
            raise NotTaken(str(fault)) from fault
        except OSError as fault:
            raise NotTaken(f"What must be remembered of Matrix rooms cannot be written: {fault.strerror}.") from fault

    async def acknowledge(self, batch: Batch) -> None:
        """The server learns it by our next question."""

    async def send(self, message: Outbound) -> SentId:
        room = message.where.chat
        with self._lasting():
            content: Content = {"msgtype": "m.text", **render.content(message.text)}
            if message.file is not None:
                is_encrypted = await self._speaker.is_encrypted(room)
                content |= await media.upload_file(self._client, message.file, is_encrypted=is_encrypted)
                content["body"] = message.text or message.file.name
            relation = _relation(message)
            content |= {"m.relates_to": relation} if relation else {}
            return SentId(await self._speaker.put(room, content, message.key))

    async def edit(self, sent: SentId, message: Outbound) -> None:
        count, reads = self._edits.get(sent, (0, ""))
        if count and reads == message.text:
            return
        room = message.where.chat
        with self._lasting():
            await self._check_is_there(room, sent)
            relation = {"m.relates_to": {"rel_type": "m.replace", "event_id": sent}}
            # Texts come back: the same words may be a new edit. That a crash repeats one is seen by nobody.
            txn = f"{message.key}.{self._nonce}.{count}"
            await self._speaker.put(room, {**render.format_edit(message.text), **relation}, txn)
        self._edits[sent] = (count + 1, message.text)
        while len(self._edits) > MAX_EDITED:
            self._edits.popitem(last=False)

    async def _check_is_there(self, room: str, sent: str) -> None:
        """The server takes edits of anything; of what was deleted nobody would see one."""
        event = (await read(self._client.room_get_event(room, sent), nio.RoomGetEventResponse)).event
        if "redacted_because" in event.source.get("unsigned", {}):
            raise Rejected("The Matrix message was deleted.")

    async def delete(self, sent: SentId, where: Address) -> None:
        with self._lasting():
            asking = self._client.room_redact(where.chat, sent, tx_id=f"delete.{sent}")
            await await_answer(asking, nio.RoomRedactResponse)

    async def show_typing(self, where: Address) -> None:
        with self._lasting():
            asking = self._client.room_typing(where.chat, timeout=int(TYPING_S * 1000))
            await read(asking, nio.RoomTypingResponse)

    async def react(self, where: Address, message_id: str, emoji: str) -> None:
        relation = {"rel_type": "m.annotation", "event_id": message_id, "key": emoji}
        with self._lasting(), suppress(matrix_client.AlreadySo):
            txn = f"react.{secrets.token_hex(8)}"
            await self._speaker.put(where.chat, {"m.relates_to": relation}, txn, "m.reaction")

    async def answer(self, press: Press, text: str) -> None:
        """Matrix has no buttons."""

    async def fetch(self, attachment: Attachment, to: Path, max_bytes: int) -> None:
        with self._lasting():
            await media.download(self._client, attachment, to, max_bytes)

    async def chat_info(self, where: Address) -> ChatInfo:
        with self._lasting():
            room = await self._rooms.describe(where.chat)
        return ChatInfo(where, room.kind, room.person)

    async def create_thread(self, where: Address, name: str) -> Address | None:
        if where.thread:
            return None
        with self._lasting():
            content: Content = {"msgtype": "m.text", **render.content(name)}
            root = await self._speaker.put(where.chat, content, f"thread.{secrets.token_hex(8)}")
        return Address(NAME, where.chat, root)

    async def offer_commands(self, menu: Sequence[tuple[str, str]]) -> None:
        """Matrix has no menu of commands."""

    @contextmanager
    def _lasting(self) -> Generator[None]:
        """With a password, a login that has ended is only a line that is broken: it is made anew with the next."""
        try:
            yield
        except matrix_client.LoggedOut as fault:
            if not self._settings.password:
                raise
            raise NotTaken("The Matrix server has ended our login; it is made anew.") from fault


def _relation(message: Outbound) -> Content:
    answered_id = message.reply_to or message.where.thread
    reply: Content = {"m.in_reply_to": {"event_id": answered_id}} if answered_id else {}
    if not message.where.thread:
        return reply
    is_reply = bool(message.reply_to)
    return {"rel_type": "m.thread", "event_id": message.where.thread, "is_falling_back": not is_reply, **reply}
