"""The chats of a Telegram that exists only here, and the words with which it refuses."""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from talaria.testing.servers.telegram_markup import CannotParse, parse_html, units

MAX_TEXT = 4096
MAX_CAPTION = 1024
MAX_PHOTO_BYTES = 10 * 2**20
REACTIONS = frozenset(
    "👍👎❤🔥🥰👏😁🤔🤯😱🤬😢🎉🤩🤮💩🙏👌🕊🤡🥱🥴😍🐳🌚🌭💯🤣⚡🍌🏆💔🤨😐🍓🍾💋😈😴😭🤓👻👀🎃🙈😇😨🤝✍🤗🫡"
)
_MENTION = re.compile(r"@\w{5,32}", re.ASCII)
_COMMAND = re.compile(r"(?<!\S)/\w{1,32}(@\w{5,32})?", re.ASCII)

Message = dict[str, Any]


class ApiError(Exception):
    def __init__(self, status: int, words: str, **parameters: Any) -> None:
        super().__init__(words)
        self.status = status
        self.words = words
        self.parameters = parameters


def bad_request(words: str, **parameters: Any) -> ApiError:
    return ApiError(400, f"Bad Request: {words}", **parameters)


@dataclass
class TelegramChat:
    id: int
    type: str
    is_forum: bool = False
    topics: set[int] = field(default_factory=set[int])
    messages: dict[int, Message] = field(default_factory=dict[int, Message])
    edits: dict[int, int] = field(default_factory=dict[int, int])
    refusal: ApiError | None = None
    """What whoever writes here is told."""

    def describe(self) -> dict[str, Any]:
        named = {"first_name": f"Person {self.id}"} if self.type == "private" else {"title": f"Group {self.id}"}
        return {"id": self.id, "type": self.type, **named, **({"is_forum": True} if self.is_forum else {})}


class TelegramChats:
    def __init__(self, bot: Mapping[str, Any]) -> None:
        self._bot = bot
        self._chats: dict[int, TelegramChat] = {}
        self._last_message = 100

    def open(self, id: int) -> TelegramChat:
        """People and groups appear when they are first spoken of."""
        type = "private" if id > 0 else "supergroup" if str(id).startswith("-100") else "group"
        return self._chats.setdefault(id, TelegramChat(id, type))

    def find(self, id: str | None) -> TelegramChat:
        """As the bot finds it. Raises `ApiError`."""
        chat = self._chats.get(int(id)) if id and re.fullmatch(r"-?\d+", id) else None
        if chat is None:
            raise bad_request("chat not found")
        if chat.refusal is not None:
            raise chat.refusal
        return chat

    def migrate(self, id: int) -> int:
        """The group becomes a supergroup."""
        old, new = self.open(id), self.open(int(f"-100{abs(id)}"))
        parameters = {"migrate_to_chat_id": new.id}
        old.refusal = bad_request("group chat was upgraded to a supergroup chat", **parameters)
        return new.id

    def post(self, chat: TelegramChat, author: Mapping[str, Any], fields: Mapping[str, Any]) -> Message:
        """A new message, whoever wrote it."""
        self._last_message += 1
        message = {
            "message_id": self._last_message,
            "from": dict(author),
            "chat": chat.describe(),
            "date": int(time.time()),
            **fields,
        }
        chat.messages[self._last_message] = message
        return message

    def send(self, call: Mapping[str, Any], content: Mapping[str, Any]) -> Message:
        """A message of the bot. Raises `ApiError`."""
        chat = self.find(call.get("chat_id"))
        fields = {**content, **self._thread(chat, call), **self._reply(chat, call), **_keyboard(call)}
        return self.post(chat, self._bot, fields)

    def edit(self, call: Mapping[str, Any], content: Mapping[str, Any]) -> Message:
        chat = self.find(call.get("chat_id"))
        message = chat.messages.get(int(call.get("message_id", 0)))
        if message is None:
            raise bad_request("message to edit not found")
        if message["from"]["id"] != self._bot["id"]:
            raise bad_request("message can't be edited")
        kept = {name: value for name, value in message.items() if name not in ("reply_markup", *_ENTITY_FIELDS)}
        changed = {**kept, **content, **_keyboard(call)}
        if changed == message:
            raise bad_request(
                "message is not modified: specified new message content and reply markup are exactly the same as a "
                "current content and reply markup of the message"
            )
        number = int(message["message_id"])
        chat.messages[number] = changed
        chat.edits[number] = chat.edits.get(number, 0) + 1
        return changed

    def delete(self, call: Mapping[str, Any]) -> bool:
        chat = self.find(call.get("chat_id"))
        if chat.messages.pop(int(call.get("message_id", 0)), None) is None:
            raise bad_request("message to delete not found")
        return True

    def react(self, call: Mapping[str, Any]) -> bool:
        chat = self.find(call.get("chat_id"))
        if int(call.get("message_id", 0)) not in chat.messages:
            raise bad_request("message to react not found")
        if any(one.get("emoji") not in REACTIONS for one in call.get("reaction", [])):
            raise bad_request("REACTION_INVALID")
        return True

    def show_typing(self, call: Mapping[str, Any]) -> bool:
        chat = self.find(call.get("chat_id"))
        if call.get("message_thread_id") != "1":  # only here the first topic has its number
            self._thread(chat, call)
        return True

    def create_topic(self, call: Mapping[str, Any]) -> dict[str, Any]:
        chat = self.find(call.get("chat_id"))
        if not chat.is_forum:
            raise bad_request("the chat is not a forum")
        begun = self.post(chat, self._bot, {"forum_topic_created": {"name": call["name"], "icon_color": 7322096}})
        chat.topics.add(int(begun["message_id"]))
        return {"message_thread_id": begun["message_id"], "name": call["name"], "icon_color": 7322096}

    def _thread(self, chat: TelegramChat, call: Mapping[str, Any]) -> dict[str, Any]:
        thread = call.get("message_thread_id")
        if not thread:
            return {}
        if int(thread) not in chat.topics:
            raise bad_request("message thread not found")
        return {"message_thread_id": int(thread), "is_topic_message": True}

    def _reply(self, chat: TelegramChat, call: Mapping[str, Any]) -> dict[str, Any]:
        wanted = call.get("reply_parameters")
        if not wanted:
            return {}
        answered = chat.messages.get(int(wanted["message_id"]))
        if answered is None and not wanted.get("allow_sending_without_reply"):
            raise bad_request("message to be replied not found")
        return {"reply_to_message": without_reply(answered)} if answered is not None else {}


