"""The Telegram platform: calls of the port become calls of the Bot API."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from talaria.platforms.base import (
    Address,
    Attachment,
    Batch,
    Capabilities,
    ChatInfo,
    Kit,
    NotTaken,
    Outbound,
    PlatformFailure,
    Press,
    Rejected,
    SentId,
)
from talaria.platforms.http_sessions import open_file, save
from talaria.platforms.splitting import units
from talaria.platforms.telegram import bot_api, outgoing
from talaria.platforms.telegram.bot_api import FAULTS, BotApi, Declined, interruption, refusal
from talaria.platforms.telegram.config import TelegramSettings, check
from talaria.platforms.telegram.incoming import GENERAL, NAME, TelegramAccount
from talaria.platforms.telegram.outgoing import Manner, number
from talaria.platforms.telegram.render import MAX_UNITS
from talaria.platforms.telegram.updates import Polling, TelegramWebhook, UpdateFeed

MAX_CAPTION_UNITS = 1024
MAX_UPLOAD_BYTES = 50 * 2**20
_ROOM_FOR_A_MARK = 96
_MAX_ANSWER_CHARS = 200
_MAX_COMMANDS = 100
_COMMAND = re.compile(r"[a-z0-9_]{1,32}", re.ASCII)
_REACTIONS = {"✅": "👍", "❌": "👎", "⏳": "👀"}
"""Telegram has a fixed set of them; these stand in."""
_NO_PREVIEW = {"is_disabled": True}
_WITHOUT_THREADS = ("not a forum", "forum_missing", "create_forbidden", "not enough rights")

T = TypeVar("T")


class _Sent(msgspec.Struct, frozen=True):
    message_id: int


class _RemoteFile(msgspec.Struct, frozen=True):
    file_path: str = ""


class _ChatDetails(msgspec.Struct, frozen=True):
    is_forum: bool = False


class _Topic(msgspec.Struct, frozen=True):
    message_thread_id: int


@asynccontextmanager
async def open(settings: TelegramSettings, kit: Kit) -> AsyncGenerator["Telegram"]:  # noqa: A001  (so each platform has it)
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
            raise interruption(error) from None
        if settings.webhook is not None:
            feed = TelegramWebhook(api, settings.webhook, me, kit.clock)
            await stack.enter_async_context(feed.listening())
        else:
            feed = Polling(api, me, settings.poll_s)
            stack.push_async_callback(feed.leave)
        yield Telegram(api, me, feed)


class Telegram:
    name = NAME

    def __init__(self, api: BotApi, me: TelegramAccount, feed: UpdateFeed) -> None:
        self._api = api
        self._feed = feed
        self.account = str(me.id)
        self.capabilities = Capabilities(
            max_chars=MAX_UNITS - _ROOM_FOR_A_MARK,
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
        manner = Manner()
        if message.file is not None:
            manner = Manner(way=await asyncio.to_thread(outgoing.way, message.file))
        while True:
            try:
                sent = await self._put(message, manner)
            except Declined as error:
                manner = _lesser(manner, error, message.where)
            else:
                return SentId(str(sent.message_id))

    async def edit(self, sent: SentId, message: Outbound) -> None:
        manner = Manner()
        while True:
            try:
                await self._put_anew(number(sent), message, manner)
            except Declined as error:
                if error.mentions("message is not modified"):
                    return
                manner = _lesser(manner, error, message.where)
            else:
                return

    async def delete(self, sent: SentId, where: Address) -> None:
        message = {"chat_id": number(where.chat), "message_id": number(sent)}
        await _await_answer(self._api.call("deleteMessage", message), where)

    async def show_typing(self, where: Address) -> None:
        thread = number(where.thread) if where.thread else None
        action = {"chat_id": number(where.chat), "action": "typing", "message_thread_id": thread}
        await _await_answer(self._api.call("sendChatAction", action), where)

    async def react(self, where: Address, message_id: str, emoji: str) -> None:
        reaction = [{"type": "emoji", "emoji": _REACTIONS.get(emoji, emoji)}] if emoji else []
        message = {"chat_id": number(where.chat), "message_id": number(message_id), "reaction": reaction}
        await _await_answer(self._api.call("setMessageReaction", message), where)

    async def answer(self, press: Press, text: str) -> None:
        shown = text if len(text) <= _MAX_ANSWER_CHARS else text[: _MAX_ANSWER_CHARS - 1] + "…"
        await _await_answer(self._api.call("answerCallbackQuery", {"callback_query_id": press.id, "text": shown}))

    async def fetch(self, attachment: Attachment, to: Path, max_bytes: int) -> None:
        file = await _await_answer(self._api.ask(_RemoteFile, "getFile", {"file_id": attachment.ref}))
        if not file.file_path or file.file_path.startswith("/"):
            raise Rejected("Telegram does not have this file any more, or keeps it on a disk of its own.")
        try:
            async with aclosing(self._api.download(file.file_path)) as pieces:
                await save(pieces, to, max_bytes)
        except FAULTS as error:
            raise _to_download_failure(error) from None

    async def chat_info(self, where: Address) -> ChatInfo:
        """A private chat has the id of its person; those of groups are negative. All of a forum is in topics."""
        if where.chat.isdecimal():
            return ChatInfo(where, "dm", where.chat)
        is_forum = False
        if not where.thread:
            with suppress(PlatformFailure):
                asked = self._api.ask(_ChatDetails, "getChat", {"chat_id": number(where.chat)})
                is_forum = (await _await_answer(asked, where)).is_forum
        return ChatInfo(Address(where.platform, where.chat, GENERAL) if is_forum else where, "group")

    async def create_thread(self, where: Address, name: str) -> Address | None:
        topic = {"chat_id": number(where.chat), "name": name[:128]}
        try:
            made = await self._api.ask(_Topic, "createForumTopic", topic)
        except Declined as error:
            if error.status == 400 and error.mentions(*_WITHOUT_THREADS):
                return None
            raise refusal(error, where) from None
        return Address(where.platform, where.chat, str(made.message_thread_id))

    async def offer_commands(self, menu: Sequence[tuple[str, str]]) -> None:
        """Names that Telegram does not know as commands can still be typed."""
        fitting = [
            {"command": name, "description": text[:256] or name} for name, text in menu if _COMMAND.fullmatch(name)
        ]
        await _await_answer(self._api.call("setMyCommands", {"commands": fitting[:_MAX_COMMANDS]}))

    async def _put(self, message: Outbound, manner: Manner) -> _Sent:
        options: dict[str, Any] = {
            "chat_id": number(message.where.chat),
            "message_thread_id": outgoing.thread(message.where) if manner.is_in_thread else None,
            "reply_parameters": outgoing.reply(message) if manner.is_reply else None,
            "reply_markup": outgoing.keyboard(message.buttons),
        }
        if message.file is None:
            text, mode = outgoing.format_text(message.text, manner, MAX_UNITS)
            options |= {"text": text, "parse_mode": mode, "link_preview_options": _NO_PREVIEW}
            return await self._api.ask(_Sent, "sendMessage", options)
        caption, mode = outgoing.format_text(message.text, manner, MAX_CAPTION_UNITS)
        options |= {"caption": caption or None, "parse_mode": mode}
        async with open_file(message.file) as content:
            upload = outgoing.upload(message.file, content, manner.way)
            return await self._api.ask(_Sent, f"send{manner.way.capitalize()}", options, upload=upload)

    async def _put_anew(self, sent: int, message: Outbound, manner: Manner) -> None:
        options: dict[str, Any] = {
            "chat_id": number(message.where.chat),
            "message_id": sent,
            "reply_markup": outgoing.keyboard(message.buttons),
        }
        if message.file is not None:
            caption, mode = outgoing.format_text(message.text, manner, MAX_CAPTION_UNITS)
            await self._api.call("editMessageCaption", {**options, "caption": caption, "parse_mode": mode})
            return
        text, mode = outgoing.format_text(message.text, manner, MAX_UNITS)
        options |= {"text": text, "parse_mode": mode, "link_preview_options": _NO_PREVIEW}
        await self._api.call("editMessageText", options)


async def _await_answer(call: Awaitable[T], where: Address | None = None) -> T:
    try:
        return await call
    except Declined as error:
        raise refusal(error, where) from None


def _lesser(manner: Manner, error: Declined, where: Address) -> Manner:
    """Raises what the error means if there is no other way to put it."""
    if error.status == 400:
        lesser = manner.after(error, is_private=not where.chat.startswith("-"))
        if lesser is not None:
            return lesser
    raise refusal(error, where) from None


def _to_download_failure(error: Declined | PlatformFailure) -> NotTaken | Rejected:
    if isinstance(error, Rejected):
        return error
    if isinstance(error, Declined) and 400 <= error.status < 500 and error.status != 429:
        return Rejected("Telegram does not have this file any more.")
    what = refusal(error) if isinstance(error, Declined) else error
    return what if isinstance(what, NotTaken) else NotTaken(str(what))
