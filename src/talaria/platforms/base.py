"""The port of a chat service. A platform translates; it decides nothing: who may speak, what is answered and what is
sent again is the gateway's."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NewType, Protocol
from urllib.parse import quote, unquote

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import OperatorError, TalariaError, Transient

SentId = NewType("SentId", str)
"""A message that we sent, as the platform calls it."""

ChatKind = Literal["dm", "group"]
AttachmentKind = Literal["image", "voice", "audio", "video", "document"]


class Address(msgspec.Struct, frozen=True):
    """Where something is said. `str()` of it is `telegram:42` or, in a thread, `telegram:42:7`."""

    platform: str
    chat: str
    thread: str = ""

    def __str__(self) -> str:
        parts = (self.platform, self.chat, self.thread) if self.thread else (self.platform, self.chat)
        return ":".join(part if part.isascii() and part.isalnum() else quote(part, safe="!#@$+=,/ ") for part in parts)

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Raises `ValueError`."""
        match [unquote(part) for part in text.split(":")]:
            case [platform, chat] if platform and chat:
                return cls(platform, chat)
            case [platform, chat, thread] if platform and chat:
                return cls(platform, chat, thread)
            case _:
                raise ValueError(f"{text!r} is no address like telegram:42 or telegram:42:7")


class Sender(msgspec.Struct, frozen=True):
    id: str
    """Immutable: the platform never gives it to anybody else."""
    name: str = ""
    """A label. Nothing is ever decided by it."""


PICTURES = frozenset({"image/png", "image/jpeg", "image/webp", "image/gif"})
"""What people see as a picture in their chat. Other images are files there."""


def attachment_kind(mime: str) -> AttachmentKind:
    match mime.partition("/")[0]:
        case "image" | "audio" | "video" as kind:
            return kind
        case _:
            return "document"


class Attachment(msgspec.Struct, frozen=True):
    """A file that came with a message; fetched only when the message is answered."""

    kind: AttachmentKind
    ref: str
    """By which the platform finds it again, also after a restart."""
    name: str = ""
    mime: str = ""
    size_bytes: int | None = None


class Quoted(msgspec.Struct, frozen=True):
    """A message that another one brings along: the one that it replies to, or passes on."""

    text: str
    is_ours: bool = False
    author: str = ""
    """Whose it is: a label. Empty: ours, or not known."""


class Arrival(msgspec.Struct, frozen=True, tag="arrival"):
    """Something that somebody said."""

    message_id: str
    """Unique in its chat; the same when the platform tells of it again."""
    where: Address
    kind: ChatKind
    sender: Sender
    text: str = ""
    """Without the mention of us. A command begins with a slash."""
    is_addressed: bool = False
    """In a group: it mentions us, replies to us, or is a command for us."""
    attachments: tuple[Attachment, ...] = ()
    reply_to: Quoted | None = None
    forwarded: Quoted | None = None
    """A message of somebody else that is passed on. Its words are not those of the sender, and never a command."""
    sent_at: float = 0.0
    maybe_command: str = ""
    """In a group, of words that are not addressed to us: how they read as a command (`/help` for `!help`). The gateway
    knows which commands there are, and takes it for one only then."""
    is_continued: bool = False
    """More of the same is likely on its way: the client splits long texts, or it is one picture of an album."""


class ChatInfo(msgspec.Struct, frozen=True):
    """A chat as the messages in it will come."""

    where: Address
    kind: ChatKind
    person: str = ""
    """In a direct chat: the id of whoever is there besides us; empty: that is not known."""


class Press(msgspec.Struct, frozen=True, tag="press"):
    """A button of ours was pressed."""

    id: str
    """To answer it."""
    where: Address
    kind: ChatKind
    sender: Sender
    data: str
    """What the button carries."""
    message_id: str = ""
    """Of the message that has the button."""


class Deleted(msgspec.Struct, frozen=True, tag="deleted"):
    """A message was deleted by whoever may do that there. If it still waits for its turn it is not answered."""

    where: Address
    """Of this only the chat counts: some services do not tell in which thread it was."""
    message_id: str


Item = Arrival | Press | Deleted


class Batch(msgspec.Struct, frozen=True):
    """What arrived together, in order. An empty one says that the line is alive."""

    items: tuple[Item, ...] = ()
    cursor: str | None = None
    """How far the stream is read with this batch. None: as far as before."""
    token: str = ""
    """By which the platform knows what to acknowledge."""


class Button(msgspec.Struct, frozen=True):
    label: str
    data: str
    """At most 64 bytes."""
    style: Literal["plain", "good", "bad"] = "plain"


class File(msgspec.Struct, frozen=True):
    path: Path
    name: str
    mime: str = "application/octet-stream"
    pixels: tuple[int, int] | None = None
    """Width and height of a picture, if they are known."""


class Outbound(msgspec.Struct, frozen=True):
    """One message to send: markdown, at most `max_chars` of it, or a file with `text` as its caption."""

    where: Address
    text: str
    key: str
    """The same whenever this message is sent again. Letters, digits, `_`, `-`, `.`, `:`."""
    reply_to: str = ""
    """The message that this answers."""
    buttons: tuple[Button, ...] = ()
    file: File | None = None


