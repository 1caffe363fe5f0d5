"""Discord on loopback: REST (v10), gateway socket, files, interactions, and their faults."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from aiohttp import web
from tests.servers.discord_gateway import DiscordGateway
from tests.servers.discord_rest import Api, DiscordRestError, Operation, arguments
from tests.servers.discord_world import (
    APPLICATION,
    BOT,
    GUILD,
    DiscordRoom,
    DiscordWorld,
    Json,
    session_token,
)

from talaria.testing.servers.chat_service import Fault, Loopback, LostAnswer, Refusal, SeenMessage, deliver

_WORDS = {400: "Bad Request", 401: "401: Unauthorized", 403: "Missing Access", 429: "You are being rate limited."}
_CODES = {403: 50001}


class DiscordServer(Loopback):
    """A bot's Discord, alive inside `async with`: one server (guild), whose channels come to be when they are used.

    Methods for `fault` and `calls` are named as in Discord's documentation: `create_message`, `edit_message`,
    `delete_message`, `get_messages`, `get_message`, `create_reaction`, `trigger_typing`, `create_thread`, `create_dm`,
    `get_channel`, `get_current_user`, `get_gateway_bot`, `overwrite_commands`, `create_interaction_response`,
    `create_followup_message`, and `get_attachment` for files.
    """

    def __init__(self, *, token: str = "discord-token", heartbeat_s: float = 41.25) -> None:
        super().__init__()
        self.token = token
        self._world = DiscordWorld()
        self.gateway = DiscordGateway(self._world, token, heartbeat_s)
        self._api = Api(self._world, self.gateway)
        self.bot = BOT
        self.channel = self._world.room("2001")[0].id

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 * 2**20)
        for method, path, name, operation in self._api.routes:
            app.router.add_route(method, f"/api/v10{path}", self._handler(name, operation))
        app.router.add_get("/gateway/", self.gateway.serve)
        app.router.add_get("/cdn/attachments/{channel}/{upload}/{name}", self._get_attachment)
        address = f"127.0.0.1:{await self._open(app)}"
        self._world.base_url = f"http://{address}"
        self.gateway.url = f"ws://{address}/gateway/"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.gateway.close(1001)
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"{self._world.base_url}/api/v10"

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"token": self.token, "api_url": self.url}

    async def say(
        self,
        text: str,
        *,
        user: str = "1001",
        chat: str = "",
        thread: str = "",
        reply_to: str = "",
        file: tuple[str, bytes, str] | None = None,
        **more: Any,
    ) -> str:
        """`file` is name, content and type; `more` are fields of Discord's message. `<@ID>` in the text mentions."""
        room = await self._room(user, chat, thread)
        if file is not None:
            more["attachments"] = [self._world.attach(*file)]
        if reply_to:
            more |= {"type": 19, "referenced_message": room.messages[reply_to]}
            more["message_reference"] = {"message_id": reply_to, "channel_id": room.id}
        message = self._world.message(room, user, text, **more)
        await self.gateway.tell("MESSAGE_CREATE", self._world.told(room, message))
        return message["id"]

    async def remove(self, *messages: str) -> None:
        """Somebody deletes them; several at once, as a moderator can, in one channel."""
        room = self._holding(messages[0])
        for message in messages:
            del room.messages[message]
        place = {"channel_id": room.id, **({} if room.is_direct else {"guild_id": GUILD})}
        if len(messages) == 1:
            await self.gateway.tell("MESSAGE_DELETE", {"id": messages[0], **place})
        else:
            await self.gateway.tell("MESSAGE_DELETE_BULK", {"ids": list(messages), **place})

    async def tell_again(self, message: str) -> None:
        """The gateway tells of a message a second time."""
        room = self._holding(message)
        await self.gateway.tell("MESSAGE_CREATE", self._world.told(room, room.messages[message]))

    async def press(self, message: str, data: str, *, user: str = "1001", chat: str = "") -> None:
        """Messages have ids of their own in all of Discord: `chat` is not needed."""
        room = self._holding(message)
        if data not in [
            button for seen in self._world.seen([room]) if seen.id == message for _, button in seen.buttons
        ]:
            raise ValueError(f"the message {message} has no button {data!r}")
        pressed = {"custom_id": data, "component_type": 2}
        shown = self._world.fresh(room.messages[message])
        await self._interact(room, user, {"type": 3, "data": pressed, "message": shown})

    async def command(self, name: str, text: str = "", *, user: str = "1001", chat: str = "", thread: str = "") -> str:
        """Somebody chooses a slash command. The interaction's id."""
        options = [{"type": 3, "name": "text", "value": text}] if text else []
        data = {"id": "1", "type": 1, "name": name, "options": options}
        return await self._interact(await self._room(user, chat, thread), user, {"type": 2, "data": data})

    def name(self, user: str, name: str) -> None:
        """What somebody is called from now on."""
        self._world.names[user] = name

    def dm(self, user: str = "1001") -> str:
        """The id of somebody's direct chat with the bot."""
        return self._world.direct(user).id

    def add_channel(self, id: str, *, parent: str | None = None) -> None:
        """A channel, or a thread of another: told to whoever connects from now on."""
        self._world.room(id, parent=parent)

    def close_chat(self, *, user: str = "1001", chat: str = "") -> None:
        """The bot is blocked by somebody, or removed from a channel."""
        (self._world.rooms[chat] if chat else self._world.direct(user)).is_closed = True

    def expire_links(self) -> None:
        """Addresses of files given out so far stop working."""
        self._world.signature += 1

    def forget_nonces(self) -> None:
        """As Discord does after some minutes."""
        self._api.forget_nonces()

    async def close_socket(self, code: int) -> None:
        await self.gateway.close(code)

    def refuse_resume(self) -> None:
        self.gateway.resumes = False

    def list_messages(self, *, user: str = "1001", chat: str = "") -> Sequence[SeenMessage]:
        return self._world.seen(self._world.shared_rooms(chat) if chat else [self._world.direct(user)])

    async def wait_for(self, count: int, *, user: str = "1001", chat: str = "") -> Sequence[SeenMessage]:
        await self._until(lambda: len(self.list_messages(user=user, chat=chat)) >= count, f"{count} messages")
        return self.list_messages(user=user, chat=chat)

    def raw(self, message: str) -> Mapping[str, Any]:
        """A message as Discord keeps it."""
        return self._holding(message).messages[message]

    @property
    def commands(self) -> Sequence[Mapping[str, Any]]:
        """The menu that people are offered."""
        return self._world.commands

    async def _room(self, user: str, chat: str, thread: str) -> DiscordRoom:
        if not chat:
            return self._world.direct(user)
        room, is_new = self._world.room(chat)
        if is_new:
            await self.gateway.tell("CHANNEL_CREATE", self._world.channel(room))
        if not thread:
            return room
        room, is_new = self._world.room(thread, parent=chat)
        if is_new:
            await self.gateway.tell("THREAD_CREATE", self._world.channel(room))
        return room

    def _holding(self, message: str) -> DiscordRoom:
        return next(room for room in self._world.rooms.values() if message in room.messages)

    async def _interact(self, room: DiscordRoom, user: str, told: Json) -> str:
        id = self._world.new_id()
        token = session_token(id)
        self._api.begin(id, token)
        who: Json = {"user": self._world.user(user)}
        if not room.is_direct:
            who = {"guild_id": GUILD, "member": {**self._world.member(user), **who, "permissions": "0"}}
        common = {
            "id": id,
            "token": token,
            "version": 1,
            "application_id": APPLICATION,
            "channel_id": room.id,
            "channel": self._world.channel(room),
            "attachment_size_limit": 10 * 2**20,
            "locale": "en-US",
        }
        await self.gateway.tell("INTERACTION_CREATE", {**common, **who, **told})
        return id

    def _handler(self, name: str, operation: Operation) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.StreamResponse:
            given = await arguments(request)
            fault = self._record_call(name, given)
            try:
                response = await self._answer(request, operation, given, fault)
            finally:
                await self._tell_change()
            return await deliver(request, response, fault)

        return handle

    async def _answer(self, request: web.Request, do: Operation, given: Json, fault: Fault | None) -> web.Response:
        if isinstance(fault, Refusal):
            return _refused(fault)
        if request.headers.get("Authorization") != f"Bot {self.token}":
            return _problem(401, 0, _WORDS[401])
        try:
            result = await do(given)
        except DiscordRestError as problem:
            return _problem(problem.status, problem.code, str(problem))
        return web.Response(status=204) if result is None else _json(result)

    async def _get_attachment(self, request: web.Request) -> web.StreamResponse:
        fault = self._record_call("get_attachment", request.match_info)
        if isinstance(fault, Refusal):
            return web.Response(status=fault.status)
        if request.query.get("hm") != str(self._world.signature):
            return web.Response(status=404, text="This content is no longer available.")
        content = self._world.files[request.match_info["upload"]]
        if isinstance(fault, LostAnswer):
            return await _half(request, content)
        return await deliver(request, web.Response(body=content), fault)


async def _half(request: web.Request, content: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": str(len(content))})
    await response.prepare(request)
    await response.write(content[: len(content) // 2])
    if request.transport is not None:
        request.transport.close()
    return response


def _refused(fault: Refusal) -> web.Response:
    words = fault.words or _WORDS.get(fault.status, "Internal Server Error")
    body: Json = {"message": words, "code": _CODES.get(fault.status, 0), **fault.extra}
    headers: dict[str, str] = {}
    if fault.retry_after_s is not None:
        body |= {"retry_after": fault.retry_after_s, "global": fault.extra.get("global", False)}
        scope = "global" if body["global"] else "user"
        headers = {"Retry-After": f"{fault.retry_after_s:.0f}", "X-RateLimit-Scope": scope, "Via": "1.1 google"}
    return _json(body, status=fault.status, headers=headers)


def _json(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """With no charset after the type, as Discord answers: its clients compare."""
    body = json.dumps(content).encode()
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


def _problem(status: int, code: int, words: str) -> web.Response:
    return _json({"message": words, "code": code}, status=status)
