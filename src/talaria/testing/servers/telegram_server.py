"""A fake Telegram on loopback: as much of the Bot API as a chat needs. A test speaks for the people.

It refuses what Telegram refuses, with the same errors: unknown chats, broken markup, texts that are too long, a second
program that polls for the same bot's updates.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self, cast

from aiohttp import web

from talaria.testing.servers.chat_service import Fault, Loopback, LostAnswer, Refusal, SeenMessage, deliver
from talaria.testing.servers.telegram_chats import (
    MAX_CAPTION,
    MAX_PHOTO_BYTES,
    BotApiError,
    Message,
    TelegramChats,
    bad_request,
    parse_text,
    text_of,
    without_reply,
)
from talaria.testing.servers.telegram_updates import Updates

MAX_UPLOAD_BYTES = 50 * 2**20
MAX_DOWNLOAD_BYTES = 20 * 2**20
_NO_GIFTS = dict.fromkeys(
    ("unlimited_gifts", "limited_gifts", "unique_gifts", "premium_subscription", "gifts_from_channels"), False
)
_FULL_INFO = {"accent_color_id": 0, "max_reaction_count": 11, "accepted_gift_types": _NO_GIFTS}
"""What `getChat` adds for every chat."""
_FILES: Mapping[str, Mapping[str, int]] = {
    "document": {},
    "animation": {"width": 1, "height": 1, "duration": 1},
    "voice": {"duration": 1},
    "audio": {"duration": 1},
    "video": {"width": 1, "height": 1, "duration": 1},
}
"""By kind: what a message says about such a file besides its name and size."""
_STRUCTURED = frozenset(
    ("allowed_updates", "commands", "link_preview_options", "reaction", "reply_markup", "reply_parameters")
)
_PHRASES = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    409: "Conflict",
    500: "Internal Server Error",
    502: "Bad Gateway",
}


class TelegramServer(Loopback):
    """Telegram with one bot, alive inside `async with`."""

    def __init__(self, *, token: str = "123456:TEST-token", username: str = "talaria_bot", port: int = 0) -> None:  # noqa: S107
        super().__init__()
        self.token = token
        self.bot = {"id": int(token.partition(":")[0]), "is_bot": True, "first_name": "Talaria", "username": username}
        self._port = port
        self._chats = TelegramChats(self.bot)
        self._files: dict[str, bytes] = {}
        self._presses: set[str] = set()
        self.updates = Updates()
        """The bot's updates: for duplicates, odd ids, and updates that you write yourself."""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=2 * MAX_UPLOAD_BYTES)
        app.router.add_route("*", "/bot{token}/{method}", self._serve)
        app.router.add_get("/file/bot{token}/{path:.+}", self._serve_file)
        self._port = await self._open(app, self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.updates.stay()
        self.updates.end_poll()
        await self._runner.cleanup()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"token": self.token, "base_url": self.base_url}

    async def say(
        self, text: str, *, user: str = "1001", chat: str = "", thread: str = "", reply_to: str = "", name: str = ""
    ) -> str:
        return await self.post(parse_text(text), user=user, chat=chat, thread=thread, reply_to=reply_to, name=name)

    async def post(
        self,
        fields: Mapping[str, Any],
        *,
        user: str = "1001",
        chat: str = "",
        thread: str = "",
        reply_to: str = "",
        name: str = "",
    ) -> str:
        """Somebody sends any kind of message, given as fields of the Bot API."""
        where = self._chats.open(int(chat or user))
        placed = dict(fields)
        if thread:
            where.is_forum = where.is_forum or where.type != "private"
            where.topics.add(int(thread))
            placed |= {"message_thread_id": int(thread), "is_topic_message": True}
        if reply_to:
            placed["reply_to_message"] = without_reply(where.messages[int(reply_to)])
        message = self._chats.post(where, _person(user, name), placed)
        self.updates.tell("message", message)
        return str(message["message_id"])

    async def change(self, message: str, text: str, *, user: str = "1001", chat: str = "") -> None:
        """Somebody edits a message."""
        messages = self._chats.open(int(chat or user)).messages
        messages[int(message)] |= {**parse_text(text), "edit_date": int(time.time())}
        self.updates.tell("edited_message", messages[int(message)])

    async def press(self, message: str, data: str, *, user: str = "1001", chat: str = "") -> None:
        found = self._chats.open(int(chat or user)).messages[int(message)]
        if data not in (given for _, given in _buttons(found)):
            raise LookupError(f"message {message} has no button with {data!r}")
        press = f"{len(self._presses) + 1}"
        self._presses.add(press)
        query = {"id": press, "from": _person(user), "message": found, "chat_instance": "1", "data": data}
        self.updates.tell("callback_query", query)

    def keep_file(self, content: bytes) -> str:
        """Stores a file that somebody can send; returns its id."""
        path = f"files/file_{len(self._files)}.bin"
        self._files[path] = content
        return path

    def group(self, chat: str, *, is_forum: bool = False) -> None:
        """Creates a group in which nobody has spoken yet."""
        self._chats.open(int(chat)).is_forum = is_forum

    def block(self, user: str) -> None:
        self._chats.open(int(user)).refusal = BotApiError(403, "Forbidden: bot was blocked by the user")

    def remove(self, chat: str) -> None:
        """Removes the bot from a group."""
        self._chats.open(int(chat)).refusal = BotApiError(403, "Forbidden: bot was kicked from the supergroup chat")

    def migrate(self, chat: str) -> str:
        """Makes the group a supergroup; returns its new id."""
        return str(self._chats.migrate(int(chat)))

    def drop_topic(self, chat: str, thread: str) -> None:
        self._chats.open(int(chat)).topics.discard(int(thread))

    def list_messages(self, *, user: str = "1001", chat: str = "") -> Sequence[SeenMessage]:
        where = self._chats.open(int(chat or user))
        seen: list[SeenMessage] = []
        for number, message in where.messages.items():
            if message["from"]["id"] != self.bot["id"] or "forum_topic_created" in message:
                continue
            photo = message.get("photo", [{}])[0].get("file_id", "")
            seen.append(
                SeenMessage(
                    id=str(number),
                    text=message.get("text", message.get("caption", "")),
                    edits=where.edits.get(number, 0),
                    buttons=_buttons(message),
                    thread=str(message.get("message_thread_id", "")),
                    reply_to=str(message.get("reply_to_message", {}).get("message_id", "")),
                    file=next((message[kind]["file_name"] for kind in _FILES if kind in message), photo),
                )
            )
        return tuple(seen)

    async def wait_for(self, count: int, *, user: str = "1001", chat: str = "") -> Sequence[SeenMessage]:
        await self._until(lambda: len(self.list_messages(user=user, chat=chat)) >= count, f"{count} messages")
        return self.list_messages(user=user, chat=chat)

    def fault(self, method: str, *faults: Fault) -> None:
        """The method for downloads is `file`."""
        super().fault(method.lower(), *faults)

    def calls(self, method: str) -> Sequence[Mapping[str, Any]]:
        return super().calls(method.lower())

    def file(self, name: str) -> bytes:
        """The content of a file that the bot sent."""
        return self._files[name]

    async def _serve(self, request: web.Request) -> web.Response:
        method = request.match_info["method"].lower()
        call = await self._read(request)
        fault = self._record_call(method, call)
        await self._tell_change()
        try:
            result = await self._perform(request, method, call, fault)
            response = web.json_response({"ok": True, "result": result})
        except BotApiError as error:
            body: dict[str, Any] = {"ok": False, "error_code": error.status, "description": error.words}
            if error.parameters:
                body["parameters"] = dict(error.parameters)
            response = web.json_response(body, status=error.status)
        await self._tell_change()
        return await deliver(request, response, fault)

    async def _perform(self, request: web.Request, method: str, call: dict[str, Any], fault: Fault | None) -> Any:
        if isinstance(fault, Refusal):
            parameters: dict[str, Any] = dict(fault.extra.get("parameters", {}))
            words = fault.words or _PHRASES.get(fault.status, "Bad Request")
            if fault.retry_after_s is not None:
                parameters["retry_after"] = int(fault.retry_after_s)
                words = fault.words or f"Too Many Requests: retry after {int(fault.retry_after_s)}"
            raise BotApiError(fault.status, words, **parameters)
        if request.match_info["token"] != self.token:
            raise (
                BotApiError(401, "Unauthorized")
                if ":" in request.match_info["token"]
                else BotApiError(404, "Not Found")
            )
        chats = self._chats
        methods: Mapping[str, Callable[[dict[str, Any]], Any]] = {
            "getme": lambda _: {**self.bot, "can_join_groups": True, "can_read_all_group_messages": False},
            "getupdates": self.updates.get_updates,
            "setwebhook": self.updates.set_webhook,
            "deletewebhook": self.updates.delete_webhook,
            "getwebhookinfo": self.updates.get_webhook_info,
            "sendmessage": lambda call: chats.send(call, text_of(call)),
            **{f"send{kind}": partial(self._send_file, kind) for kind in (*_FILES, "photo")},
            "editmessagetext": lambda call: chats.edit(call, text_of(call)),
            "editmessagecaption": lambda call: chats.edit(call, text_of(call, "caption", MAX_CAPTION)),
            "deletemessage": chats.delete,
            "setmessagereaction": chats.react,
            "sendchataction": chats.show_typing,
            "createforumtopic": chats.create_topic,
            "getchat": lambda call: {**chats.find(call.get("chat_id")).describe(), **_FULL_INFO},
            "answercallbackquery": self._answer_press,
            "setmycommands": lambda _: True,
            "getfile": self._get_file,
        }
        perform = methods.get(method)
        if perform is None:
            raise BotApiError(404, "Not Found: method not found")
        result = perform(call)
        return await result if asyncio.iscoroutine(result) else result

    async def _read(self, request: web.Request) -> dict[str, Any]:
        """The arguments of a call as a form has them; for a file, its name."""
        call: dict[str, Any] = dict(request.query)
        if request.content_type == "application/json":
            for name, value in (await request.json()).items():
                call[name] = value if name in _STRUCTURED or isinstance(value, str) else json.dumps(value)
        for name, value in (await request.post()).items():
            if isinstance(value, web.FileField):
                self._files[value.filename] = await asyncio.to_thread(value.file.read)
                value.file.close()  # otherwise it stays open if the client hangs up now
                call[name] = value.filename
            else:
                call[name] = json.loads(cast("str", value)) if name in _STRUCTURED else value
        return call

    async def _serve_file(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        fault = self._record_call("file", {"path": path})
        content = self._files.get(path)
        if isinstance(fault, Refusal) or content is None or request.match_info["token"] != self.token:
            return web.Response(status=fault.status if isinstance(fault, Refusal) else 404)
        response = web.StreamResponse()  # in chunks, without a content length
        await response.prepare(request)
        for at in range(0, len(content), 1 << 16):
            await response.write(content[at : at + (1 << 16)])
            if isinstance(fault, LostAnswer) and request.transport is not None:
                request.transport.abort()
                return response
        await response.write_eof()
        return response

    def _send_file(self, kind: str, call: Mapping[str, Any]) -> Message:
        name = str(call.get(kind, ""))
        content = self._files.get(name)
        if content is None:
            raise bad_request("there is no file in the request")
        if len(content) > MAX_UPLOAD_BYTES:
            raise BotApiError(413, "Request Entity Too Large")
        file: dict[str, Any] = {"file_id": name, "file_unique_id": name}
        if kind != "photo":
            file |= {"file_name": name, **_FILES[kind], "file_size": len(content)}
        elif len(content) > MAX_PHOTO_BYTES:
            raise bad_request("file is too big for a photo; the maximum size is 10485760 bytes")
        sent = {"photo": [{**file, "width": 100, "height": 100}]} if kind == "photo" else {kind: file}
        return self._chats.send(call, {**sent, **text_of(call, "caption", MAX_CAPTION)})

    def _get_file(self, call: Mapping[str, Any]) -> dict[str, Any]:
        path = str(call.get("file_id", ""))
        if path not in self._files:
            raise bad_request("invalid file_id")
        if len(self._files[path]) > MAX_DOWNLOAD_BYTES:
            raise bad_request("file is too big")
        return {"file_id": path, "file_unique_id": path, "file_path": path}

    def _answer_press(self, call: Mapping[str, Any]) -> bool:
        if call.get("callback_query_id") not in self._presses:
            raise bad_request("query is too old and response timeout expired or query ID is invalid")
        return True


def _person(user: str, name: str = "") -> dict[str, Any]:
    return {"id": int(user), "is_bot": False, "first_name": name or f"Person {user}"}


def _buttons(message: Message) -> tuple[tuple[str, str], ...]:
    rows = message.get("reply_markup", {}).get("inline_keyboard", [])
    return tuple((button["text"], button["callback_data"]) for row in rows for button in row)
