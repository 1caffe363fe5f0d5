"""The port of a chat service. A platform only translates. The gateway decides who may speak, what is answered and what
is sent again."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from re import Pattern
from typing import Literal, NewType, Protocol
from urllib.parse import quote, unquote

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import BadConfig, OperatorError, TalariaError, Transient
from talaria.core.ids import SessionId, TurnId

SentId = NewType("SentId", str)
"""The platform's id of a message that we sent."""

ChatKind = Literal["dm", "group"]
AttachmentKind = Literal["image", "voice", "audio", "video", "document"]


class Address(msgspec.Struct, frozen=True):
    """A chat, or a thread in it. As text: `telegram:42` or, in a thread, `telegram:42:7`."""

    platform: str
    chat: str
    thread: str = ""

    def __str__(self) -> str:
        parts = (self.platform, self.chat, self.thread) if self.thread else (self.platform, self.chat)
        return ":".join(
            [part if part.isascii() and part.isalnum() else quote(part, safe="!#@$+=,/ ") for part in parts]
        )

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Raises `ValueError`."""
        match [unquote(part) for part in text.split(":")]:
            case [platform, chat] if platform and chat:
                return cls(platform, chat)
            case [platform, chat, thread] if platform and chat:
                return cls(platform, chat, thread)
            case _:
                raise ValueError(f"{text!r} is not an address like telegram:42 or telegram:42:7")


class Sender(msgspec.Struct, frozen=True):
    id: str
    """Immutable: the platform never gives it to anybody else."""
    name: str = ""
    """A label; never used for decisions."""


PICTURES = frozenset({"image/png", "image/jpeg", "image/webp", "image/gif"})
"""Images that chats display. Other image types are shown as files."""


def attachment_kind(mime: str) -> AttachmentKind:
    match mime.partition("/")[0]:
        case "image" | "audio" | "video" as kind:
            return kind
        case _:
            return "document"


class Attachment(msgspec.Struct, frozen=True):
    """A file that came with a message. It is downloaded only when the message is answered."""

    kind: AttachmentKind
    ref: str
    """Lets the platform find the file again, even after a restart."""
    name: str = ""
    mime: str = ""
    size_bytes: int | None = None


class Quoted(msgspec.Struct, frozen=True):
    """A message inside another one: the one that it replies to or forwards."""

    text: str
    is_ours: bool = False
    author: str = ""
    """A label. Empty if the message is ours or the author is unknown."""


class RequestDetails(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of a message whose sender waits for the answer to exactly this one, and watches its turn. Its text is never a
    command, it is not joined with other messages, and nothing is sent to its chat."""

    turn: TurnId
    """The id that its turn will have."""
    session: SessionId = SessionId("")
    """The conversation that it is for; empty: the one that its chat is about."""
    instructions: str = ""
    """From the program that sends it; in a conversation that begins with it, they take the place of SOUL.md."""
    news: str = ""
    """What the model should read before the text, in the host's words."""
    history: str = ""
    """The digest of the conversation up to this message, for programs that send all of it each time."""
    digest: str = ""
    """Of all that was sent. Another request under the same id is a mistake of the program."""
    echo: str = ""
    """What the answer repeats of the request, as JSON."""


class Arrival(msgspec.Struct, frozen=True, tag="arrival"):
    """An incoming message."""

    message_id: str
    """Unique in its chat; the same if the platform delivers the message again."""
    where: Address
    kind: ChatKind
    sender: Sender
    text: str = ""
    """Without the mention of the bot. A command begins with a slash."""
    is_addressed: bool = False
    """In a group: the message mentions the bot, replies to it, or is a command for it."""
    attachments: tuple[Attachment, ...] = ()
    reply_to: Quoted | None = None
    forwarded: Quoted | None = None
    """The forwarded message. Its text is not the sender's own, and never a command."""
    sent_at: float = 0.0
    maybe_command: str = ""
    """For an unaddressed group message: how its text reads as a command (`/help` for `!help`). The gateway treats it as
    one only if that command exists."""
    is_continued: bool = False
    """More is probably coming: a long text that the client split, or one picture of an album."""
    request: RequestDetails | None = None


