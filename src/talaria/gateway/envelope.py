"""Messages on their way in and out: the key under which a chat finds its conversation, and what inbox and outbox rows
carry as JSON.
"""

import hashlib
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote

import msgspec

from talaria.core.ids import SessionId
from talaria.platforms.base import Address, Arrival, Button, ChatKind, File, Outbound
from talaria.runtime.commands import ParsedLine, PlainMessage
from talaria.store.chat_ports import Inbound

MAIN = "main"
"""How the default profile is called in keys."""

KeyKind = Literal["dm", "group", "thread"]


class KeyRules(msgspec.Struct, frozen=True):
    profile: str = MAIN
    is_group_per_person: bool = True
    """In a group everybody has a conversation of their own."""
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
    """Of a conversation that all people there have together."""
    return kind == "group" and key == session_key(where, kind, "", rules)


def parse_address(platform: str, given: str) -> Address:
    """As people write it: `CHAT` or `CHAT:THREAD`. A room of Matrix may have a colon of its own, and a thread there
    begins with `$`."""
    is_room = given.startswith("!")
    chat, _, thread = given.partition(":$" if is_room else ":")
    return Address(platform, unquote(chat), unquote(f"${thread}" if is_room and thread else thread))


def _join(*parts: str) -> str:
    """A colon inside of a part must not make it two: no chat may pass for another."""
    return ":".join(["agent", *(quote(part, safe="!#@$+=,/ -") for part in parts if part)])


def folder_name(platform: str, whose: str) -> str:
    """No two people share one, whatever characters their ids have; what is said together has one of its own."""
    safe = "".join(char if char.isalnum() or char in "-_" else "-" for char in whose)[:60]
    told_apart = "" if safe == whose else f"-{hashlib.sha256(whose.encode()).hexdigest()[:8]}"
    return f"{platform}-{safe}{told_apart}"


NO_SESSION = SessionId("gateway")
"""Whose replies are in no conversation."""
MARK = "(Sent again after an interruption; you may have this already.)"


class Principal(msgspec.Struct, frozen=True):
    """A sender who may write."""

    platform: str
    user: str
    name: str = ""
    is_admin: bool = False

    @property
    def person(self) -> str:
        """As the rest of the program calls them."""
        return f"{self.platform}:{self.user}"


class Received(msgspec.Struct, frozen=True):
    """A message that was let in."""

    arrival: Arrival
    principal: Principal
    key: str
    """Of the chat."""


class Mail(msgspec.Struct, frozen=True):
    """A message that waits to be handled, and what its text says: it is parsed once, where it comes in."""

    row: Inbound
    received: Received
    given: ParsedLine

    @property
    def is_command(self) -> bool:
        """Or something that was meant as one."""
        return not isinstance(self.given, PlainMessage)

    @property
    def text(self) -> str:
        """Of a plain message: `//text` is `/text`."""
        return self.given.text if isinstance(self.given, PlainMessage) else self.received.arrival.text


class OutgoingBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reply, or a part of one. Without text and file: what was shown is taken back."""

    text: str = ""
    reply_to: str = ""
    buttons: tuple[Button, ...] = ()
    file: str = ""
    """The path of a file; `text` is its caption."""
    content: str = ""
    """In place of a path: the content of the file, kept with the row so that nothing can change it on its way."""
    file_name: str = ""
    mime: str = ""
    is_promised: bool = False
    """The answer named this file: if it is refused, that is said in its place."""
    is_marked: bool = False
    """It may be there already, and says so."""
    is_draft: bool = False
    """The first words of an answer that is still being written: never sent again for their own sake."""
    is_question: bool = False
    """A living process waits for its yes or no; what a dead one has left asks nobody."""
    replaces: str | None = None
    """The id of what was sent and cannot be edited: this is sent again in its place."""

    @property
    def is_empty(self) -> bool:
        return not self.text and not self.has_file

    @property
    def has_file(self) -> bool:
        return bool(self.file or self.content)

    def edits(self, sent_id: str | None) -> str | None:
        """Which message that was sent before it is an edit of; None: it is sent."""
        return None if sent_id == self.replaces else sent_id

    def outbound(self, where: Address, key: str) -> Outbound:
        text = f"{MARK}\n\n{self.text}".strip() if self.is_marked else self.text
        path = Path(self.file or self.file_name)
        file = File(path, self.file_name or path.name, self.mime) if self.has_file else None
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
