"""Telegram on loopback: the Bot API as far as a chat needs it, for people who speak from a test.

It refuses what Telegram refuses, in Telegram's words: unknown chats, broken markup, texts that are too long, a second
program that asks for the same bot's updates.
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
    ApiError,
    Message,
    TelegramChat,
    TelegramChats,
    bad_request,
    parse_text,
    text_of,
    without_reply,
)
from talaria.testing.servers.telegram_updates import Conflict, Updates

MAX_UPLOAD_BYTES = 50 * 2**20
MAX_DOWNLOAD_BYTES = 20 * 2**20
_NO_GIFTS = dict.fromkeys(
    ("unlimited_gifts", "limited_gifts", "unique_gifts", "premium_subscription", "gifts_from_channels"), False
)
_FULL_INFO = {"accent_color_id": 0, "max_reaction_count": 11, "accepted_gift_types": _NO_GIFTS}
"""What Telegram tells of every chat that is asked about."""
_FILES: Mapping[str, Mapping[str, int]] = {
    "document": {},
    "animation": {"width": 1, "height": 1, "duration": 1},
    "voice": {"duration": 1},
    "audio": {"duration": 1},
    "video": {"width": 1, "height": 1, "duration": 1},
}
"""By kind: what a message says of such a file besides its name and size."""
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
        """What the bot is told: for duplicates, odd numbers, and updates of one's own making."""

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
        """Somebody sends anything: the fields of a message of the Bot API."""
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
        """Somebody edits what they said."""
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
        """The id of a file that somebody may then send."""
        path = f"files/file_{len(self._files)}.bin"
        self._files[path] = content
        return path

    def group(self, chat: str, *, is_forum: bool = False) -> None:
        """A group in which nobody has spoken yet."""
        self._chats.open(int(chat)).is_forum = is_forum

    def block(self, user: str) -> None:
        self._chats.open(int(user)).refusal = ApiError(403, "Forbidden: bot was blocked by the user")

    def remove(self, chat: str) -> None:
        """The bot, from a group."""
        self._chats.open(int(chat)).refusal = ApiError(403, "Forbidden: bot was kicked from the supergroup chat")

    def migrate(self, chat: str) -> str:
        """The group becomes a supergroup, with this id."""
        return str(self._chats.migrate(int(chat)))

    def drop_topic(self, chat: str, thread: str) -> None:
        self._chats.open(int(chat)).topics.discard(int(thread))

    def list_messages(self, *, user: str = "1001", chat: str = "") -> Sequence[SeenMessage]:
        where = self._chats.open(int(chat or user))
        ours = (message for message in where.messages.values() if message["from"]["id"] == self.bot["id"])
        return tuple(_to_seen_message(where, message) for message in ours if "forum_topic_created" not in message)

    async def wait_for(self, count: int, *, user: str = "1001", chat: str = "") -> Sequence[SeenMessage]:
        await self._until(lambda: len(self.list_messages(user=user, chat=chat)) >= count, f"{count} messages")
        return self.list_messages(user=user, chat=chat)

    def fault(self, method: str, *faults: Fault) -> None:
        """`file` is the method by which files are loaded."""
        super().fault(method.lower(), *faults)

    def calls(self, method: str) -> Sequence[Mapping[str, Any]]:
        return super().calls(method.lower())

    def file(self, name: str) -> bytes:
        """What the bot sent under that name."""
        return self._files[name]

    async def _serve(self, request: web.Request) -> web.Response:
        method = request.match_info["method"].lower()
        call = await self._read(request)
        fault = self._record_call(method, call)
        await self._tell_change()
        try:
            result = await self._perform(request, method, call, fault)
            response = web.json_response({"ok": True, "result": result})
        except ApiError as error:
            response = _refusal(error.status, error.words, error.parameters)
        await self._tell_change()
        return await deliver(request, response, fault)

    async def _perform(self, request: web.Request, method: str, call: dict[str, Any], fault: Fault | None) -> Any:
        if isinstance(fault, Refusal):
            raise _as_told(fault)
        if request.match_info["token"] != self.token:
            raise ApiError(401, "Unauthorized") if ":" in request.match_info["token"] else ApiError(404, "Not Found")
        perform = self._methods().get(method)
        if perform is None:
            raise ApiError(404, "Not Found: method not found")
        result = perform(call)
        return await result if asyncio.iscoroutine(result) else result

    async def _read(self, request: web.Request) -> dict[str, Any]:
        """The arguments of a call; of a file its name."""
        call: dict[str, Any] = dict(request.query)
        if request.content_type == "application/json":
            call |= await request.json()
        for name, value in (await request.post()).items():
            if isinstance(value, web.FileField):
                self._files[value.filename] = await asyncio.to_thread(value.file.read)
                value.file.close()  # whoever hangs up meanwhile leaves it open otherwise
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
        response = web.StreamResponse()  # in pieces: nobody is told how long it is
        await response.prepare(request)
        for at in range(0, len(content), 1 << 16):
            await response.write(content[at : at + (1 << 16)])
            if isinstance(fault, LostAnswer) and request.transport is not None:
                request.transport.abort()
                return response
        await response.write_eof()
        return response

    def _methods(self) -> Mapping[str, Callable[[dict[str, Any]], Any]]:
        chats = self._chats
        return {
            "getme": lambda _: {**self.bot, "can_join_groups": True, "can_read_all_group_messages": False},
            "getupdates": self._get_updates,
            "setwebhook": self._set_webhook,
            "deletewebhook": self._delete_webhook,
            "getwebhookinfo": self._webhook_info,
            "sendmessage": lambda call: chats.send(call, text_of(call)),
            **{f"send{kind}": partial(self._send_file, kind) for kind in _FILES},
            "sendphoto": self._send_photo,
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

    async def _get_updates(self, call: Mapping[str, Any]) -> list[dict[str, Any]]:
        limit = min(max(int(call.get("limit", 100)), 1), 100)
        wait_s = min(float(call.get("timeout", 0)), 50.0)
        try:
            return await self.updates.ask(
                offset=int(call.get("offset", 0)), limit=limit, timeout_s=wait_s, allowed=call.get("allowed_updates")
            )
        except Conflict as conflict:
            raise ApiError(409, str(conflict)) from None

    async def _set_webhook(self, call: Mapping[str, Any]) -> bool:
        url = str(call.get("url", ""))
        if not url.startswith(("https://", "http://127.0.0.1:")):  # here there are no certificates
            raise bad_request("bad webhook: An HTTPS URL must be provided for webhook")
        await self.updates.go_to(call, call.get("allowed_updates"))
        return True

    async def _delete_webhook(self, _: Mapping[str, Any]) -> bool:
        await self.updates.stay()
        return True

    def _webhook_info(self, _: Mapping[str, Any]) -> dict[str, Any]:
        about: dict[str, Any] = {"url": self.updates.webhook["url"], "pending_update_count": self.updates.waiting}
        if self.updates.last_error:
            about |= {"last_error_date": int(time.time()), "last_error_message": self.updates.last_error}
        return {**about, "has_custom_certificate": False}

    def _send_file(self, kind: str, call: Mapping[str, Any]) -> Message:
        name = str(call.get(kind, ""))
        self._check_upload(name)
        file: dict[str, Any] = {"file_id": name, "file_unique_id": name, "file_name": name, **_FILES[kind]}
        file["file_size"] = len(self._files[name])
        return self._chats.send(call, {kind: file, **text_of(call, "caption", MAX_CAPTION)})

    def _send_photo(self, call: Mapping[str, Any]) -> Message:
        name = str(call.get("photo", ""))
        self._check_upload(name)
        if len(self._files[name]) > MAX_PHOTO_BYTES:
            raise bad_request("file is too big for a photo; the maximum size is 10485760 bytes")
        photo = {"file_id": name, "file_unique_id": name, "width": 100, "height": 100}
        return self._chats.send(call, {"photo": [photo], **text_of(call, "caption", MAX_CAPTION)})

    def _check_upload(self, name: str) -> None:
        if name not in self._files:
            raise bad_request("there is no file in the request")
        if len(self._files[name]) > MAX_UPLOAD_BYTES:
            raise ApiError(413, "Request Entity Too Large")

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


def _to_seen_message(chat: TelegramChat, message: Message) -> SeenMessage:
    number = int(message["message_id"])
    photo = message.get("photo", [{}])[0].get("file_id", "")
    return SeenMessage(
        id=str(number),
        text=message.get("text", message.get("caption", "")),
        edits=chat.edits.get(number, 0),
        buttons=_buttons(message),
        thread=str(message.get("message_thread_id", "")),
        reply_to=str(message.get("reply_to_message", {}).get("message_id", "")),
        file=next((message[kind]["file_name"] for kind in _FILES if kind in message), photo),
    )


def _as_told(fault: Refusal) -> ApiError:
    parameters: dict[str, Any] = dict(fault.extra.get("parameters", {}))
    words = fault.words or _PHRASES.get(fault.status, "Bad Request")
    if fault.retry_after_s is not None:
        parameters["retry_after"] = int(fault.retry_after_s)
        words = fault.words or f"Too Many Requests: retry after {int(fault.retry_after_s)}"
    return ApiError(fault.status, words, **parameters)


def _refusal(status: int, words: str, parameters: Mapping[str, Any]) -> web.Response:
    body: dict[str, Any] = {"ok": False, "error_code": status, "description": words}
    if parameters:
        body["parameters"] = dict(parameters)
    return web.json_response(body, status=status)