_ENTITY_FIELDS = ("entities", "caption_entities")


def text_of(call: Mapping[str, Any], name: str = "text", limit: int = MAX_TEXT) -> dict[str, Any]:
    """The text of a message as it is kept. Raises `ApiError`."""
    text, entities = str(call.get(name, "")), list[dict[str, Any]]()
    if call.get("parse_mode", "").upper() == "HTML":
        try:
            text, entities = parse_html(text)
        except CannotParse as complaint:
            raise bad_request(f"can't parse entities: {complaint}") from None
    text = text.strip()
    if not text and name == "text":
        raise bad_request("message text is empty")
    if units(text) > limit:
        raise bad_request("message is too long" if name == "text" else "message caption is too long")
    field_name = "entities" if name == "text" else "caption_entities"
    return ({name: text} if text else {}) | ({field_name: entities} if entities else {})


def parse_text(text: str) -> dict[str, Any]:
    """The text of a person, with what Telegram finds in it."""
    found = [("mention", one) for one in _MENTION.finditer(text) if not text[: one.start()].endswith(_WORD_ENDS)]
    found += [("bot_command", one) for one in _COMMAND.finditer(text)]
    entities = [
        {"type": type, "offset": units(text[: one.start()]), "length": units(one[0])}
        for type, one in sorted(found, key=lambda pair: pair[1].start())
    ]
    return {"text": text, **({"entities": entities} if entities else {})}


_WORD_ENDS = tuple("abcdefghijklmnopqrstuvwxyz0123456789_/")


def without_reply(message: Message) -> Message:
    """Telegram shows what a message replies to, but not what that replied to."""
    return {name: value for name, value in message.items() if name != "reply_to_message"}


def _keyboard(call: Mapping[str, Any]) -> dict[str, Any]:
    markup = call.get("reply_markup")
    if not markup:
        return {}
    for row in markup.get("inline_keyboard", []):
        for button in row:
            if not 1 <= len(button.get("callback_data", "").encode()) <= 64:
                raise bad_request("BUTTON_DATA_INVALID")
    return {"reply_markup": json.loads(json.dumps(markup))}
