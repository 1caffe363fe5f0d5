"""Messages on their way in and out: the key under which a chat finds its conversation, and what inbox and outbox rows
contain as JSON."""

import hashlib
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote

import msgspec

from talaria.core.ids import SessionId
from talaria.platforms.base import Address, Arrival, Button, ChatKind, File, Outbound, RequestDetails
from talaria.runtime.commands import Commands, ParsedLine, PlainMessage
from talaria.store.chat_ports import Inbound

MAIN = "main"
"""The default profile's name in keys."""

KeyKind = Literal["dm", "group", "thread"]


class KeyRules(msgspec.Struct, frozen=True):
    profile: str = MAIN
    is_group_per_person: bool = True
    """In a group, everybody has a conversation of their own."""
    is_thread_per_person: bool = False
    """In a thread, too."""


def session_key(where: Address, kind: ChatKind, person: str, rules: KeyRules) -> str:
    """`person` is the sender's id on that platform."""
    if kind == "dm":
        return _join(rules.profile, where.platform, "dm", where.chat or person, where.thread)
    is_per_person = rules.is_thread_per_person if where.thread else rules.is_group_per_person
    named: KeyKind = "thread" if where.thread else "group"
    return _join(rules.profile, where.platform, named, where.chat, where.thread, person if is_per_person else "")


def is_shared_conversation(key: str, where: Address, kind: ChatKind, rules: KeyRules) -> bool:
    """All people there share this conversation."""
    return kind == "group" and key == session_key(where, kind, "", rules)


def parse_address(platform: str, given: str) -> Address:
    """Reads `CHAT` or `CHAT:THREAD`. A Matrix room may itself contain a colon, and a thread there begins with `$`."""
    is_room = given.startswith("!")
    chat, _, thread = given.partition(":$" if is_room else ":")
    return Address(platform, unquote(chat), unquote(f"${thread}" if is_room and thread else thread))


def _join(*parts: str) -> str:
    """Escapes a colon inside a part, so that no chat can pass for another."""
    escaped = [one if one.isascii() and one.isalnum() else quote(one, safe="!#@$+=,/ -") for one in parts if one]
    return ":".join(["agent", *escaped])


def folder_name(platform: str, whose: str) -> str:
    """No two people get the same name, whatever characters their ids contain."""
    safe = "".join(char if char.isalnum() or char in "-_" else "-" for char in whose)[:60]
    told_apart = "" if safe == whose else f"-{hashlib.sha256(whose.encode()).hexdigest()[:8]}"
    return f"{platform}-{safe}{told_apart}"


NO_SESSION = SessionId("gateway")
"""For replies that belong to no conversation."""
MARK = "(Sent again after an interruption; you may have this already.)"


class Principal(msgspec.Struct, frozen=True):
    """A sender who may write."""

    platform: str
    user: str
    name: str = ""
    is_admin: bool = False

    @property
    def person(self) -> str:
        """Their name in the rest of the program."""
        return f"{self.platform}:{self.user}"


class Received(msgspec.Struct, frozen=True):
    """A message that was let in."""

    arrival: Arrival
    principal: Principal
    key: str
    """The chat's key."""


def parse_arrival(arrival: Arrival, commands: Commands) -> ParsedLine:
    return commands.parse(arrival.text, "platform") if arrival.request is None else PlainMessage(arrival.text)


class Mail(msgspec.Struct, frozen=True):
    """A message that waits to be handled, with its text, which is parsed once, on arrival."""

    row: Inbound
    received: Received
    given: ParsedLine

    @property
    def is_command(self) -> bool:
        """A command, or something that was meant as one."""
        return not isinstance(self.given, PlainMessage)

    @property
    def request(self) -> RequestDetails | None:
        return self.received.arrival.request

    @property
    def text(self) -> str:
        """A plain message's text: `//text` means `/text`."""
        return self.given.text if isinstance(self.given, PlainMessage) else self.received.arrival.text


class OutgoingBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reply, or a part of one. Without text and file it takes back what was shown."""

    text: str = ""
    reply_to: str = ""
    buttons: tuple[Button, ...] = ()
    file: str = ""
    """The path of a file; `text` is its caption."""
    content: str = ""
    """In place of a path: the file's content, stored in the row so that nothing can change it on the way."""
    file_name: str = ""
    mime: str = ""
    is_promised: bool = False
    """The answer named this file: if it is refused, a message says so."""
    is_marked: bool = False
    """It may have arrived already, and says so."""
    is_draft: bool = False
    """The beginning of an answer that is still being written: never sent again for its own sake."""
    is_question: bool = False
    """A process waits for a yes or no. If that process has died, nobody is asked."""
    replaces: str | None = None
    """The id of a sent message that cannot be edited: this one is sent in its place."""

    @property
    def is_empty(self) -> bool:
        return not self.text and not self.has_file

    @property
    def has_file(self) -> bool:
        return bool(self.file or self.content)

    def edits(self, sent_id: str | None) -> str | None:
        """The id of the sent message that this one edits; None: this one is sent."""
        return None if sent_id == self.replaces else sent_id

    def outbound(self, where: Address, key: str) -> Outbound:
        text = f"{MARK}\n\n{self.text}".strip() if self.is_marked else self.text
        file: File | None = None
        if self.has_file:
            path = Path(self.file or self.file_name)
            file = File(path, self.file_name or path.name, self.mime)
        key = key if self.replaces is None else f"{key}:anew"
        return Outbound(where, text, key, self.reply_to, self.buttons, file)


encode = msgspec.json.Encoder().encode
_received = msgspec.json.Decoder(Received)
_bodies = msgspec.json.Decoder(OutgoingBody)


def encode_body(content: Received | OutgoingBody) -> str:
    return encode(content).decode()


def read_received(body: str) -> Received:
    return _received.decode(body)


def read_body(body: str) -> OutgoingBody:
    return _bodies.decode(body)