class Capabilities(msgspec.Struct, frozen=True):
    max_chars: int
    """Of one message, counted as `length` counts."""
    can_edit: bool = False
    can_delete: bool = False
    can_type: bool = False
    has_buttons: bool = False
    has_threads: bool = False
    dedup_s: float = 0.0
    """For how long the platform takes a second message with the same key for the same message."""
    edit_every_s: float = 1.0
    """How often a message may change while it is being written."""
    max_upload_bytes: int = 20 * 2**20
    pulse_s: float = 60.0
    """`receive` brings something at least this often while the line is alive, be it an empty batch."""
    length: Callable[[str], int] = len


# What a call of the platform may raise. Anything else is a bug of the adapter.


class PlatformFailure(TalariaError):
    """Marks what a chat service did. `str()` of it is one clear sentence."""


class NotTaken(PlatformFailure, Transient):
    """The service surely did not take it; it may later. With `retry_after_s`: not before that."""


class Unsure(PlatformFailure, Transient):
    """The answer was lost: the service may have taken it."""


class Rejected(PlatformFailure):
    """The service will never take this one."""


class AccessLost(PlatformFailure):
    """Nothing can be sent to this chat any more: we were blocked or removed, or it is gone."""


class ChatMoved(PlatformFailure):
    """The chat has another address now; this one surely was not delivered."""

    def __init__(self, sentence: str, to: Address) -> None:
        super().__init__(sentence)
        self.to = to


class Refused(PlatformFailure, OperatorError):
    """The service does not let us in: the token is wrong, an intent is missing, another program uses the bot."""


class Platform(Protocol):
    """A connection to one chat service under one account; open while its context is."""

    @property
    def name(self) -> str:
        """`telegram`."""
        ...

    @property
    def account(self) -> str:
        """Which of the service's accounts we are: immutable."""
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    def receive(self, cursor: str | None) -> AsyncGenerator[Batch]:
        """What arrives from `cursor` on, with what was missed while we were away.

        Raises `NotTaken` when the line breaks and `Refused` when somebody must act: the platform is then opened anew.
        """
        ...

    async def acknowledge(self, batch: Batch) -> None:
        """It is on our disk."""
        ...

    async def send(self, message: Outbound) -> SentId:
        """Raises `NotTaken`, `Unsure`, `Rejected`, `AccessLost`, `ChatMoved`, `Refused`. Never sends twice."""
        ...

    async def edit(self, sent: SentId, message: Outbound) -> None:
        """The message as it should read now; also its buttons. Nothing happens if it reads so already."""
        ...

    async def delete(self, sent: SentId, where: Address) -> None: ...
    async def show_typing(self, where: Address) -> None:
        """For a few seconds."""
        ...

    async def react(self, where: Address, message_id: str, emoji: str) -> None: ...
    async def answer(self, press: Press, text: str) -> None:
        """Told to whoever pressed the button, and to nobody else."""
        ...

    async def fetch(self, attachment: Attachment, to: Path, max_bytes: int) -> None:
        """Into the file `to`. Raises `Rejected` when it is larger than that, or gone."""
        ...

    async def chat_info(self, where: Address) -> ChatInfo:
        """What a message in that chat would say of where it is. A chat of which that is not known is a group."""
        ...

    async def create_thread(self, where: Address, name: str) -> Address | None:
        """A thread of that chat; None: it cannot have one."""
        ...

    async def offer_commands(self, menu: Sequence[tuple[str, str]]) -> None:
        """Name and description of each, for the service's own menu."""
        ...


class PlatformSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of every platform, under `gateway.platforms.NAME`; each adds its own."""

    enabled: bool = True
    allowed_users: tuple[str, ...] = ()
    """Ids of people who may speak to the agent."""
    admin_users: tuple[str, ...] = ()
    """Ids of people who may do all that the person at the terminal may."""
    allowed_chats: tuple[str, ...] = ()
    """Ids of groups in which allowed people may speak to the agent."""
    allow_all_users: bool = False
    require_mention: bool = True
    """In groups."""
    home_channel: str = ""
    """`CHAT` or `CHAT:THREAD`: where to turn to when nobody has asked."""

    @property
    def admins(self) -> tuple[str, ...]:
        """Who names no admins has only people of one kind: all whom the settings name."""
        return self.admin_users or self.allowed_users


class Kit(msgspec.Struct, frozen=True):
    """What a platform gets besides its settings."""

    home: Path
    """A folder of its own, which outlives the process."""
    clock: Clock
    is_allowed: Callable[[Sender], bool]
    """Whose invitations are followed."""


class PlatformManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """`manifest.toml`: all that is known of a platform before its code is loaded."""

    name: str
    label: str
    extra: str
    """Of the distribution; empty: nothing more is needed."""
    modules: tuple[str, ...]
    """Third-party modules that must be there."""
    environment: Mapping[str, str]
    """Which variables fill which settings: `{TELEGRAM_BOT_TOKEN = "token"}`."""
    required: tuple[str, ...]
    """Settings without which it cannot run."""
    secrets: tuple[str, ...] = ()
    """Settings that must never be shown."""
    how_to: str = ""
    """Where its token comes from, in one sentence."""
