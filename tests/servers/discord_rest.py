"""The REST API of `DiscordServer`: each operation checks what it is given as Discord does, and has its effect."""

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from aiohttp import web
from tests.servers.discord_gateway import DiscordGateway
from tests.servers.discord_world import APPLICATION, BOT, DiscordRoom, DiscordWorld, Json

_MAX_CHARS = 2000
_MAX_NONCE = 25
_MAX_UPLOAD_BYTES = 10 * 2**20

Arguments: TypeAlias = Mapping[str, Any]
Operation: TypeAlias = Callable[[Arguments], Awaitable[Any]]


class DiscordRestError(Exception):
    """An error answer of Discord's."""

    def __init__(self, status: int, code: int, words: str) -> None:
        super().__init__(words)
        self.status = status
        self.code = code


class Api:
    """Operations by name; each gets the parts of its path, the query and the body as one mapping."""

    def __init__(self, world: DiscordWorld, gateway: DiscordGateway) -> None:
        self._world = world
        self._gateway = gateway
        self._nonces: dict[str, tuple[DiscordRoom, str]] = {}
        self._interactions: dict[str, str] = {}
        """Tokens of those that are under way, and whether they were answered."""

    @property
    def routes(self) -> list[tuple[str, str, str, Operation]]:
        """Method, path, name of the operation."""
        message = "/channels/{channel}/messages/{message}"
        return [
            ("GET", "/users/@me", "get_current_user", self._get_current_user),
            ("GET", "/gateway/bot", "get_gateway_bot", self._get_gateway_bot),
            ("POST", "/users/@me/channels", "create_dm", self._create_dm),
            ("GET", "/channels/{channel}", "get_channel", self._get_channel),
            ("GET", "/channels/{channel}/messages", "get_messages", self._get_messages),
            ("POST", "/channels/{channel}/messages", "create_message", self._create_message),
            ("GET", message, "get_message", self._get_message),
            ("PATCH", message, "edit_message", self._edit_message),
            ("DELETE", message, "delete_message", self._delete_message),
            ("PUT", message + "/reactions/{emoji}/@me", "create_reaction", self._create_reaction),
            ("POST", "/channels/{channel}/typing", "trigger_typing", self._trigger_typing),
            ("POST", "/channels/{channel}/threads", "create_thread", self._create_thread),
            ("POST", message + "/threads", "create_thread_from_message", self._create_thread_from_message),
            ("PUT", "/applications/{application}/commands", "overwrite_commands", self._overwrite_commands),
            ("POST", "/interactions/{id}/{token}/callback", "create_interaction_response", self._respond),
            ("POST", "/webhooks/{application}/{token}", "create_followup_message", self._follow_up),
        ]

    def begin(self, id: str, token: str) -> None:
        """An interaction that waits for an answer."""
        self._interactions[token] = id

    def forget_nonces(self) -> None:
        """As Discord does after some minutes."""
        self._nonces.clear()

    async def _get_current_user(self, _: Arguments) -> Json:
        return self._world.user(BOT)

    async def _get_gateway_bot(self, _: Arguments) -> Json:
        left, reset_ms = self._gateway.starts_left, int(self._gateway.starts_reset_s * 1000)
        limit = {"total": 1000, "remaining": left, "reset_after": reset_ms, "max_concurrency": 1}
        return {"url": self._gateway.url, "shards": 1, "session_start_limit": limit}

    async def _create_dm(self, given: Arguments) -> Json:
        return self._world.channel(self._world.direct(given["recipient_id"]))

    async def _get_channel(self, given: Arguments) -> Json:
        return self._world.channel(self._room(given))

    async def _get_messages(self, given: Arguments) -> list[Json]:
        """The first after that message, but the newest of them first."""
        limit = int(given.get("limit", 50))
        if not 1 <= limit <= 100:
            raise DiscordRestError(400, 50035, "Invalid Form Body")
        after = int(given.get("after", 0))
        found = [each for id, each in self._room(given).messages.items() if int(id) > after]
        return [self._world.fresh(each) for each in reversed(found[:limit])]

    async def _get_message(self, given: Arguments) -> Json:
        return self._world.fresh(self._message(given)[1])

    async def _create_message(self, given: Arguments) -> Json:
        room = self._room(given)
        nonce = str(given.get("nonce", ""))
        if len(nonce) > _MAX_NONCE:
            raise DiscordRestError(400, 50035, "Invalid Form Body: nonce")
        if nonce and given.get("enforce_nonce") and nonce in self._nonces:
            known, id = self._nonces[nonce]
            if id in known.messages:
                return known.messages[id]
        self._check_content(given)
        uploads = [self._world.attach(name, content, mime) for name, content, mime in given.get("files", ())]
        more: Json = {"attachments": uploads, "components": given.get("components", []), "flags": given.get("flags", 0)}
        reference = given.get("message_reference")
        if reference is not None:
            more |= self._referred(room, reference)
        made = self._world.message(room, BOT, given.get("content", ""), **more)
        if nonce:
            self._nonces[nonce] = (room, made["id"])
        await self._gateway.tell("MESSAGE_CREATE", self._world.told(room, made))
        return self._world.fresh(made)

    def _referred(self, room: DiscordRoom, reference: Json) -> Json:
        if reference["message_id"] in room.messages:
            replied = room.messages[reference["message_id"]]
            known = {"type": 0, "message_id": reference["message_id"], "channel_id": room.id}
            return {"type": 19, "message_reference": known, "referenced_message": replied}
        if reference.get("fail_if_not_exists", True):
            raise DiscordRestError(400, 50035, "Invalid Form Body: Unknown message")
        return {}

    def _check_content(self, given: Arguments) -> None:
        content = given.get("content") or ""
        if not content and not given.get("files"):
            raise DiscordRestError(400, 50006, "Cannot send an empty message")
        if len(content) > _MAX_CHARS:
            raise DiscordRestError(400, 50035, "Invalid Form Body: Must be 2000 or fewer in length.")
        if any(len(each) > _MAX_UPLOAD_BYTES for _, each, _ in given.get("files", ())):
            raise DiscordRestError(413, 40005, "Request entity too large")
        rows = given.get("components", [])
        buttons = [each for row in rows for each in row["components"]]
        is_full = len(rows) > 5 or any(not 1 <= len(row["components"]) <= 5 for row in rows)
        if is_full or any(len(each["custom_id"]) > 100 or not 1 <= len(each["label"]) <= 80 for each in buttons):
            raise DiscordRestError(400, 50035, "Invalid Form Body: components")

    async def _edit_message(self, given: Arguments) -> Json:
        room, message = self._own_message(given)
        self._check_content({"content": message["content"], **given})
        before = (message["content"], message["components"])
        message["content"] = given.get("content", message["content"])
        message["components"] = given.get("components", message["components"])
        if before != (message["content"], message["components"]):
            room.edits[message["id"]] = room.edits.get(message["id"], 0) + 1
        return message

    async def _delete_message(self, given: Arguments) -> None:
        room, message = self._own_message(given)
        del room.messages[message["id"]]

    async def _create_reaction(self, given: Arguments) -> None:
        self._message(given)
        if re.fullmatch(r"[\x00-\x7f]*", given["emoji"]):
            raise DiscordRestError(400, 10014, "Unknown Emoji")

    async def _trigger_typing(self, given: Arguments) -> None:
        self._room(given)

    async def _create_thread(self, given: Arguments) -> Json:
        return await self._made_thread(self._room(given), self._world.new_id(), given["name"])

    async def _create_thread_from_message(self, given: Arguments) -> Json:
        """Discord gives it the message's id."""
        room, message = self._message(given)
        if message["id"] in self._world.rooms:
            raise DiscordRestError(400, 160004, "A thread has already been created for this message")
        return await self._made_thread(room, message["id"], given["name"])

    async def _made_thread(self, parent: DiscordRoom, id: str, name: str) -> Json:
        if parent.type != 0:
            raise DiscordRestError(400, 50024, "Cannot execute action on this channel type")
        if not 1 <= len(name) <= 100:
            raise DiscordRestError(400, 50035, "Invalid Form Body: name")
        room, _ = self._world.room(id, parent=parent.id)
        room.name = name
        made = self._world.channel(room)
        await self._gateway.tell("THREAD_CREATE", {**made, "newly_created": True})
        return made

    async def _overwrite_commands(self, given: Arguments) -> list[Json]:
        commands: list[Json] = given["list"]
        for command in commands:
            if not re.fullmatch(r"[-_a-z0-9]{1,32}", command["name"]) or not 1 <= len(command["description"]) <= 100:
                raise DiscordRestError(400, 50035, f"Invalid Form Body: {command['name']}")
        self._world.commands = commands
        return commands

    async def _respond(self, given: Arguments) -> None:
        if given["token"] not in self._interactions:
            raise DiscordRestError(404, 10062, "Unknown interaction")
        if not self._interactions[given["token"]]:
            raise DiscordRestError(400, 40060, "Interaction has already been acknowledged.")
        self._interactions[given["token"]] = ""

    async def _follow_up(self, given: Arguments) -> Json:
        if given["application"] != APPLICATION or self._interactions.get(given["token"]) is None:
            raise DiscordRestError(404, 10015, "Unknown Webhook")
        self._check_content(given)
        return {"id": self._world.new_id(), "content": given["content"], "flags": given.get("flags", 0)}

    def _room(self, given: Arguments) -> DiscordRoom:
        room = self._world.rooms.get(given["channel"])
        if room is None:
            raise DiscordRestError(404, 10003, "Unknown Channel")
        if room.is_closed:
            code, words = (50007, "Cannot send messages to this user") if room.is_direct else (50001, "Missing Access")
            raise DiscordRestError(403, code, words)
        return room

    def _message(self, given: Arguments) -> tuple[DiscordRoom, Json]:
        room = self._room(given)
        if given["message"] not in room.messages:
            raise DiscordRestError(404, 10008, "Unknown Message")
        return room, room.messages[given["message"]]

    def _own_message(self, given: Arguments) -> tuple[DiscordRoom, Json]:
        room, message = self._message(given)
        if message["author"]["id"] != BOT:
            raise DiscordRestError(403, 50005, "Cannot edit a message authored by another user")
        return room, message


async def arguments(request: web.Request) -> Json:
    """All that a request carries, whichever way."""
    given: Json = {**request.match_info, **request.query}
    if request.content_type.startswith("multipart/"):
        files: list[tuple[str, bytes, str]] = []
        for part in (await request.post()).values():
            if isinstance(part, web.FileField):
                files.append((part.filename, part.file.read(), part.content_type))
            else:
                given |= json.loads(part)
        return {**given, "files": files}
    body = json.loads(await request.read() or b"{}")
    return {**given, "list": body} if isinstance(body, list) else {**given, **body}
