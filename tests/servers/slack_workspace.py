"""What stands in the workspace of a `SlackServer`: people, channels, posts, files."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import unescape
from typing import Any

from tests.servers import slack_blocks

from talaria.testing.servers.chat_service import SeenMessage

TEAM = "T0001"
BOT = "UBOT1"
BOT_ID = "B0001"


@dataclass
class StoredFile:
    id: str
    name: str
    mime: str = "application/octet-stream"
    content: bytes = b""
    url: str = ""
    is_deleted: bool = False

    def told(self) -> dict[str, Any]:
        known = {"id": self.id, "name": self.name, "mimetype": self.mime, "size": len(self.content), "mode": "hosted"}
        return {**known, "url_private": self.url, "url_private_download": self.url}


@dataclass
class Post:
    ts: str
    user: str
    text: str
    thread: str = ""
    blocks: Sequence[Mapping[str, Any]] = ()
    metadata: Mapping[str, Any] | None = None
    files: Sequence[StoredFile] = ()
    edits: int = 0
    reactions: list[str] = field(default_factory=list[str])

    @property
    def is_ours(self) -> bool:
        return self.user == BOT

    def told(self) -> dict[str, Any]:
        said: dict[str, Any] = {"type": "message", "ts": self.ts, "user": self.user, "text": self.text, "team": TEAM}
        if self.is_ours:
            said |= {"bot_id": BOT_ID, "blocks": list(self.blocks)}
        if self.metadata:
            said["metadata"] = self.metadata
        if self.thread:
            said["thread_ts"] = self.thread
        if self.files:
            said |= {"files": [file.told() for file in self.files], "upload": True}
            said |= {} if self.is_ours else {"subtype": "file_share"}
        return said

    def seen(self) -> SeenMessage:
        pressable = tuple((str(one["text"]["text"]), str(one["value"])) for one in slack_blocks.buttons(self.blocks))
        file = self.files[0] if self.files else None
        return SeenMessage(
            file.id if file else self.ts,
            slack_blocks.words(self.blocks) or unescape(self.text),
            self.edits,
            pressable,
            self.thread,
            file=file.name if file else "",
        )


@dataclass
class WorkspaceChannel:
    id: str
    user: str = ""
    """Of a direct message: with whom."""
    has_bot: bool = True
    is_archived: bool = False
    posts: dict[str, Post] = field(default_factory=dict[str, Post])
    ours: dict[str, Post] = field(default_factory=dict[str, Post])
    """The bot's."""

    def add(self, post: Post) -> None:
        self.posts[post.ts] = post
        if post.is_ours:
            self.ours[post.ts] = post

    def remove(self, post: Post) -> None:
        del self.posts[post.ts]
        self.ours.pop(post.ts, None)

    def replies(self, thread: str) -> list[Post]:
        return [post for post in self.posts.values() if post.thread == thread]

    def told(self, post: Post) -> dict[str, Any]:
        """As in an event."""
        parent = self.posts.get(post.thread)
        return post.told() | ({"parent_user_id": parent.user} if parent else {})

    def kept(self, post: Post) -> dict[str, Any]:
        """As in the history."""
        replies = self.replies(post.ts)
        more = {"thread_ts": post.ts, "reply_count": len(replies), "latest_reply": replies[-1].ts} if replies else {}
        return self.told(post) | more


class SlackWorkspace:
    def __init__(self) -> None:
        self.channels: dict[str, WorkspaceChannel] = {}
        self.names: dict[str, str] = {}
        self.files: dict[str, StoredFile] = {}
        self.whispers: list[dict[str, Any]] = []
        """What only one person sees."""
        self._last_ts = 0.0

    def next_ts(self) -> str:
        self._last_ts = max(time.time(), self._last_ts + 0.000_01)
        return f"{self._last_ts:.6f}"

    def person(self, user: str) -> str:
        """Their id: `1001` is `U1001`."""
        id = user if user[:1] in {"U", "W"} else f"U{user}"
        self.names.setdefault(id, f"name-of-{id}")
        return id

    def channel(self, user: str, chat: str) -> WorkspaceChannel:
        """The channel, or without one the direct messages of that person: `1001` is `D1001`."""
        person = self.person(user)
        if not chat or chat.startswith("D"):
            return self.channels.setdefault(
                chat or f"D{person[1:]}", WorkspaceChannel(chat or f"D{person[1:]}", person)
            )
        id = chat if chat[:1] in {"C", "G"} else f"C{chat}"
        return self.channels.setdefault(id, WorkspaceChannel(id))
