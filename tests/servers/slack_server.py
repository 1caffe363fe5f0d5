"""A loopback server that plays Slack to the real SDK: the Web API, Socket Mode, uploads and downloads."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Self

from aiohttp import WSCloseCode, WSMsgType, web
from tests.servers.slack_api import Answer, SlackApi, SlackRefusal
from tests.servers.slack_blocks import buttons
from tests.servers.slack_workspace import BOT, TEAM, Post, SlackWorkspace, StoredFile

from talaria.testing.servers.chat_service import Fault, Loopback, Refusal, SeenMessage, deliver

BOT_TOKEN = "xoxb-test"
APP_TOKEN = "xapp-test"
MOST_RETRIES = 3


class SlackServer(Loopback):
    """Alive inside `async with`. People are `U1001` (or just `1001`), their direct messages `D1001`, channels `C…`.

    An envelope that is not acknowledged within `ack_within_s` comes again, up to three times, and so does one whose
    connection is lost. What is said while nobody is connected is in the history only.
    """

    def __init__(self, *, ack_within_s: float = 3.0) -> None:
        super().__init__()
        self._ack_within_s = ack_within_s
        self._workspace = SlackWorkspace()
        self._lines: dict[web.WebSocketResponse, web.Request] = {}
        self._unacknowledged: dict[str, dict[str, Any]] = {}
        self._acknowledged: list[str] = []
        self._again: set[asyncio.Future[None]] = set()
        self._numbers = count(1)
        self.answers_pings = True
        """Else connections look alive and are not."""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/api/{method}", self._answer)
        app.router.add_get("/link", self._talk)
        app.router.add_post("/upload/{id}", self._upload)
        app.router.add_get("/files/{id}", self._download)
        self._port = await self._open(app)
        self._api = SlackApi(self._workspace, self.url)
        self._workspace.channel("1001", "")
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._again:
            task.cancel()
        self.cut_lines()
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"bot_token": BOT_TOKEN, "app_token": APP_TOKEN, "api_url": f"{self.url}/api/"}

    @property
    def mention(self) -> str:
        """Of the bot, as it stands in a message."""
        return f"<@{BOT}>"

    @property
    def acknowledged(self) -> Sequence[str]:
        """Ids of envelopes, in order."""
        return tuple(self._acknowledged)

    @property
    def whispers(self) -> Sequence[Mapping[str, Any]]:
        """What only one person sees: `channel`, `user`, `text`."""
        return tuple(self._workspace.whispers)

    async def say(self, text: str, *, user: str = "1001", chat: str = "", thread: str = "", **more: Any) -> str:
        """`more` are fields of Slack's event."""
        return await self._said(Post(self._workspace.next_ts(), "", text, thread), user, chat, more)

    async def share(
        self, name: str, content: bytes, mime: str, *, text: str = "", user: str = "1001", chat: str = ""
    ) -> str:
        """Somebody posts a file. The message's id."""
        id = f"F{len(self._workspace.files) + 1:04}"
        file = StoredFile(id, name, mime, content, f"{self.url}/files/{id}")
        self._workspace.files[id] = file
        return await self._said(Post(self._workspace.next_ts(), "", text, files=[file]), user, chat)

    async def _said(self, post: Post, user: str, chat: str, more: Mapping[str, Any] | None = None) -> str:
        channel = self._workspace.channel(user, chat)
        post.user = self._workspace.person(user)
        channel.add(post)
        event = {**channel.told(post), "channel": channel.id, "event_ts": post.ts, **(more or {})}
        if not channel.user and self.mention in post.text:
            await self.tell({**event, "type": "app_mention"})
        await self.tell({**event, "channel_type": "im" if channel.user else "channel"})
        return post.ts

    async def remove(self, message: str, *, user: str = "1001", chat: str = "") -> None:
        """Somebody deletes what they said."""
        channel = self._workspace.channel(user, chat)
        before = channel.told(channel.posts.pop(message))
        event = {"type": "message", "subtype": "message_deleted", "hidden": True, "channel": channel.id}
        times = {"ts": self._workspace.next_ts(), "deleted_ts": message}
        await self.tell({**event, **times, "previous_message": before})

    async def tell(self, event: Mapping[str, Any]) -> None:
        """Any event, as Slack would word it."""
        payload = {"type": "event_callback", "team_id": TEAM, "event": event, "event_id": f"Ev{next(self._numbers)}"}
        await self._send("events_api", payload)

    async def command(self, text: str, *, user: str = "1001", chat: str = "") -> None:
        """Somebody types `/talaria TEXT`."""
        channel, person = self._workspace.channel(user, chat), self._workspace.person(user)
        payload = {"command": "/talaria", "text": text, "channel_id": channel.id, "user_id": person, "team_id": TEAM}
        names = {"user_name": self._workspace.names[person], "trigger_id": f"{next(self._numbers)}.1.abc"}
        await self._send("slash_commands", {**payload, **names})

    async def press(self, message: str, data: str, *, user: str = "1001", chat: str = "") -> None:
        channel, person = self._workspace.channel(user, chat), self._workspace.person(user)
        post = channel.posts.get(message)
        pressed = next((one for one in buttons(post.blocks if post else ()) if one["value"] == data), None)
        if post is None or pressed is None:
            raise LookupError(f"no message {message} with a button that carries {data!r}")
        container = {"type": "message", "message_ts": post.ts, "channel_id": channel.id}
        payload = {
            "type": "block_actions",
            "user": {"id": person, "username": self._workspace.names[person], "team_id": TEAM},
            "container": container | ({"thread_ts": post.thread} if post.thread else {}),
            "channel": {"id": channel.id},
            "message": post.told(),
            "actions": [{**pressed, "action_ts": self._workspace.next_ts()}],
        }
        await self._send("interactive", payload)

    def rename(self, user: str, name: str) -> None:
        self._workspace.names[self._workspace.person(user)] = name

    def remove_bot(self, chat: str) -> None:
        self._workspace.channel("1001", chat).has_bot = False

    def archive(self, chat: str) -> None:
        self._workspace.channel("1001", chat).is_archived = True

    def list_messages(self, *, user: str = "1001", chat: str = "") -> Sequence[SeenMessage]:
        return [post.seen() for post in self._workspace.channel(user, chat).ours.values()]

    async def wait_for(self, count: int, *, user: str = "1001", chat: str = "") -> Sequence[SeenMessage]:
        channel = self._workspace.channel(user, chat)
        await self._until(lambda: len(channel.ours) >= count, f"{count} messages")
        return self.list_messages(user=user, chat=chat)

    async def wait_for_lines(self, count: int) -> None:
        """Until that many connections are open."""
        await self._until(lambda: len(self._lines) == count, f"{count} connections")

    async def wait_for_acknowledged(self, count: int) -> Sequence[str]:
        await self._until(lambda: len(self._acknowledged) >= count, f"{count} acknowledgements")
        return self.acknowledged

    def reactions(self, message: str, *, user: str = "1001", chat: str = "") -> Sequence[str]:
        post = self._workspace.channel(user, chat).posts.get(message)
        return tuple(post.reactions) if post else ()

    def uploaded(self, name: str) -> bytes:
        return next(file.content for file in self._workspace.files.values() if file.name == name)

    def fault(self, method: str, *faults: Fault) -> None:
        """As Slack names methods; also `files.upload` and `files.download`. A refusal with status 200 is an answer that
        is not ok, with `words` as its error."""
        super().fault(method, *faults)

    async def disconnect(self, reason: str) -> None:
        """Slack asks every connection to go: `warning`, `refresh_requested`, `link_disabled`, `too_many_websockets`."""
        for line in list(self._lines):
            await line.send_json({"type": "disconnect", "reason": reason, "debug_info": {}})

    async def close_lines(self, code: int = WSCloseCode.GOING_AWAY) -> None:
        for line in list(self._lines):
            await line.close(code=code)

    def cut_lines(self) -> None:
        """Without a word."""
        for request in self._lines.values():
            if request.transport is not None:
                request.transport.abort()

    def move_file(self, name: str, url: str) -> None:
        """Its address is somewhere else now."""
        for file in self._workspace.files.values():
            if file.name == name:
                file.url = url

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        given = await _arguments(request)
        fault = self._record_call(method, given)
        if isinstance(fault, Refusal):
            return _refused(fault)
        answer = self._done(method, given, request.headers.get("Authorization", ""))
        await self._tell_change()
        return await deliver(request, web.json_response(answer), fault)

    def _done(self, method: str, given: Mapping[str, Any], authorization: str) -> Answer:
        token = APP_TOKEN if method == "apps.connections.open" else BOT_TOKEN
        if not authorization:
            return {"ok": False, "error": "not_authed"}
        if authorization != f"Bearer {token}":
            return {"ok": False, "error": "invalid_auth"}
        if method not in self._api.methods:
            return {"ok": False, "error": "unknown_method"}
        try:
            return {"ok": True, **self._api.methods[method](given)}
        except SlackRefusal as refusal:
            return {"ok": False, "error": str(refusal)}

    async def _upload(self, request: web.Request) -> web.StreamResponse:
        fault = self._record_call("files.upload", request.match_info)
        content = await request.read()
        if isinstance(fault, Refusal):
            return _refused(fault)
        self._workspace.files[request.match_info["id"]].content = content
        return await deliver(request, web.Response(text=f"OK - {len(content)}"), fault)

    async def _download(self, request: web.Request) -> web.StreamResponse:
        authorization = request.headers.get("Authorization", "")
        fault = self._record_call("files.download", {"authorization": authorization})
        if isinstance(fault, Refusal):
            return _refused(fault)
        file = self._workspace.files.get(request.match_info["id"])
        if authorization != f"Bearer {BOT_TOKEN}" or file is None:
            return web.Response(status=302, headers={"Location": f"{self.url}/login"})
        return await deliver(request, web.Response(body=file.content, content_type=file.mime), fault)

    async def _talk(self, request: web.Request) -> web.WebSocketResponse:
        line = web.WebSocketResponse(autoping=False, timeout=0.1)
        await line.prepare(request)
        self._lines[line] = request
        try:
            with suppress(ConnectionError):  # whoever was there is gone
                await line.send_json({"type": "hello", "num_connections": len(self._lines), "debug_info": {}})
                await self._tell_change()
                for id in list(self._unacknowledged):
                    await self._send_again(id)
                await self._listen(line)
        finally:
            del self._lines[line]
            await self._tell_change()
        return line

    async def _listen(self, line: web.WebSocketResponse) -> None:
        async for message in line:
            if message.type is WSMsgType.PING and self.answers_pings:
                await line.pong(message.data)
            elif message.type is WSMsgType.TEXT:
                id = str(json.loads(message.data).get("envelope_id"))
                if self._unacknowledged.pop(id, None) is not None:
                    self._acknowledged.append(id)
                    await self._tell_change()

    async def _send(self, type: str, payload: Mapping[str, Any]) -> None:
        if not self._lines:
            return
        id = f"envelope-{next(self._numbers)}"
        self._unacknowledged[id] = {
            "type": type,
            "envelope_id": id,
            "payload": payload,
            "accepts_response_payload": type != "events_api",
            "retry_attempt": 0,
            "retry_reason": "",
        }
        await self._put(id)

    async def _put(self, id: str) -> None:
        """On the newest connection: each envelope goes to one of them."""
        asyncio.get_running_loop().call_later(self._ack_within_s, self._expire, id)
        if self._lines:
            with suppress(ConnectionError):
                await next(reversed(self._lines)).send_json(self._unacknowledged[id])

    def _expire(self, id: str) -> None:
        if id in self._unacknowledged and self._lines:
            self._again.add(task := asyncio.ensure_future(self._send_again(id)))
            task.add_done_callback(self._again.discard)

    async def _send_again(self, id: str) -> None:
        envelope = self._unacknowledged.get(id)
        if envelope is None:
            return
        if envelope["retry_attempt"] >= MOST_RETRIES:
            del self._unacknowledged[id]
            return
        envelope |= {"retry_attempt": envelope["retry_attempt"] + 1, "retry_reason": "timeout"}
        await self._put(id)


async def _arguments(request: web.Request) -> dict[str, Any]:
    if request.content_type == "application/json":
        return {**request.query, **await request.json()}
    return {**request.query, **await request.post()}


def _refused(refusal: Refusal) -> web.Response:
    if refusal.status >= 500 and not refusal.words:
        return web.Response(status=refusal.status, text="<html>Server Error</html>", content_type="text/html")
    error = refusal.words or ("ratelimited" if refusal.status == 429 else "internal_error")
    headers = {} if refusal.retry_after_s is None else {"Retry-After": f"{refusal.retry_after_s:g}"}
    headers |= {name: str(value) for name, value in refusal.extra.items() if name == "Location"}
    body = {"ok": False, "error": error, **refusal.extra}
    return web.json_response(body, status=refusal.status, headers=headers)
