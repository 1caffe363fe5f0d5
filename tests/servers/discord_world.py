"""What `DiscordServer` knows: one bot, one server with channels and threads, direct chats, and all that was said."""

import hashlib
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

from talaria.testing.servers.chat_service import SeenMessage

Json: TypeAlias = dict[str, Any]

BOT = "9000"
BOT_ROLE = "9001"
APPLICATION = "9002"
GUILD = "3000"
_EPOCH_MS = 1_420_070_400_000
_SENT_BY_NOBODY: Json = {
    "tts": False,
    "mention_everyone": False,
    "mention_roles": [],
    "embeds": [],
    "pinned": False,
    "edited_timestamp": None,
    "components": [],
}


@dataclass(slots=True)
class DiscordRoom:
    """A channel of any kind."""

    id: str
    type: int
    name: str = ""
    parent: str | None = None
    person: str = ""
    """In a direct chat: with whom."""
    messages: dict[str, Json] = field(default_factory=dict[str, Json])
    edits: dict[str, int] = field(default_factory=dict[str, int])
    is_closed: bool = False
    """To the bot."""

    @property
    def is_direct(self) -> bool:
        return self.type == 1


class DiscordWorld:
    def __init__(self) -> None:
        self.rooms: dict[str, DiscordRoom] = {}
        self.names: dict[str, str] = {}
        self.files: dict[str, bytes] = {}
        self.commands: list[Json] = []
        self.signature = 1
        """Addresses of files with another one have expired."""
        self.base_url = ""
        self._last_id = 0

    def new_id(self) -> str:
        """A snowflake: it tells the time, and grows."""
        self._last_id = max(self._last_id + 1, (int(time.time() * 1000) - _EPOCH_MS) << 22)
        return str(self._last_id)

    def room(self, id: str, *, parent: str | None = None) -> tuple[DiscordRoom, bool]:
        """A channel of the server, or a thread; whether it was made just now."""
        if id in self.rooms:
            return self.rooms[id], False
        self.rooms[id] = DiscordRoom(id, 11 if parent else 0, f"room-{id}", parent)
        return self.rooms[id], True

    def direct(self, user: str) -> DiscordRoom:
        id = str(7_000_000 + int(user))
        return self.rooms.setdefault(id, DiscordRoom(id, 1, person=user))

    def user(self, id: str) -> Json:
        is_bot = id == BOT
        name = "talaria" if is_bot else self.names.get(id, f"user{id}")
        return {
            "id": id,
            "username": name,
            "global_name": None if is_bot else name.title(),
            "discriminator": "0",
            "avatar": None,
            "bot": is_bot,
        }

    def member(self, id: str) -> Json:
        roles = [BOT_ROLE] if id == BOT else []
        return {"roles": roles, "joined_at": "2024-01-01T00:00:00+00:00", "deaf": False, "mute": False, "flags": 0}

    def message(self, room: DiscordRoom, author: str, content: str, /, **more: Any) -> Json:
        """One more message in a room."""
        id = self.new_id()
        mentioned = dict.fromkeys(re.findall(r"<@!?([0-9]+)>", content))
        made: Json = {
            **_SENT_BY_NOBODY,
            "id": id,
            "channel_id": room.id,
            "author": self.user(author),
            "content": content,
            "timestamp": datetime.now(UTC).isoformat(),
            "type": 0,
            "flags": 0,
            "mentions": [self.user(each) for each in mentioned],
            "mention_roles": re.findall(r"<@&([0-9]+)>", content),
            "attachments": [],
            **more,
        }
        room.messages[id] = made
        return made

    def told(self, room: DiscordRoom, message: Json) -> Json:
        """As the gateway tells of it: there, and only there, one learns of which server it is."""
        fresh = self.fresh(message)
        if room.is_direct:
            return fresh
        mentions = [{**user, "member": self.member(user["id"])} for user in message["mentions"]]
        return {**fresh, "mentions": mentions, "guild_id": GUILD, "member": self.member(message["author"]["id"])}

    def fresh(self, message: Json) -> Json:
        """With addresses of its files that have not expired."""
        signed = [{**each, "url": self._signed(message["channel_id"], each)} for each in message["attachments"]]
        return {**message, "attachments": signed}

    def attach(self, name: str, content: bytes, mime: str) -> Json:
        id = self.new_id()
        self.files[id] = content
        return {"id": id, "filename": name, "size": len(content), "content_type": mime, "url": "", "proxy_url": ""}

    def _signed(self, room: str, upload: Json) -> str:
        return f"{self.base_url}/cdn/attachments/{room}/{upload['id']}/{upload['filename']}?hm={self.signature}"

    def channel(self, room: DiscordRoom) -> Json:
        last = next(reversed(room.messages), None)
        known: Json = {"id": room.id, "type": room.type, "last_message_id": last}
        if room.is_direct:
            return {**known, "recipients": [self.user(room.person)]}
        known |= {"guild_id": GUILD, "name": room.name, "position": 0, "permission_overwrites": [], "nsfw": False}
        known |= {"parent_id": room.parent}
        return known if room.parent is None else {**known, **_thread(room)}

    def guild(self) -> Json:
        everyone = {**_ROLE, "id": GUILD, "name": "@everyone"}
        own = {**_ROLE, "id": BOT_ROLE, "name": "talaria", "managed": True, "tags": {"bot_id": BOT}}
        shared = [room for room in self.rooms.values() if not room.is_direct]
        return {
            "id": GUILD,
            "name": "Guild",
            "unavailable": False,
            "owner_id": "1",
            "member_count": 2,
            "features": [],
            "emojis": [],
            "stickers": [],
            "roles": [everyone, own],
            "members": [{**self.member(BOT), "user": self.user(BOT)}],
            "channels": [self.channel(room) for room in shared if room.parent is None],
            "threads": [self.channel(room) for room in shared if room.parent is not None],
        }

    def seen(self, rooms: Iterable[DiscordRoom]) -> list[SeenMessage]:
        """What the bot has said there, oldest first."""
        said = [(room, each) for room in rooms for each in room.messages.values() if each["author"]["id"] == BOT]
        return [_seen(room, each) for room, each in sorted(said, key=lambda pair: int(pair[1]["id"]))]

    def shared_rooms(self, chat: str) -> list[DiscordRoom]:
        """A channel and its threads."""
        return [room for room in self.rooms.values() if chat in (room.id, room.parent)]


