"""The Telegram platform: calls of the port become calls of the Bot API."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from telegram import (
    Bot,
    BotCommand,
    LinkPreviewOptions,
    ReactionTypeEmoji,
)
from telegram.error import TelegramError

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
from talaria.platforms.downloads import save
from talaria.platforms.splitting import units
from talaria.platforms.telegram import failures, outgoing, transport
from talaria.platforms.telegram.config import TelegramSettings, check
from talaria.platforms.telegram.incoming import GENERAL, NAME, TelegramAccount
from talaria.platforms.telegram.outgoing import Manner, number
from talaria.platforms.telegram.polling import Polling
from talaria.platforms.telegram.render import MAX_UNITS
from talaria.platforms.telegram.transport import Declined, TelegramTransport
from talaria.platforms.telegram.webhook import TelegramWebhook

MAX_CAPTION_UNITS = 1024
MAX_UPLOAD_BYTES = 50 * 2**20
_ROOM_FOR_A_MARK = 96
_MAX_ANSWER_CHARS = 200
_MAX_COMMANDS = 100
_COMMAND = re.compile(r"[a-z0-9_]{1,32}", re.ASCII)
_REACTIONS = {"✅": "👍", "❌": "👎", "⏳": "👀"}
"""Telegram has a fixed set of them; these stand in."""
_NO_PREVIEW = LinkPreviewOptions(is_disabled=True)

T = TypeVar("T")


class Feed(Protocol):
    """How updates come to us: we ask, or Telegram comes."""

    @property
    def pulse_s(self) -> float: ...
    def receive(self, cursor: str | None) -> AsyncGenerator[Batch]: ...
    async def acknowledge(self, batch: Batch) -> None: ...


@asynccontextmanager
async def open(settings: TelegramSettings, kit: Kit) -> AsyncGenerator["Telegram"]:  # noqa: A001  (so each platform has it)
    check(settings)
    base_url = settings.base_url.rstrip("/")
    async with AsyncExitStack() as stack:
        way = await stack.enter_async_context(transport.opened(base_url, settings.timeout_s))
        bot = Bot(
            settings.token.reveal(),
            base_url=f"{base_url}/bot",
            base_file_url=f"{base_url}/file/bot",
            request=way,
            get_updates_request=way,
        )
        me = await _introduced(bot)
        feed = await _feed(stack, bot, way, me, settings, kit)
        yield Telegram(bot, way, me, feed)


async def _introduced(bot: Bot) -> TelegramAccount:
    try:
        user = await bot.get_me()
    except TelegramError as error:
        raise failures.interrupted(error) from None
    return TelegramAccount(user.id, user.username or "")


async def _feed(
    stack: AsyncExitStack, bot: Bot, way: TelegramTransport, me: TelegramAccount, settings: TelegramSettings, kit: Kit
) -> Feed:
    if settings.webhook is not None:
        webhook = TelegramWebhook(bot, settings.webhook, me, kit.clock)
        await stack.enter_async_context(webhook.listening())
        return webhook
    try:
        await bot.delete_webhook()
    except TelegramError as error:
        raise failures.interrupted(error) from None
    polling = Polling(way, bot.base_url, me, settings.poll_s)
    stack.push_async_callback(polling.leave)
    return polling


class Telegram:
    name = NAME

    def __init__(self, bot: Bot, way: TelegramTransport, me: TelegramAccount, feed: Feed) -> None:
        self._bot = bot
        self._line = way
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
            except TelegramError as error:
                manner = _lesser(manner, error, message.where)
            else:
                return SentId(str(sent.message_id))

    async def edit(self, sent: SentId, message: Outbound) -> None:
        manner = Manner()
        while True:
            try:
                await self._put_anew(number(sent), message, manner)
            except TelegramError as error:
                if failures.is_unchanged(error):
                    return
                manner = _lesser(manner, error, message.where)
            else:
                return

    async def delete(self, sent: SentId, where: Address) -> None:
        await _answered(self._bot.delete_message(number(where.chat), number(sent)), where)

    async def show_typing(self, where: Address) -> None:
        thread = number(where.thread) if where.thread else None
        await _answered(self._bot.send_chat_action(number(where.chat), "typing", message_thread_id=thread), where)

    async def react(self, where: Address, message_id: str, emoji: str) -> None:
        reaction = [ReactionTypeEmoji(_REACTIONS.get(emoji, emoji))] if emoji else []
        await _answered(self._bot.set_message_reaction(number(where.chat), number(message_id), reaction), where)

    async def answer(self, press: Press, text: str) -> None:
        shown = text if len(text) <= _MAX_ANSWER_CHARS else text[: _MAX_ANSWER_CHARS - 1] + "…"
        await _answered(self._bot.answer_callback_query(press.id, shown))

    async def fetch(self, attachment: Attachment, to: Path, max_bytes: int) -> None:
        file = await _answered(self._bot.get_file(attachment.ref))
        path = file.file_path or ""
        if not path.startswith(("http://", "https://")):
            raise Rejected("Telegram does not have this file any more, or keeps it on a disk of its own.")
        try:
            async with aclosing(self._line.download(path)) as pieces:
                await save(pieces, to, max_bytes)
        except TelegramError as error:
            raise _undownloaded(error) from None

    async def chat_info(self, where: Address) -> ChatInfo:
        """A private chat has the id of its person; those of groups are negative. All of a forum is in topics."""
        if where.chat.isdecimal():
            return ChatInfo(where, "dm", where.chat)
        is_forum = False
        if not where.thread:
            with suppress(PlatformFailure):
                is_forum = (await _answered(self._bot.get_chat(number(where.chat)), where)).is_forum is True
        return ChatInfo(Address(where.platform, where.chat, GENERAL) if is_forum else where, "group")

    async def create_thread(self, where: Address, name: str) -> Address | None:
        try:
            topic = await self._bot.create_forum_topic(number(where.chat), name[:128])
        except TelegramError as error:
            if failures.is_without_threads(error):
                return None
            raise failures.failure(error, where) from None
        return Address(where.platform, where.chat, str(topic.message_thread_id))

    async def offer_commands(self, menu: Sequence[tuple[str, str]]) -> None:
        """Names that Telegram does not know as commands can still be typed."""
        fitting = [BotCommand(name, text[:256] or name) for name, text in menu if _COMMAND.fullmatch(name)]
        await _answered(self._bot.set_my_commands(fitting[:_MAX_COMMANDS]))

    async def _put(self, message: Outbound, manner: Manner) -> Any:
        options: dict[str, Any] = {
            "reply_markup": outgoing.keyboard(message.buttons),
            "message_thread_id": outgoing.thread(message.where) if manner.is_in_thread else None,
            "reply_parameters": outgoing.reply(message) if manner.is_reply else None,
        }
        if message.file is None:
            text, mode = outgoing.worded(message.text, manner, MAX_UNITS)
            return await self._bot.send_message(
                number(message.where.chat), text, parse_mode=mode, link_preview_options=_NO_PREVIEW, **options
            )
        caption, mode = outgoing.worded(message.text, manner, MAX_CAPTION_UNITS)
        send: Any = getattr(self._bot, f"send_{manner.way}")
        content, upload = await asyncio.to_thread(outgoing.upload, message.file)
        with content:
            return await send(number(message.where.chat), upload, caption=caption or None, parse_mode=mode, **options)

    async def _put_anew(self, sent: int, message: Outbound, manner: Manner) -> None:
        chat, keyboard = number(message.where.chat), outgoing.keyboard(message.buttons)
        if message.file is not None:
            caption, mode = outgoing.worded(message.text, manner, MAX_CAPTION_UNITS)
            await self._bot.edit_message_caption(chat, sent, caption=caption, parse_mode=mode, reply_markup=keyboard)
            return
        text, mode = outgoing.worded(message.text, manner, MAX_UNITS)
        await self._bot.edit_message_text(
            text, chat, sent, parse_mode=mode, link_preview_options=_NO_PREVIEW, reply_markup=keyboard
        )


async def _answered(call: Awaitable[T], where: Address | None = None) -> T:
    try:
        return await call
    except TelegramError as error:
        raise failures.failure(error, where) from None


def _lesser(manner: Manner, error: TelegramError, where: Address) -> Manner:
    """Raises what the error means if there is no other way to put it."""
    if isinstance(error, Declined) and error.status == 400:
        lesser = manner.after(error.words, is_private=not where.chat.startswith("-"))
        if lesser is not None:
            return lesser
    raise failures.failure(error, where) from None


def _undownloaded(error: TelegramError) -> NotTaken | Rejected:
    if isinstance(error, Declined) and 400 <= error.status < 500 and error.status != 429:
        return Rejected("Telegram does not have this file any more.")
    what = failures.failure(error)
    return what if isinstance(what, NotTaken) else NotTaken(str(what))
