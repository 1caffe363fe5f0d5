"""The Telegram platform: calls of the port become calls of the Bot API."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from talaria.platforms.base import (
    Address,
    Attachment,
    Batch,
    Button,
    Capabilities,
    ChatInfo,
    File,
    Kit,
    NotTaken,
    Outbound,
    PlatformFailure,
    Press,
    Rejected,
    SentId,
)
from talaria.platforms.http_sessions import open_file, save
from talaria.platforms.splitting import cut_units, units
from talaria.platforms.telegram import bot_api
from talaria.platforms.telegram.bot_api import (
    FAULTS,
    BotApi,
    Declined,
    Upload,
    explain_refusal,
    to_connection_failure,
)
from talaria.platforms.telegram.config import TelegramSettings, check
from talaria.platforms.telegram.incoming import GENERAL, NAME, TelegramAccount
from talaria.platforms.telegram.render import MAX_UNITS, plain, render
from talaria.platforms.telegram.updates import Polling, TelegramWebhook, UpdateFeed

MAX_CAPTION_UNITS = 1024
MAX_UPLOAD_BYTES = 50 * 2**20
MAX_PHOTO_BYTES = 10 * 2**20
MAX_PHOTO_PIXELS = 10_000
"""Width and height together."""
MAX_PHOTO_RATIO = 20
_RESERVED_UNITS = 96
"""Room for what the gateway adds to a message."""
_MAX_ANSWER_CHARS = 200
_MAX_COMMANDS = 100
_COMMAND = re.compile(r"[a-z0-9_]{1,32}", re.ASCII)
_REACTIONS = {"✅": "👍", "❌": "👎", "⏳": "👀"}
"""Telegram allows only some emoji as reactions; these replace others that we use."""
_NO_PREVIEW = {"is_disabled": True}
_WITHOUT_THREADS = ("not a forum", "forum_missing", "create_forbidden", "not enough rights")
_STYLES: Mapping[str, Mapping[str, str]] = {"plain": {}, "good": {"style": "success"}, "bad": {"style": "danger"}}
_ROW_CHARS = 36

SendKind = Literal["photo", "animation", "voice", "audio", "video", "document"]
"""How a file is sent: with `sendPhoto` and so on."""
_SEND_KINDS: Mapping[str, SendKind] = {
    "image/jpeg": "photo",
    "image/png": "photo",
    "image/webp": "photo",
    "image/gif": "animation",
    "audio/ogg; codecs=opus": "voice",
    "audio/mpeg": "audio",
    "audio/mp4": "audio",
    "video/mp4": "video",
}
_WRONG_KIND = (
    *("photo_", "image_process", "too big for a photo"),
    *("animation_", "voice_", "audio_", "video_", "wrong type"),
)
"""Found in refusals of the send kind: as a document, Telegram may still accept the file."""

T = TypeVar("T")


class _SentMessage(msgspec.Struct, frozen=True):
    message_id: int


class _RemoteFile(msgspec.Struct, frozen=True):
    file_path: str = ""


class _ChatDetails(msgspec.Struct, frozen=True):
    is_forum: bool = False


class _Topic(msgspec.Struct, frozen=True):
    message_thread_id: int


class SendOptions(msgspec.Struct, frozen=True):
    """Which features of Telegram a message uses: all of them at first, fewer after a refusal.

    A refusal means that nothing was sent, so the next attempt can follow at once.
    """

    has_markup: bool = True
    is_reply: bool = True
    is_in_thread: bool = True
    kind: SendKind = "document"

    def reduce(self, refusal: Declined, where: Address) -> "SendOptions":
        """What to try next. Raises the failure that the refusal means if there is nothing left to try."""
        if refusal.status == 400:
            if self.has_markup and refusal.mentions("can't parse", "entity_", "entities_"):
                return msgspec.structs.replace(self, has_markup=False)
            if self.is_reply and refusal.mentions("repl") and refusal.mentions("not found"):
                return msgspec.structs.replace(self, is_reply=False)
            if self.kind != "document" and refusal.mentions(*_WRONG_KIND):
                return msgspec.structs.replace(self, kind="document")
            is_private = not where.chat.startswith("-")  # the person still reads it outside the thread
            if self.is_in_thread and is_private and refusal.mentions("thread not found"):
                return msgspec.structs.replace(self, is_in_thread=False)
        raise explain_refusal(refusal, where) from None

    def format_text(self, text: str, max_units: int) -> tuple[str, str | None]:
        """The text and its `parse_mode`."""
        html = render(text, max_units) if self.has_markup else None
        if html is not None:
            return html, "HTML"
        unmarked = plain(text)
        return unmarked if units(unmarked) <= max_units else cut_units(unmarked, 0, max_units - 1) + "…", None


@asynccontextmanager
async def open(settings: TelegramSettings, kit: Kit) -> AsyncGenerator["Telegram"]:  # noqa: A001  (the loader calls it)
    check(settings)
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(
            bot_api.connect(settings.base_url.rstrip("/"), settings.token.reveal(), settings.timeout_s)
        )
        try:
            me = await api.ask(TelegramAccount, "getMe")
            if settings.webhook is None:
                await api.call("deleteWebhook")
        except FAULTS as error:
            raise to_connection_failure(error) from None
        if settings.webhook is not None:
            feed = TelegramWebhook(api, settings.webhook, me, kit.clock)
            await stack.enter_async_context(feed.serve())
        else:
            feed = Polling(api, me, settings.poll_s)
            stack.push_async_callback(feed.confirm)
        yield Telegram(api, me, feed)


class Telegram:
    name = NAME

    def __init__(self, api: BotApi, me: TelegramAccount, feed: UpdateFeed) -> None:
        self._api = api
        self._feed = feed
        self.account = str(me.id)
        self.capabilities = Capabilities(
            max_chars=MAX_UNITS - _RESERVED_UNITS,
            can_edit=True,
            can_delete=True,
            can_type=True,
            has_buttons=True,
            has_threads=True,
            edit_every_s=1.5,
            max_upload_bytes=MAX_UPLOAD_BYTES,
            pulse_s=feed.pulse_s,
            length=units,
        )

    def receive(self, cursor: str | None) -> AsyncGenerator[Batch]:
        return self._feed.receive(cursor)

    async def acknowledge(self, batch: Batch) -> None:
        await self._feed.acknowledge(batch)

    async def send(self, message: Outbound) -> SentId:
        options = SendOptions()
        if message.file is not None:
            options = SendOptions(kind=await asyncio.to_thread(_choose_kind, message.file))
        while True:
            try:
                sent = await self._send(message, options)
            except Declined as error:
                options = options.reduce(error, message.where)
            else:
                return SentId(str(sent.message_id))

    async def edit(self, sent: SentId, message: Outbound) -> None:
        options = SendOptions()
        while True:
            try:
                await self._edit(_parse_id(sent), message, options)
            except Declined as error:
                if error.mentions("message is not modified"):
                    return
                options = options.reduce(error, message.where)
            else:
                return

    async def delete(self, sent: SentId, where: Address) -> None:
        message = {"chat_id": _parse_id(where.chat), "message_id": _parse_id(sent)}
        await _await_answer(self._api.call("deleteMessage", message), where)

    async def show_typing(self, where: Address) -> None:
        thread = _parse_id(where.thread) if where.thread else None
        action = {"chat_id": _parse_id(where.chat), "action": "typing", "message_thread_id": thread}
        await _await_answer(self._api.call("sendChatAction", action), where)

    async def react(self, where: Address, message_id: str, emoji: str) -> None:
        reaction = [{"type": "emoji", "emoji": _REACTIONS.get(emoji, emoji)}] if emoji else []
        message = {"chat_id": _parse_id(where.chat), "message_id": _parse_id(message_id), "reaction": reaction}
        await _await_answer(self._api.call("setMessageReaction", message), where)

    async def answer(self, press: Press, text: str) -> None:
        shown = text if len(text) <= _MAX_ANSWER_CHARS else text[: _MAX_ANSWER_CHARS - 1] + "…"
        await _await_answer(self._api.call("answerCallbackQuery", {"callback_query_id": press.id, "text": shown}))

    async def fetch(self, attachment: Attachment, to: Path, max_bytes: int) -> None:
        file = await _await_answer(self._api.ask(_RemoteFile, "getFile", {"file_id": attachment.ref}))
        if not file.file_path or file.file_path.startswith("/"):
            raise Rejected("Telegram no longer has this file, or keeps it on a disk of its own.")
        try:
            async with aclosing(self._api.download(file.file_path)) as chunks:
                await save(chunks, to, max_bytes)
        except Rejected:
            raise
        except FAULTS as error:
            if isinstance(error, Declined) and 400 <= error.status < 500 and error.status != 429:
                raise Rejected("Telegram no longer has this file.") from None
            failure = explain_refusal(error) if isinstance(error, Declined) else error
            raise failure if isinstance(failure, NotTaken) else NotTaken(str(failure)) from None

    async def chat_info(self, where: Address) -> ChatInfo:
        """A private chat has the id of its person; ids of groups are negative. In a forum, everything is in a topic."""
        if where.chat.isdecimal():
            return ChatInfo(where, "dm", where.chat)
        is_forum = False
        if not where.thread:
            with suppress(PlatformFailure):
                asked = self._api.ask(_ChatDetails, "getChat", {"chat_id": _parse_id(where.chat)})
                is_forum = (await _await_answer(asked, where)).is_forum
        return ChatInfo(Address(where.platform, where.chat, GENERAL) if is_forum else where, "group")

    async def create_thread(self, where: Address, name: str) -> Address | None:
        topic = {"chat_id": _parse_id(where.chat), "name": name[:128]}
        try:
            made = await self._api.ask(_Topic, "createForumTopic", topic)
        except Declined as error:
            if error.status == 400 and error.mentions(*_WITHOUT_THREADS):
                return None
            raise explain_refusal(error, where) from None
        return Address(where.platform, where.chat, str(made.message_thread_id))

    async def offer_commands(self, menu: Sequence[tuple[str, str]]) -> None:
        """Commands whose names Telegram does not allow are left out of the menu; people can still type them."""
        fitting = [
            {"command": name, "description": text[:256] or name} for name, text in menu if _COMMAND.fullmatch(name)
        ]
        await _await_answer(self._api.call("setMyCommands", {"commands": fitting[:_MAX_COMMANDS]}))

    async def _send(self, message: Outbound, options: SendOptions) -> _SentMessage:
        thread = message.where.thread if options.is_in_thread and message.where.thread != GENERAL else ""
        reply_to = message.reply_to if options.is_reply else ""
        reply = {"message_id": _parse_id(reply_to), "allow_sending_without_reply": True} if reply_to else None
        parameters: dict[str, Any] = {
            "chat_id": _parse_id(message.where.chat),
            "message_thread_id": _parse_id(thread) if thread else None,
            "reply_parameters": reply,
            "reply_markup": _keyboard(message.buttons),
        }
        if message.file is None:
            text, mode = options.format_text(message.text, MAX_UNITS)
            parameters |= {"text": text, "parse_mode": mode, "link_preview_options": _NO_PREVIEW}
            return await self._api.ask(_SentMessage, "sendMessage", parameters)
        caption, mode = options.format_text(message.text, MAX_CAPTION_UNITS)
        parameters |= {"caption": caption or None, "parse_mode": mode}
        name = "".join(char if char.isprintable() else "_" for char in message.file.name) or "file"
        async with open_file(message.file) as content:
            upload = Upload(options.kind, content, name, message.file.mime.partition(";")[0])
            return await self._api.ask(_SentMessage, f"send{options.kind.capitalize()}", parameters, upload=upload)

    async def _edit(self, sent: int, message: Outbound, options: SendOptions) -> None:
        parameters: dict[str, Any] = {
            "chat_id": _parse_id(message.where.chat),
            "message_id": sent,
            "reply_markup": _keyboard(message.buttons),
        }
        if message.file is not None:
            caption, mode = options.format_text(message.text, MAX_CAPTION_UNITS)
            await self._api.call("editMessageCaption", {**parameters, "caption": caption, "parse_mode": mode})
            return
        text, mode = options.format_text(message.text, MAX_UNITS)
        parameters |= {"text": text, "parse_mode": mode, "link_preview_options": _NO_PREVIEW}
        await self._api.call("editMessageText", parameters)


async def _await_answer(call: Awaitable[T], where: Address | None = None) -> T:
    try:
        return await call
    except Declined as error:
        raise explain_refusal(error, where) from None


def _parse_id(id: str) -> int:
    """The id of a chat, a topic or a message."""
    try:
        return int(id)
    except ValueError:
        raise Rejected(f"{id!r} is not an id on Telegram: all ids there are numbers.") from None


def _keyboard(buttons: Sequence[Button]) -> dict[str, Any] | None:
    """An inline keyboard: one row if the labels fit side by side."""
    if not buttons:
        return None
    keys = [{"text": one.label, "callback_data": one.data, **_STYLES[one.style]} for one in buttons]
    is_short = sum(len(one.label) for one in buttons) <= _ROW_CHARS
    return {"inline_keyboard": [keys] if is_short else [[key] for key in keys]}


def _choose_kind(file: File) -> SendKind:
    """The best kind within Telegram's limits. Reads the file's size from disk, so it is for a thread."""
    found = _SEND_KINDS.get(file.mime, "document")
    if found != "photo":
        return found
    width, height = file.pixels or (1, 1)
    is_too_large = width + height > MAX_PHOTO_PIXELS or max(width, height) > MAX_PHOTO_RATIO * min(width, height)
    try:
        return "document" if is_too_large or file.path.stat().st_size > MAX_PHOTO_BYTES else "photo"
    except OSError:
        return "document"