_ROLE: Json = {
    "permissions": "0",
    "color": 0,
    "colors": {"primary_color": 0, "secondary_color": None, "tertiary_color": None},
    "hoist": False,
    "position": 0,
    "managed": False,
    "mentionable": False,
    "flags": 0,
}


def _thread(room: DiscordRoom) -> Json:
    archiving = {
        "archived": False,
        "locked": False,
        "auto_archive_duration": 10080,
        "archive_timestamp": "2024-01-01T00:00:00+00:00",
    }
    return {"owner_id": BOT, "message_count": len(room.messages), "member_count": 2, "thread_metadata": archiving}


def _seen(room: DiscordRoom, message: Json) -> SeenMessage:
    buttons = [each for row in message["components"] for each in row["components"]]
    reference: Json = message.get("message_reference") or {}
    return SeenMessage(
        id=message["id"],
        text=unmarked(message["content"]),
        edits=room.edits.get(message["id"], 0),
        buttons=tuple((each["label"], each["custom_id"]) for each in buttons),
        thread=room.id if room.parent else "",
        reply_to=reference.get("message_id", ""),
        file=message["attachments"][0]["filename"] if message["attachments"] else "",
    )


def unmarked(content: str) -> str:
    """What a person reads of Discord's markdown."""

    def read(match: re.Match[str]) -> str:
        fence, code, label, escaped = match["fence"], match["code"], match["label"], match["escaped"]
        return next((part for part in (fence, code, label, escaped) if part is not None), "")

    lines = re.sub(r"^(#{1,3} |-# |> )", "", content, flags=re.MULTILINE)
    return re.sub(
        r"```\w*\n(?P<fence>.*?)\n?```|`+ ?(?P<code>[^`]+?) ?`+|\[(?P<label>[^\]]*)\]\(<?[^)>]*>?\)"
        r"|\\(?P<escaped>.)|\*+|__|~~|\|\||\u200b",
        read,
        lines,
        flags=re.DOTALL,
    )


def session_token(id: str) -> str:
    """Of an interaction: whoever has it may answer it."""
    return hashlib.sha256(f"interaction {id}".encode()).hexdigest()