class ChatInfo(msgspec.Struct, frozen=True):
    """What messages from a chat will say about it."""

    where: Address
    kind: ChatKind
    person: str = ""
    """In a direct chat: the id of the other person; empty if unknown."""


class Press(msgspec.Struct, frozen=True, tag="press"):
    """Somebody pressed one of our buttons."""

    id: str
    """Needed to answer the press."""
    where: Address
    kind: ChatKind
    sender: Sender
    data: str
    """The payload of the button."""
    message_id: str = ""
    """The message that has the button."""


class Deleted(msgspec.Struct, frozen=True, tag="deleted"):
    """A message was deleted. If it is still queued, it is not answered."""

    where: Address
    """Only the chat counts: some services do not say which thread the message was in."""
    message_id: str


Item = Arrival | Press | Deleted


class Batch(msgspec.Struct, frozen=True):
    """Items that arrived together, in order. An empty batch shows that the connection is alive."""

    items: tuple[Item, ...] = ()
    cursor: str | None = None
    """The position in the stream after this batch. None: unchanged."""
    token: str = ""
    """Tells the platform what to acknowledge."""


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
    """Width and height of a picture, if known."""


class Outbound(msgspec.Struct, frozen=True):
    """One message to send: markdown of at most `max_chars`, or a file with `text` as its caption."""

    where: Address
    text: str
    key: str
    """The same whenever this message is sent again. Made of letters, digits, `_`, `-`, `.` and `:`."""
    reply_to: str = ""
    """The id of the message that this answers."""
    buttons: tuple[Button, ...] = ()
    file: File | None = None


class Capabilities(msgspec.Struct, frozen=True):
    max_chars: int
    """Per message, as counted by `length`."""
    can_edit: bool = False
    can_delete: bool = False
    can_type: bool = False
    has_buttons: bool = False
    has_threads: bool = False
    dedup_s: float = 0.0
    """How long the platform treats a second message with the same key as the same message."""
    edit_every_s: float = 1.0
    """The shortest time between two edits of one message."""
    max_upload_bytes: int = 20 * 2**20
    pulse_s: float = 60.0
    """While the connection is alive, `receive` yields at least this often, if only an empty batch."""
    length: Callable[[str], int] = len


# All that a call of a platform may raise. Anything else is a bug in the adapter.


class PlatformFailure(TalariaError):
    """A failure of the chat service. `str()` gives one clear sentence."""


class NotTaken(PlatformFailure, Transient):
    """The service certainly did not accept it, but may later: not before `retry_after_s`, if that is given."""


class Unsure(PlatformFailure, Transient):
    """The response was lost: the service may have accepted it."""


class Rejected(PlatformFailure):
    """The service will never accept this."""


class AccessLost(PlatformFailure):
    """Nothing can be sent to this chat any more: the bot was blocked or removed, or the chat is gone."""


class ChatMoved(PlatformFailure):
    """The chat has a new address; the message was certainly not delivered."""

    def __init__(self, sentence: str, to: Address) -> None:
        super().__init__(sentence)
        self.to = to


class Refused(PlatformFailure, OperatorError):
    """The service does not let us in: wrong token, missing intent, or another program uses the bot."""


