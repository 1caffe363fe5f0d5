"""Slack as a `Platform`. Our token is sent only to Slack's own hosts."""

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from talaria.net.urls import proxy_for
from talaria.platforms.base import (
    Address,
    Arrival,
    Attachment,
    Batch,
    Capabilities,
    ChatInfo,
    File,
    Item,
    Kit,
    NotTaken,
    Outbound,
    PlatformFailure,
    Press,
    Rejected,
    SentId,
)
from talaria.platforms.http_sessions import CHUNK_BYTES, open_file, resolve_doubt, save
from talaria.platforms.slack import incoming, render
from talaria.platforms.slack.config import SlackSettings, check
from talaria.platforms.slack.history import Marks, Missed
from talaria.platforms.slack.incoming import Us, conversation
from talaria.platforms.slack.slack_api import (
    FAULTS,
    Done,
    FoundChannel,
    FoundFile,
    FoundMember,
    Identity,
    NotUnderstood,
    Posted,
    SlackSocket,
    UploadUrl,
    WebApi,
    open_socket,
    open_web_api,
    to_failure,
)

_HOSTS = ("slack.com", "slack-gov.com")
_TRANSFER_TIMEOUT = aiohttp.ClientTimeout(total=600, sock_connect=10, sock_read=30)


CAPABILITIES = Capabilities(
    max_chars=3900, can_edit=True, can_delete=True, has_buttons=True, has_threads=True, edit_every_s=1.2, pulse_s=60.0
)
MAX_NAMES = 1000
NAME_S = 2.0
REACTIONS = {
    "👀": "eyes", "✅": "white_check_mark", "❌": "x", "👍": "+1", "👎": "-1", "⏳": "hourglass_flowing_sand",
    "🤔": "thinking_face", "❤": "heart", "🔥": "fire", "🎉": "tada", "🙏": "pray", "👌": "ok_hand", "⚠": "warning",
}  # fmt: skip


