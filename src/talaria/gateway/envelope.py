"""What inbox and outbox rows carry, as JSON: a message with who may say it, and a reply with how it looks."""

from pathlib import Path

import msgspec

from talaria.core.ids import SessionId
from talaria.platforms.base import Address, Arrival, Button, File, Outbound

BESIDE = SessionId("gateway")
"""Whose replies are in no conversation."""
MARK = "(Sent again after an interruption; you may have this already.)"


class Principal(msgspec.Struct, frozen=True):
    """Whoever speaks, once it is known that they may."""

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


class OutgoingBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reply, or a part of one. Without text and file: what was shown is taken back."""

    text: str = ""
    reply_to: str = ""
    buttons: tuple[Button, ...] = ()
    file: str = ""
    """The path of a file; `text` is its caption."""
    content: str = ""
    """In place of a path: what the file holds. So it is kept with the row, and nobody can change it on its way."""
    file_name: str = ""
    mime: str = ""
    is_promised: bool = False
    """The answer named this file: if it is refused, that is said in its place."""
    is_marked: bool = False
    """It may be there already, and says so."""
    is_draft: bool = False
    """The first words of an answer that is still being written: never sent again for their own sake."""
    is_question: bool = False
    """It waits for a yes or no of a process that lives; nobody is asked by what another one has left."""
    replaces: str | None = None
    """What was sent of it, which cannot be edited: it is sent anew, in the same place."""

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
_parcels = msgspec.json.Decoder(OutgoingBody)


def written(content: Received | OutgoingBody) -> str:
    return encode(content).decode()


def read_received(body: str) -> Received:
    return _received.decode(body)


def read_parcel(body: str) -> OutgoingBody:
    return _parcels.decode(body)
