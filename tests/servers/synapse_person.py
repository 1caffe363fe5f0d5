"""A person with a real account on a homeserver, who speaks through matrix-nio and remembers all that was said."""

import asyncio
import io
import json
import mimetypes
import os
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

import nio  # pyright: ignore[reportMissingTypeStubs]
from nio.crypto import ENCRYPTION_ENABLED, decrypt_attachment  # pyright: ignore[reportMissingTypeStubs]

from talaria.testing.servers.chat_service import SeenMessage

WAIT_S = 30.0

Content = Mapping[str, Any]


class _Client(nio.AsyncClient):
    async def receive_response(self, response: nio.Response) -> None:
        with suppress(AssertionError):  # so nio greets some events that are encrypted in a wrong way
            await super().receive_response(response)


class SynapseUser:
    def __init__(self, url: str, user_id: str, device_id: str, token: str) -> None:
        self.user_id = user_id
        self._client = _Client(url, user_id, device_id, config=_config())
        self._client.restore_login(user_id, device_id, token)
        self._events: defaultdict[str, list[Content]] = defaultdict(list)
        self._news = asyncio.Condition()
        self.known_direct_room = ""

    @asynccontextmanager
    async def present(self) -> AsyncGenerator["SynapseUser"]:
        self._client.add_event_callback(self._hear, nio.Event)
        await self._client.sync(full_state=True)
        listening = asyncio.create_task(self._client.sync_forever(timeout=30_000))
        try:
            yield self
        finally:
            listening.cancel()
            await asyncio.wait([listening])
            await self._client.close()
            if self._client.store is not None:
                self._client.store.database.close()

    async def _hear(self, room: nio.MatrixRoom, event: nio.Event) -> None:
        source = cast("Content", event.source)
        async with self._news:
            self._events[room.room_id].append({**source, "decrypted": bool(event.decrypted)})
            self._news.notify_all()

    async def until(self, room: str, count: int, sender: str) -> Sequence[SeenMessage]:
        try:
            async with self._news, asyncio.timeout(WAIT_S):
                await self._news.wait_for(lambda: len(self.seen(room, sender)) >= count)
        except TimeoutError as fault:
            raise TimeoutError(
                f"waited {WAIT_S} s for {count} messages in {room}; there are {self.seen(room, sender)}"
            ) from fault
        return self.seen(room, sender)

    async def until_event(self, room: str, type_: str, **content: Any) -> Content:
        """The first event of that type with all of that content."""

        def found() -> Content | None:
            for event in self._events[room]:
                if event.get("type") == type_ and content.items() <= event["content"].items():
                    return event
            return None

        async with self._news, asyncio.timeout(WAIT_S):
            await self._news.wait_for(lambda: found() is not None)
        return found() or {}

    def events(self, room: str) -> Sequence[Content]:
        """As they came, decrypted."""
        return list(self._events[room])

    def seen(self, room: str, sender: str) -> Sequence[SeenMessage]:
        return _seen([event for event in self._events[room] if event.get("sender") == sender], self._events[room])

    async def direct_room(self, bot: str, *, is_encrypted: bool = False) -> str:
        """With nobody but the bot in it; made at the first call."""
        if not self.known_direct_room:
            self.known_direct_room = await self.create_room(bot, is_direct=True, is_encrypted=is_encrypted)
        return self.known_direct_room

    async def create_room(self, *invited: str, is_direct: bool = False, is_encrypted: bool = False) -> str:
        encryption = {"type": "m.room.encryption", "content": {"algorithm": "m.megolm.v1.aes-sha2"}}
        answer = _good(
            await self._client.room_create(
                is_direct=is_direct,
                invite=invited,
                preset=nio.RoomPreset.private_chat,
                initial_state=[encryption] if is_encrypted else [],
            )
        )
        room = cast("nio.RoomCreateResponse", answer).room_id
        async with self._news, asyncio.timeout(WAIT_S):  # nio encrypts for those of whom it has heard
            await self._news.wait_for(
                lambda: room in self._client.rooms and {*invited} <= {*self._client.rooms[room].users}
            )
        return room

    async def join(self, room: str) -> None:
        _good(await self._client.join(room))
        await self.until_event(room, "m.room.member", membership="join")

    async def kick(self, room: str, user_id: str) -> None:
        _good(await self._client.room_kick(room, user_id))

    async def leave(self, room: str) -> None:
        _good(await self._client.room_leave(room))

    async def invite(self, room: str, user_id: str, *, is_direct: bool = False) -> None:
        """`is_direct`: as an app does that opens a room to speak with somebody alone."""
        content = {"membership": "invite", "is_direct": True} if is_direct else {"membership": "invite"}
        _good(await self._client.room_put_state(room, "m.room.member", content, user_id))

    async def set_power(self, room: str, user_id: str, level: int) -> None:
        levels = await self._client.room_get_state_event(room, "m.room.power_levels")
        content: dict[str, Any] = cast("Any", _good(levels)).content
        content["users"][user_id] = level
        _good(await self._client.room_put_state(room, "m.room.power_levels", content))

    async def upgrade(self, room: str) -> str:
        """The room that takes its place."""
        answer = await self._post("POST", f"/_matrix/client/v3/rooms/{room}/upgrade", {"new_version": "11"})
        return answer["replacement_room"]

    async def redact(self, room: str, event_id: str) -> None:
        _good(await self._client.room_redact(room, event_id))

    async def rename(self, name: str) -> None:
        _good(await self._client.set_displayname(name))

    async def send_in_clear(self, room: str, content: Content, type_: str = "m.room.message") -> None:
        """Any event at all, as it is, whatever the room is."""
        path = f"/_matrix/client/v3/rooms/{room}/send/{type_}/{os.urandom(8).hex()}"
        await self._post("PUT", path, content)

    async def _post(self, method: str, path: str, content: Content) -> Content:
        headers = {"Authorization": f"Bearer {self._client.access_token}", "Content-Type": "application/json"}
        async with await self._client.send(method, path, json.dumps(content), headers) as answer:
            answer.raise_for_status()
            return await answer.json()

    async def send(self, room: str, content: Content, type_: str = "m.room.message") -> str:
        """Any event at all; encrypted where the room is. Its id."""
        async with self._news, asyncio.timeout(WAIT_S):  # nio does not write into a room before it has heard of it
            await self._news.wait_for(lambda: room in self._client.rooms)
        answer = await self._client.room_send(room, type_, dict(content), ignore_unverified_devices=True)
        return cast("nio.RoomSendResponse", _good(answer)).event_id

    async def say(self, room: str, text: str, thread: str = "", more: Content | None = None) -> str:
        content: dict[str, Any] = {"msgtype": "m.text", "body": text, **(more or {})}
        if thread:
            content["m.relates_to"] = {
                "rel_type": "m.thread",
                "event_id": thread,
                "is_falling_back": True,
                "m.in_reply_to": {"event_id": thread},
            }
        return await self.send(room, content)

    async def send_file(self, room: str, path: Path, *, is_encrypted: bool = False) -> str:
        mime = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        content = await asyncio.to_thread(path.read_bytes)
        answer, keys = await self._client.upload(
            io.BytesIO(content), mime, path.name, encrypt=is_encrypted, filesize=len(content)
        )
        url = cast("nio.UploadResponse", _good(answer)).content_uri
        kind = "m.image" if mime.startswith("image/") else "m.file"
        info = {"mimetype": mime, "size": len(content)}
        where: dict[str, Any] = {"file": {**keys, "url": url}} if keys else {"url": url}
        return await self.send(room, {"msgtype": kind, "body": path.name, "info": info, **where})

    async def download(self, content: Content) -> bytes:
        """What a message of somebody has as its file."""
        file = content.get("file", {})
        answer = _good(await cast("Any", self._client).download(file.get("url") or content["url"]))
        body = cast("nio.MemoryDownloadResponse", answer).body
        return decrypt_attachment(body, file["key"]["k"], file["hashes"]["sha256"], file["iv"]) if file else body


