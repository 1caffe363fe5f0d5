"""The methods of Slack's Web API that `SlackServer` knows, on a `SlackWorkspace`. They refuse what Slack refuses."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from tests.servers import slack_blocks
from tests.servers.slack_workspace import (
    BOT,
    BOT_ID,
    TEAM,
    Post,
    SlackWorkspace,
    StoredFile,
    WorkspaceChannel,
)

Arguments = Mapping[str, Any]
Answer = dict[str, Any]

MOST_CHARS = 40_000


class SlackRefusal(Exception):
    """With Slack's word for it."""


class SlackApi:
    def __init__(self, workspace: SlackWorkspace, url: str) -> None:
        self._workspace = workspace
        self._url = url
        self.methods: Mapping[str, Callable[[Arguments], Answer]] = {
            "auth.test": lambda _: {"team_id": TEAM, "user_id": BOT, "bot_id": BOT_ID, "team": "Team", "user": "bot"},
            "apps.connections.open": lambda _: {"url": f"{url.replace('http', 'ws', 1)}/link?ticket=1"},
            "chat.postMessage": self._post,
            "chat.update": self._update,
            "chat.delete": self._delete,
            "chat.postEphemeral": self._whisper,
            "reactions.add": self._react,
            "conversations.history": self._history,
            "conversations.replies": self._replies,
            "conversations.info": self._info,
            "users.conversations": self._list,
            "users.info": self._user,
            "files.getUploadURLExternal": self._ticket,
            "files.completeUploadExternal": self._complete,
            "files.info": lambda given: {"file": self._file(given).told()},
            "files.delete": self._delete_file,
        }

    def _channel(self, given: Arguments, name: str = "channel") -> WorkspaceChannel:
        channel = self._workspace.channels.get(str(given.get(name, "")))
        if channel is None:
            raise SlackRefusal("channel_not_found")
        if not channel.has_bot:
            raise SlackRefusal("not_in_channel")
        return channel

    def _writable(self, given: Arguments, name: str = "channel") -> WorkspaceChannel:
        channel = self._channel(given, name)
        if channel.is_archived:
            raise SlackRefusal("is_archived")
        return channel

    def _ours(self, channel: WorkspaceChannel, ts: object, forbidden: str) -> Post:
        post = channel.posts.get(str(ts))
        if post is None:
            raise SlackRefusal("message_not_found")
        if not post.is_ours:
            raise SlackRefusal(forbidden)
        return post

    def _post(self, given: Arguments) -> Answer:
        channel = self._writable(given)
        text, blocks = _content(given)
        post = Post(
            self._workspace.next_ts(), BOT, text, str(given.get("thread_ts") or ""), blocks, given.get("metadata")
        )
        channel.add(post)
        return {"channel": channel.id, "ts": post.ts, "message": post.told()}

    def _update(self, given: Arguments) -> Answer:
        channel = self._writable(given)
        post = self._ours(channel, given.get("ts"), "cant_update_message")
        post.text, post.blocks = _content(given)
        post.edits += 1
        return {"channel": channel.id, "ts": post.ts, "text": post.text}

    def _delete(self, given: Arguments) -> Answer:
        channel = self._channel(given)
        post = self._ours(channel, given.get("ts"), "cant_delete_message")
        channel.remove(post)
        return {"channel": channel.id, "ts": post.ts}

    def _whisper(self, given: Arguments) -> Answer:
        channel = self._writable(given)
        if given.get("user") not in self._workspace.names:
            raise SlackRefusal("user_not_in_channel")
        text, _ = _content(given)
        self._workspace.whispers.append({"channel": channel.id, "user": given["user"], "text": text})
        return {"message_ts": self._workspace.next_ts()}

    def _react(self, given: Arguments) -> Answer:
        post = self._channel(given).posts.get(str(given.get("timestamp")))
        name = str(given.get("name"))
        if post is None:
            raise SlackRefusal("message_not_found")
        if not name.isascii():
            raise SlackRefusal("invalid_name")
        if name in post.reactions:
            raise SlackRefusal("already_reacted")
        post.reactions.append(name)
        return {}

    def _history(self, given: Arguments) -> Answer:
        channel = self._channel(given)
        oldest = str(given.get("oldest") or "")
        posts = [post for post in reversed(channel.posts.values()) if not post.thread and post.ts > oldest]
        return _page("messages", [channel.kept(post) for post in posts], given)

    def _replies(self, given: Arguments) -> Answer:
        channel = self._channel(given)
        parent = channel.posts.get(str(given.get("ts")))
        if parent is None:
            raise SlackRefusal("thread_not_found")
        oldest = str(given.get("oldest") or "")
        posts = [parent, *(post for post in channel.replies(parent.ts) if post.ts > oldest)]
        return _page("messages", [channel.kept(post) for post in posts], given)

    def _info(self, given: Arguments) -> Answer:
        channel = self._channel(given)
        direct = {"user": channel.user} if channel.user else {"name": channel.id.lower()}
        return {"channel": {"id": channel.id, "is_im": bool(channel.user), **direct}}

    def _list(self, given: Arguments) -> Answer:
        wants_direct = "im" in str(given.get("types") or "public_channel").split(",")
        channels = [one for one in self._workspace.channels.values() if bool(one.user) == wants_direct and one.has_bot]
        return _page("channels", [{"id": one.id, "is_im": wants_direct, "user": one.user} for one in channels], given)

    def _user(self, given: Arguments) -> Answer:
        id = str(given.get("user"))
        if id not in self._workspace.names:
            raise SlackRefusal("user_not_found")
        name = self._workspace.names[id]
        return {"user": {"id": id, "name": name, "real_name": name, "profile": {"display_name": name}}}

    def _ticket(self, given: Arguments) -> Answer:
        if not given.get("filename") or int(given.get("length") or 0) < 1:
            raise SlackRefusal("invalid_arguments")
        id = f"F{len(self._workspace.files) + 1:04}"
        self._workspace.files[id] = StoredFile(id, str(given["filename"]), url=f"{self._url}/files/{id}")
        return {"upload_url": f"{self._url}/upload/{id}", "file_id": id}

    def _complete(self, given: Arguments) -> Answer:
        listed = cast("list[dict[str, str]]", _json(given.get("files")))
        files = [self._file({"file": one["id"]}) for one in listed]
        if not all(file.content for file in files):
            raise SlackRefusal("file_upload_in_progress")
        channel = self._writable(given, "channel_id")
        comment, thread = str(given.get("initial_comment") or ""), str(given.get("thread_ts") or "")
        channel.add(Post(self._workspace.next_ts(), BOT, comment, thread, files=files))
        return {"files": [{"id": file.id, "title": file.name} for file in files]}

    def _file(self, given: Arguments) -> StoredFile:
        file = self._workspace.files.get(str(given.get("file")))
        if file is None:
            raise SlackRefusal("file_not_found")
        if file.is_deleted:
            raise SlackRefusal("file_deleted")
        return file

    def _delete_file(self, given: Arguments) -> Answer:
        file = self._file(given)
        file.is_deleted = True
        for channel in self._workspace.channels.values():
            for post in [post for post in channel.ours.values() if file in post.files]:
                channel.remove(post)
        return {}


def _content(given: Arguments) -> tuple[str, Sequence[slack_blocks.Block]]:
    text = str(given.get("text") or "")
    blocks = cast("list[slack_blocks.Block]", _json(given.get("blocks")) or [])
    if not text and not blocks:
        raise SlackRefusal("no_text")
    if len(text) > MOST_CHARS:
        raise SlackRefusal("msg_too_long")
    if word := slack_blocks.problem(blocks):
        raise SlackRefusal(word)
    return text, blocks


def _json(value: Any) -> Any:
    """Forms carry lists as text."""
    return json.loads(value) if isinstance(value, str) else value


def _page(name: str, items: Sequence[Any], given: Arguments) -> Answer:
    start = int(given.get("cursor") or 0)
    end = start + int(given.get("limit") or 100)
    following = str(end) if end < len(items) else ""
    return {name: items[start:end], "has_more": bool(following), "response_metadata": {"next_cursor": following}}
