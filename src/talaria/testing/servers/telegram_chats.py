"""The chats of the fake Telegram: what it accepts, how it words its refusals, and its HTML, parsed as strictly as by
Telegram."""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import unescape
from typing import Any

MAX_TEXT = 4096
MAX_CAPTION = 1024
MAX_PHOTO_BYTES = 10 * 2**20
REACTIONS = frozenset(
    "👍👎❤🔥🥰👏😁🤔🤯😱🤬😢🎉🤩🤮💩🙏👌🕊🤡🥱🥴😍🐳🌚🌭💯🤣⚡🍌🏆💔🤨😐🍓🍾💋😈😴😭🤓👻👀🎃🙈😇😨🤝✍🤗🫡"
)
_MENTION = re.compile(r"@\w{5,32}", re.ASCII)
_COMMAND = re.compile(r"(?<!\S)/\w{1,32}(@\w{5,32})?", re.ASCII)

_TAGS = {
    "a": "text_link",
    "b": "bold",
    "strong": "bold",
    "i": "italic",
    "em": "italic",
    "s": "strikethrough",
    "strike": "strikethrough",
    "del": "strikethrough",
    "u": "underline",
    "ins": "underline",
    "tg-spoiler": "spoiler",
    "span": "spoiler",
    "pre": "pre",
    "code": "code",
    "blockquote": "blockquote",
}
_PART = re.compile(r"<(?P<end>/?)(?P<tag>[^\s>]*)(?P<attributes>[^>]*)(?P<close>>?)|[^<]+")
_ATTRIBUTE = re.compile(r"""\s+(?P<name>[^\s=]+)\s*=\s*(?:"(?P<quoted>[^"]*)"|'(?P<single>[^']*)'|(?P<bare>[\w.-]+))""")
_ENTITY = re.compile(r"&(?:#\d{1,7}|#x[0-9a-fA-F]{1,6}|lt|gt|amp|quot);")

Message = dict[str, Any]


class BotApiError(Exception):
    def __init__(self, status: int, words: str, **parameters: Any) -> None:
        super().__init__(words)
        self.status = status
        self.words = words
        self.parameters = parameters


def bad_request(words: str, **parameters: Any) -> BotApiError:
    return BotApiError(400, f"Bad Request: {words}", **parameters)


@dataclass
class TelegramChat:
    id: int
    type: str
    is_forum: bool = False
    topics: set[int] = field(default_factory=set[int])
    messages: dict[int, Message] = field(default_factory=dict[int, Message])
    edits: dict[int, int] = field(default_factory=dict[int, int])
    refusal: BotApiError | None = None
    """The error for everything that is sent here."""

    def describe(self) -> dict[str, Any]:
        named = {"first_name": f"Person {self.id}"} if self.type == "private" else {"title": f"Group {self.id}"}
        return {"id": self.id, "type": self.type, **named, **({"is_forum": True} if self.is_forum else {})}


class TelegramChats:
    def __init__(self, bot: Mapping[str, Any]) -> None:
        self._bot = bot
        self._chats: dict[int, TelegramChat] = {}
        self._last_message = 100

    def open(self, id: int) -> TelegramChat:
        """Creates people and groups when they are first mentioned."""
        type = "private" if id > 0 else "supergroup" if str(id).startswith("-100") else "group"
        return self._chats.setdefault(id, TelegramChat(id, type))

    def find(self, id: str | None) -> TelegramChat:
        """Raises `BotApiError` if the bot has no access."""
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
        """A new message from anybody."""
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
        """A message from the bot. Raises `BotApiError`."""
        chat = self.find(call.get("chat_id"))
        fields = {**content, **self._thread(chat, call)}
        if wanted := call.get("reply_parameters"):
            answered = chat.messages.get(int(wanted["message_id"]))
            if answered is not None:
                fields["reply_to_message"] = without_reply(answered)
            elif not wanted.get("allow_sending_without_reply"):
                raise bad_request("message to be replied not found")
        return self.post(chat, self._bot, {**fields, **_keyboard(call)})

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
        if call.get("message_thread_id") != "1":  # only here, the General topic has its number
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


_ENTITY_FIELDS = ("entities", "caption_entities")


def text_of(call: Mapping[str, Any], name: str = "text", limit: int = MAX_TEXT) -> dict[str, Any]:
    """The text of a message, as Telegram stores it. Raises `BotApiError`."""
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
    """A person's text, with the entities that Telegram finds in it."""
    found = [("mention", one) for one in _MENTION.finditer(text) if not text[: one.start()].endswith(_WORD_ENDS)]
    found += [("bot_command", one) for one in _COMMAND.finditer(text)]
    entities = [
        {"type": type, "offset": units(text[: one.start()]), "length": units(one[0])}
        for type, one in sorted(found, key=lambda pair: pair[1].start())
    ]
    return {"text": text, **({"entities": entities} if entities else {})}


_WORD_ENDS = tuple("abcdefghijklmnopqrstuvwxyz0123456789_/")


def without_reply(message: Message) -> Message:
    """Telegram includes the message that is replied to, but not what that one replied to."""
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


class CannotParse(ValueError):
    """`str()` gives Telegram's error."""


def parse_html(markup: str) -> tuple[str, list[dict[str, Any]]]:
    """The text that people see, and its entities."""
    text = ""
    entities: list[dict[str, Any]] = []
    opened: list[tuple[str, int, dict[str, str]]] = []
    for part in _PART.finditer(markup):
        at = len(markup[: part.start()].encode())
        if part["tag"] is None:
            text += _decode(part[0])
        elif part["end"]:
            tag = part["tag"].lower()
            if not part["close"]:
                raise CannotParse(f"Unclosed end tag at byte offset {at}")
            if not opened:
                raise CannotParse(f"Unexpected end tag at byte offset {at}")
            expected, start, attributes = opened.pop()
            if tag != expected:
                raise CannotParse(f'Unmatched end tag at byte offset {at}, expected "</{expected}>", found "</{tag}>"')
            if length := units(text[start:]):
                entity: dict[str, Any] = {"type": _TAGS[tag], "offset": units(text[:start]), "length": length}
                if tag == "a":
                    entity["url"] = attributes.get("href", text[start:])
                if tag == "code" and attributes.get("class", "").startswith("language-"):
                    entity["language"] = attributes["class"].removeprefix("language-")
                entities.append(entity)
        else:
            tag, attributes = _read_start_tag(part, at)
            opened.append((tag, len(text), attributes))
    if opened:
        raise CannotParse(f'Can\'t find end tag corresponding to start tag "{opened[-1][0]}"')
    return text, entities


def units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _decode(text: str) -> str:
    return _ENTITY.sub(lambda found: unescape(found[0]), text)


def _read_start_tag(part: re.Match[str], at: int) -> tuple[str, dict[str, str]]:
    tag = part["tag"].lower()
    is_whole = part["close"] or part["attributes"]
    if is_whole and tag not in _TAGS:
        raise CannotParse(f'Unsupported start tag "{tag}" at byte offset {at}')
    if not part["close"]:
        raise CannotParse(f"Unclosed start tag at byte offset {at}")
    given = part["attributes"]
    found = {
        one["name"]: _decode(one["quoted"] or one["single"] or one["bare"] or "") for one in _ATTRIBUTE.finditer(given)
    }
    if _ATTRIBUTE.sub("", given).strip():
        raise CannotParse(f'Empty attribute name in the tag "{part["tag"]}" at byte offset {at}')
    if tag == "span" and found.get("class") != "tg-spoiler":
        raise CannotParse(f'Tag "span" must have class "tg-spoiler" at byte offset {at}')
    return tag, found