def _config() -> nio.AsyncClientConfig:
    if not ENCRYPTION_ENABLED:
        return nio.AsyncClientConfig(encryption_enabled=False)
    from nio.store import SqliteMemoryStore  # pyright: ignore[reportMissingTypeStubs]  (optional)

    return nio.AsyncClientConfig(store=SqliteMemoryStore, pickle_key=os.urandom(8).hex())


def _good(answer: object) -> object:
    if isinstance(answer, nio.ErrorResponse):
        raise RuntimeError(f"the homeserver refuses: {answer}")  # noqa: TRY004  (no matter of types)
    return answer


def _seen(said: Sequence[Content], all_events: Sequence[Content]) -> Sequence[SeenMessage]:
    gone = {event.get("redacts") or event["content"].get("redacts") for event in all_events}
    messages = [event for event in said if event.get("type") == "m.room.message" and event["event_id"] not in gone]
    edits = [event for event in messages if _relation(event).get("rel_type") == "m.replace"]
    return [
        _as_seen(event, [edit for edit in edits if _relation(edit).get("event_id") == event["event_id"]])
        for event in messages
        if event not in edits
    ]


def _as_seen(event: Content, edits: Sequence[Content]) -> SeenMessage:
    content = edits[-1]["content"]["m.new_content"] if edits else event["content"]
    relation = _relation(event)
    is_thread = relation.get("rel_type") == "m.thread"
    is_reply = not (is_thread and relation.get("is_falling_back"))
    is_file = "url" in content or "file" in content
    return SeenMessage(
        id=event["event_id"],
        text=_text(content),
        edits=len(edits),
        thread=relation["event_id"] if is_thread else "",
        reply_to=relation.get("m.in_reply_to", {}).get("event_id", "") if is_reply else "",
        file=(content.get("filename") or content["body"]) if is_file else "",
    )


def _relation(event: Content) -> Mapping[str, Any]:
    return event["content"].get("m.relates_to") or {}


def _text(content: Content) -> str:
    if "formatted_body" not in content:
        return content.get("body", "")
    reader = _TextReader()
    reader.feed(content["formatted_body"])
    return "".join(reader.parts).strip()


class _TextReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []

    def handle_data(self, data: str) -> None:
        self.parts.append(data)
