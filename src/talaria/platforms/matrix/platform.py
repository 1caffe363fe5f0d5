"""Matrix as a `Platform`."""

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
from talaria.platforms.matrix import matrix_client, room_events
from talaria.platforms.matrix.config import MatrixSettings, check
from talaria.platforms.matrix.listening import Content, MatrixListener, RoomSender, maintain_keys
from talaria.platforms.matrix.matrix_client import MatrixClient, await_answer, read
from talaria.platforms.matrix.room_events import NAME
from talaria.platforms.matrix.rooms import RoomMemory, Rooms

TYPING_S = 8.0
DEDUP_S = 23 * 3600.0
"""Synapse forgets transaction ids after a day."""
MAX_EDITED = 500
CAPABILITIES = Capabilities(
    max_chars=room_events.MAX_CHARS,
    length=room_events.event_length,
    can_edit=True,
    can_delete=True,
    can_type=True,
    has_threads=True,
    dedup_s=DEDUP_S,
    edit_every_s=3.0,  # servers usually accept ten messages at once, then one in five seconds
)


@asynccontextmanager
async def open(settings: MatrixSettings, kit: Kit) -> AsyncGenerator["Matrix"]:  # noqa: A001  (the loader calls it)
    """Raises `BadConfig`, `NotTaken`, `Refused`."""
    check(settings)
    kit.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    client = await matrix_client.make_client(settings, kit.home)
    try:
        await matrix_client.log_in(client, settings, kit.home)
        await maintain_keys(client)
        memory = RoomMemory(kit.home)
        await memory.load()
        yield Matrix(client, settings, kit, memory)
    finally:
        await matrix_client.close(client)


class Matrix:
    def __init__(self, client: MatrixClient, settings: MatrixSettings, kit: Kit, memory: RoomMemory) -> None:
        self.name = NAME
        self.account = client.user_id
        self.capabilities = CAPABILITIES
        self._client = client
        self._settings = settings
        self._rooms = rooms = Rooms(client, kit, memory)
        self._sender = RoomSender(client, rooms)
        self._listener = MatrixListener(client, kit, memory, rooms, self._sender)
        self._edits: OrderedDict[str, tuple[int, str]] = OrderedDict()
        """How often we edited each message, and its text now."""
        self._nonce = secrets.token_hex(4)

    async def receive(self, cursor: str | None) -> AsyncGenerator[Batch]:
        try:
            with self._keeping_login():
                async with aclosing(self._listener.batches(cursor)) as batches:
                    async for batch in batches:
                        yield batch
        except AccessLost as fault:  # not to a room, but to everything
            raise Refused(str(fault)) from fault
        except Rejected as fault:
            raise NotTaken(str(fault)) from fault
        except OSError as fault:
            raise NotTaken(f"The file about Matrix rooms cannot be written: {fault.strerror}.") from fault

    async def acknowledge(self, batch: Batch) -> None:
        """The next sync acknowledges it."""

    async def send(self, message: Outbound) -> SentId:
        room = message.where.chat
        with self._keeping_login():
            content: Content = {"msgtype": "m.text", **room_events.text_content(message.text)}
            if message.file is not None:
                is_encrypted = await self._sender.is_encrypted(room)
                content |= await matrix_client.upload_file(self._client, message.file, is_encrypted=is_encrypted)
                content["body"] = message.text or message.file.name
            answered_id = message.reply_to or message.where.thread
            relation: Content = {"m.in_reply_to": {"event_id": answered_id}} if answered_id else {}
            if message.where.thread:
                thread = {"event_id": message.where.thread, "is_falling_back": not message.reply_to}
                relation = {"rel_type": "m.thread", **thread, **relation}
            content |= {"m.relates_to": relation} if relation else {}
            return SentId(await self._sender.send(room, content, message.key))

    async def edit(self, sent: SentId, message: Outbound) -> None:
        count, reads = self._edits.get(sent, (0, ""))
        if count and reads == message.text:
            return
        room = message.where.chat
        with self._keeping_login():
            # the server accepts edits of anything, but nobody would see one of a redacted message
            event = (await read(self._client.room_get_event(room, sent), nio.RoomGetEventResponse)).event
            if "redacted_because" in event.source.get("unsigned", {}):
                raise Rejected("The Matrix message was deleted.")
            relation = {"m.relates_to": {"rel_type": "m.replace", "event_id": sent}}
            # A text may return later, so the same words can be a new edit. Nobody sees it if a crash repeats one.
            txn = f"{message.key}.{self._nonce}.{count}"
            await self._sender.send(room, {**room_events.edit_content(message.text), **relation}, txn)
        self._edits[sent] = (count + 1, message.text)
        while len(self._edits) > MAX_EDITED:
            self._edits.popitem(last=False)

    async def delete(self, sent: SentId, where: Address) -> None:
        with self._keeping_login():
            asking = self._client.room_redact(where.chat, sent, tx_id=f"delete.{sent}")
            await await_answer(asking, nio.RoomRedactResponse)

    async def show_typing(self, where: Address) -> None:
        with self._keeping_login():
            asking = self._client.room_typing(where.chat, timeout=int(TYPING_S * 1000))
            await read(asking, nio.RoomTypingResponse)

    async def react(self, where: Address, message_id: str, emoji: str) -> None:
        relation = {"rel_type": "m.annotation", "event_id": message_id, "key": emoji}
        with self._keeping_login(), suppress(matrix_client.AlreadySo):
            txn = f"react.{secrets.token_hex(8)}"
            await self._sender.send(where.chat, {"m.relates_to": relation}, txn, "m.reaction")

    async def answer(self, press: Press, text: str) -> None:
        """Matrix has no buttons."""

    async def fetch(self, attachment: Attachment, to: Path, max_bytes: int) -> None:
        with self._keeping_login():
            await matrix_client.download_file(self._client, attachment, to, max_bytes)

    async def chat_info(self, where: Address) -> ChatInfo:
        with self._keeping_login():
            room = await self._rooms.describe(where.chat)
        return ChatInfo(where, room.kind, room.person)

    async def create_thread(self, where: Address, name: str) -> Address | None:
        if where.thread:
            return None
        with self._keeping_login():
            content: Content = {"msgtype": "m.text", **room_events.text_content(name)}
            root = await self._sender.send(where.chat, content, f"thread.{secrets.token_hex(8)}")
        return Address(NAME, where.chat, root)

    async def offer_commands(self, menu: Sequence[tuple[str, str]]) -> None:
        """Matrix has no menu of commands."""

    @contextmanager
    def _keeping_login(self) -> Generator[None]:
        """With a password, a lost login is only a broken connection: the next one logs in again."""
        try:
            yield
        except matrix_client.LoggedOut as fault:
            if not self._settings.password:
                raise
            raise NotTaken("The Matrix server has ended our login; we log in again.") from fault