class Slack:
    name = "slack"
    capabilities = CAPABILITIES

    def __init__(self, settings: SlackSettings, kit: Kit, web: WebApi, socket: SlackSocket, identity: Identity) -> None:
        self.account = f"{identity.team_id}:{identity.user_id}"
        self._settings = settings
        self._kit = kit
        self._web = web
        self._socket = socket
        self._user = identity.user_id
        self._marks = Marks(None, kit.clock.now())
        self._names: dict[str, str] = {}

    async def receive(self, cursor: str | None) -> AsyncGenerator[Batch]:
        self._marks = Marks(cursor, self._kit.clock.now())
        missed = Missed(self._web, self._marks, self._kit.clock)
        if self._marks.is_first:
            yield Batch(cursor=self._marks.cursor())  # from here on, nothing is missed
        while True:
            if missed.is_due and (batch := await self._fetch_missed(missed)).items:
                yield batch
            envelopes = await self._socket.take(0 if missed.is_due else self._settings.ping_s)
            if envelopes:
                us = Us(self._user, self._marks)
                items: list[Item] = []
                for envelope in envelopes:
                    for item in incoming.items(envelope.type, envelope.payload, us):
                        self._follow(item, missed)
                        items.append(item)
                for key in dict.fromkeys(map(_conversation, items)):
                    if key in missed and missed.is_due and (batch := await self._fetch_missed(missed, key)).items:
                        yield batch
                yield await self._batch(items, missed, " ".join(filter(None, (one.envelope_id for one in envelopes))))
            elif self._socket.was_just_proven():
                yield Batch()

    async def _fetch_missed(self, missed: Missed, key: str | None = None) -> Batch:
        us = Us(self._user, self._marks)
        items: list[Arrival] = []
        for message in await missed.fetch_next(key):
            arrival = incoming.arrival(message, us)
            if arrival is not None:
                self._follow(arrival, missed)
                items.append(arrival)
        return await self._batch(items, missed, "")

    def _follow(self, item: Item, missed: Missed) -> None:
        """A message to us in a thread makes us part of the thread: later replies there are for us, too."""
        key = _conversation(item)
        if isinstance(item, Arrival) and item.is_addressed and item.where.thread and key not in missed:
            self._marks.join(key, item.message_id)

    async def _batch(self, items: Sequence[Item], missed: Missed, token: str) -> Batch:
        for item in items:
            if isinstance(item, Arrival) and incoming.is_timestamp(item.message_id):
                key = _conversation(item)
                is_followed = not item.where.thread or item.kind == "dm" or key in self._marks
                if is_followed and key not in missed:
                    self._marks.advance(key, item.message_id)
        named = [await self._add_name(item) if isinstance(item, Arrival) else item for item in items]
        return Batch(tuple(named), self._marks.cursor(), token)

    async def _add_name(self, arrival: Arrival) -> Arrival:
        """Adds the sender's name, which is not looked up for strangers."""
        sender = arrival.sender
        if sender.name or not self._kit.is_allowed(sender):
            return arrival
        if sender.id not in self._names:
            try:
                async with asyncio.timeout(NAME_S):
                    person = (await self._web.read("users_info", FoundMember, user=sender.id)).user
                name = person.profile.display_name or person.real_name or person.name
            except (PlatformFailure, TimeoutError):
                name = ""  # it is only a label
            if len(self._names) >= MAX_NAMES:
                self._names.clear()
            self._names[sender.id] = name
        return msgspec.structs.replace(arrival, sender=msgspec.structs.replace(sender, name=self._names[sender.id]))

    async def acknowledge(self, batch: Batch) -> None:
        for envelope_id in batch.token.split():
            await self._socket.acknowledge(envelope_id)

    async def send(self, message: Outbound) -> SentId:
        if message.file is not None:
            return SentId(await self._share_file(message, message.file))
        more = {
            "thread_ts": message.where.thread or None,
            "unfurl_links": False,
            "unfurl_media": False,
            "metadata": {"event_type": "talaria_message", "event_payload": {"key": message.key}},
        }
        answer = await self._say("chat_postMessage", message, **more)
        self._join(message.where, answer.ts)
        return SentId(answer.ts)

    async def _share_file(self, message: Outbound, file: File) -> str:
        """Returns the file's id. Only the last of the three steps is visible."""
        headers = {"Content-Type": "application/octet-stream"}
        async with open_file(file) as content:
            size = os.fstat(content.fileno()).st_size
            upload = await self._web.read("files_getUploadURLExternal", UploadUrl, filename=file.name, length=size)
            url = upload.upload_url
            try:
                async with self._web.session.post(
                    url,
                    data=content,
                    headers=headers,
                    allow_redirects=False,
                    proxy=proxy_for(url),
                    timeout=_TRANSFER_TIMEOUT,
                ) as answer:
                    status = answer.status
            except FAULTS as fault:
                raise resolve_doubt(to_failure(fault)) from fault
            if status != 200:
                raise _to_transfer_failure(status, f"Slack does not accept {file.name}")
        await self._web.write(
            "files_completeUploadExternal",
            Done,
            files=[{"id": upload.file_id, "title": file.name}],
            channel_id=message.where.chat,
            thread_ts=message.where.thread or None,
            initial_comment=render.plain(message.text) or None,
        )
        return upload.file_id

    async def edit(self, sent: SentId, message: Outbound) -> None:
        if _is_file(sent):
            raise Rejected("A file on Slack cannot be changed.")
        await self._say("chat_update", message, ts=sent, parse="none")

    async def _say(self, method: str, message: Outbound, **more: Any) -> Posted:
        """Sends rich text or, if Slack certainly refused that, plain text."""
        common = {"channel": message.where.chat, "text": render.plain(message.text), **more}
        try:
            return await self._web.write(method, Posted, blocks=render.blocks(message.text, message.buttons), **common)
        except NotUnderstood:
            return await self._web.write(
                method, Posted, blocks=render.plain_blocks(message.text, message.buttons), **common
            )

    def _join(self, where: Address, ts: str) -> None:
        if where.thread:
            self._marks.join(conversation(where.chat, where.thread), ts)

    async def delete(self, sent: SentId, where: Address) -> None:
        if _is_file(sent):
            await self._web.write("files_delete", Done, file=sent)
        else:
            await self._web.write("chat_delete", Done, channel=where.chat, ts=sent)

    async def show_typing(self, where: Address) -> None:
        """Bots cannot do that on Slack."""

    async def react(self, where: Address, message_id: str, emoji: str) -> None:
        name = REACTIONS.get(emoji.rstrip("\ufe0f"), emoji.strip(":"))
        try:
            await self._web.write("reactions_add", Done, channel=where.chat, timestamp=message_id, name=name)
        except Rejected as fault:
            if "already_reacted" not in str(fault):
                raise

    async def answer(self, press: Press, text: str) -> None:
        if not text:  # Slack accepts no empty message, and itself shows that the press was received
            return
        await self._web.write(
            "chat_postEphemeral",
            Done,
            channel=press.where.chat,
            user=press.sender.id,
            thread_ts=press.where.thread or None,
            text=render.plain(text),
        )

    async def fetch(self, attachment: Attachment, to: Path, max_bytes: int) -> None:
        url = (await self._web.read("files_info", FoundFile, file=attachment.ref)).file.url
        if not _is_slack_url(url, self._settings.api_url):
            raise Rejected(f"{attachment.name or 'The file'} is not stored by Slack.")
        headers = {"Authorization": f"Bearer {self._settings.bot_token.reveal()}", "Accept-Encoding": "identity"}
        try:
            async with self._web.session.get(
                url, headers=headers, allow_redirects=False, proxy=proxy_for(url), timeout=_TRANSFER_TIMEOUT
            ) as answer:
                is_login = answer.content_type == "text/html" and attachment.mime != "text/html"
                if answer.status != 200 or is_login:
                    raise _to_transfer_failure(
                        answer.status, f"Slack does not hand out {attachment.name or 'the file'}"
                    )
                await save(answer.content.iter_chunked(CHUNK_BYTES), to, max_bytes)
        except FAULTS as fault:
            raise resolve_doubt(to_failure(fault)) from fault

    async def chat_info(self, where: Address) -> ChatInfo:
        kind = incoming.chat_kind(where.chat)
        if kind == "group":
            return ChatInfo(where, kind)
        found = await self._web.read("conversations_info", FoundChannel, channel=where.chat)
        return ChatInfo(where, kind, found.channel.user)

    async def create_thread(self, where: Address, name: str) -> Address:
        """A thread under a message with that name."""
        parent = await self._web.write("chat_postMessage", Posted, channel=where.chat, text=render.plain(name))
        thread = Address(where.platform, where.chat, parent.ts)
        self._join(thread, thread.thread)
        return thread

    async def offer_commands(self, menu: Sequence[tuple[str, str]]) -> None:
        """`/talaria` is declared in the app's manifest; Slack accepts no others from us."""


@asynccontextmanager
async def open(settings: SlackSettings, kit: Kit) -> AsyncGenerator[Slack]:  # noqa: A001  (the loader calls it)
    """Raises `BadConfig`, `NotTaken`, `Refused`."""
    check(settings)
    async with open_web_api(settings) as web:
        identity = await web.read("auth_test", Identity)
        async with open_socket(settings, web) as socket:
            yield Slack(settings, kit, web, socket, identity)


def _conversation(item: Item) -> str:
    return conversation(item.where.chat, item.where.thread)


def _to_transfer_failure(status: int, sentence: str) -> PlatformFailure:
    if status == 429 or status >= 500:
        return NotTaken(f"{sentence} now ({status}).")
    return Rejected(f"{sentence} ({status}).")


def _is_slack_url(url: str, api_url: str) -> bool:
    parts, api = urlsplit(url), urlsplit(api_url)
    if (parts.scheme, parts.netloc) == (api.scheme, api.netloc):
        return True
    host = parts.hostname or ""
    return parts.scheme == "https" and any(host == known or host.endswith(f".{known}") for known in _HOSTS)


def _is_file(sent: SentId) -> bool:
    return sent.startswith("F")