class Platform(Protocol):
    """A connection to one chat service under one account, open as long as its context."""

    @property
    def name(self) -> str:
        """`telegram`."""
        ...

    @property
    def account(self) -> str:
        """The immutable id of our account on the service."""
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    def receive(self, cursor: str | None) -> AsyncGenerator[Batch]:
        """Everything after `cursor`, including what was missed while we were offline.

        Raises `NotTaken` when the connection breaks and `Refused` when somebody must act; then reopen the platform.
        """
        ...

    async def acknowledge(self, batch: Batch) -> None:
        """The batch is on our disk."""
        ...

    async def send(self, message: Outbound) -> SentId:
        """Makes one attempt. Raises `NotTaken`, `Unsure`, `Rejected`, `AccessLost`, `ChatMoved`, `Refused`."""
        ...

    async def edit(self, sent: SentId, message: Outbound) -> None:
        """Replaces the text and the buttons. An edit that changes nothing is not an error."""
        ...

    async def delete(self, sent: SentId, where: Address) -> None: ...
    async def show_typing(self, where: Address) -> None:
        """Lasts for a few seconds."""
        ...

    async def react(self, where: Address, message_id: str, emoji: str) -> None: ...
    async def answer(self, press: Press, text: str) -> None:
        """Shown only to the person who pressed the button."""
        ...

    async def fetch(self, attachment: Attachment, to: Path, max_bytes: int) -> None:
        """Downloads into the file `to`. Raises `Rejected` if it is larger than `max_bytes`, or gone."""
        ...

    async def chat_info(self, where: Address) -> ChatInfo:
        """A chat whose kind is unknown counts as a group."""
        ...

    async def create_thread(self, where: Address, name: str) -> Address | None:
        """None if the chat cannot have threads."""
        ...

    async def offer_commands(self, menu: Sequence[tuple[str, str]]) -> None:
        """Puts these commands, each a name and a description, into the service's own menu."""
        ...


class PlatformSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings under `gateway.platforms.NAME` that all platforms share; each adds its own."""

    enabled: bool = True
    allowed_users: tuple[str, ...] = ()
    """Ids of people who may speak to the agent."""
    admin_users: tuple[str, ...] = ()
    """Ids of people who may do everything that you may do at the terminal."""
    allowed_chats: tuple[str, ...] = ()
    """Ids of groups in which allowed people may speak to the agent."""
    allow_all_users: bool = False
    require_mention: bool = True
    """In groups."""
    home_channel: str = ""
    """`CHAT` or `CHAT:THREAD`: where unprompted messages go."""

    @property
    def admins(self) -> tuple[str, ...]:
        """If no admins are listed, all allowed users are admins."""
        return self.admin_users or self.allowed_users


class IdForm(msgspec.Struct, frozen=True):
    pattern: Pattern[str]
    hint: str
    """Where to find such an id; ends the error message."""


def check_ids(platform: str, settings: PlatformSettings, *, person: IdForm, chat: IdForm, place: IdForm) -> None:
    """Only ids are accepted, because names can change hands. `place`: a chat, perhaps with a thread.

    Raises `BadConfig`.
    """
    for name, ids, form in (
        ("allowed_users", settings.allowed_users, person),
        ("admin_users", settings.admin_users, person),
        ("allowed_chats", settings.allowed_chats, chat),
        ("home_channel", filter(None, [settings.home_channel]), place),
    ):
        for id in ids:
            if form.pattern.fullmatch(id) is None:
                where = f"gateway.platforms.{platform}.{name}"
                raise BadConfig(f"{where}: {id!r} is not an id, and names can change hands: {form.hint}.")


class Kit(msgspec.Struct, frozen=True):
    """What a platform is given besides its settings."""

    home: Path
    """A folder of its own, kept between runs."""
    clock: Clock
    is_allowed: Callable[[Sender], bool]
    """Whether this person may talk to the bot, and may invite it."""


class PlatformManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """`manifest.toml`: what is known about a platform before its code is loaded."""

    name: str
    label: str
    extra: str
    """The extra to install; empty if none is needed."""
    modules: tuple[str, ...]
    """Third-party modules that must be installed."""
    environment: Mapping[str, str]
    """Which variables fill which settings: `{TELEGRAM_BOT_TOKEN = "token"}`."""
    required: tuple[str, ...]
    """Settings that must be set."""
    secrets: tuple[str, ...] = ()
    """Settings whose values are never shown."""
    how_to: str = ""
    """Where to get the token, in one sentence."""
