"""Reads Telegram's updates as arrivals and presses. Pure, and never raises, whatever the update contains.

Edits, messages from other bots or on behalf of a channel, and service messages are ignored.
"""

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from talaria.platforms.base import Address, Arrival, Attachment, AttachmentKind, ChatKind, Press, Quoted, Sender
from talaria.platforms.splitting import cut_units, units

NAME = "telegram"
GENERAL = "1"
"""The General topic of a forum: chat actions need this id, but messages to and from it carry none."""
SPLIT_UNITS = 4000
"""A text this long is probably the first part of a longer one: apps split at 4096."""
_PICTURES = ("image/jpeg", "image/png", "image/webp", "image/gif")
_UNREADABLE = (msgspec.MsgspecError, RecursionError, ValueError)


class TelegramAccount(msgspec.Struct, frozen=True):
    """Our bot."""

    id: int
    username: str = ""


class _User(msgspec.Struct):
    id: int
    is_bot: bool = False
    first_name: str = ""
    last_name: str = ""
    username: str = ""


class _Chat(msgspec.Struct):
    id: int
    type: str
    is_forum: bool = False
    title: str = ""
    username: str = ""


class _Entity(msgspec.Struct):
    type: str
    offset: int
    length: int
    user: _User | None = None


class _File(msgspec.Struct):
    """A photo, document, voice note or the like; each has some of these fields."""

    file_id: str
    file_name: str = ""
    mime_type: str = ""
    file_size: int | None = None
    width: int = 0
    height: int = 0


class _Sticker(msgspec.Struct):
    emoji: str = ""


class _Location(msgspec.Struct):
    latitude: float
    longitude: float


class _Venue(msgspec.Struct):
    title: str = ""
    address: str = ""


class _Contact(msgspec.Struct):
    phone_number: str
    first_name: str = ""
    last_name: str = ""


class _Origin(msgspec.Struct):
    """The origin of a forwarded message: a user, a hidden user, a chat or a channel."""

    sender_user: _User | None = None
    sender_user_name: str = ""
    sender_chat: _Chat | None = None
    chat: _Chat | None = None
    author_signature: str = ""


class _Quote(msgspec.Struct):
    text: str = ""


class _Message(msgspec.Struct, rename={"from_": "from"}):
    message_id: int
    chat: _Chat
    date: float = 0.0
    from_: _User | None = None
    sender_chat: _Chat | None = None
    message_thread_id: int | None = None
    is_topic_message: bool = False
    media_group_id: str | None = None
    reply_to_message: "_Message | None" = None
    forum_topic_created: object = None
    forward_origin: object = None
    quote: _Quote | None = None
    text: str = ""
    entities: tuple[_Entity, ...] = ()
    caption: str = ""
    caption_entities: tuple[_Entity, ...] = ()
    photo: tuple[_File, ...] = ()
    animation: _File | None = None
    document: _File | None = None
    voice: _File | None = None
    audio: _File | None = None
    video: _File | None = None
    video_note: _File | None = None
    sticker: _Sticker | None = None
    location: _Location | None = None
    venue: _Venue | None = None
    contact: _Contact | None = None


class _Callback(msgspec.Struct, rename={"from_": "from"}):
    id: str
    from_: _User
    message: _Message | None = None
    data: str = ""


class _Content(msgspec.Struct):
    message: _Message | None = None
    callback_query: _Callback | None = None


class Update(msgspec.Struct, frozen=True):
    id: int
    item: Arrival | Press | None


class _Number(msgspec.Struct):
    update_id: int


def updates(result: bytes | msgspec.Raw, me: TelegramAccount) -> tuple[Update, ...]:
    """The result of `getUpdates`, decoded one by one, so that one unreadable update costs no other."""
    try:
        found = msgspec.json.decode(result, type=list[msgspec.Raw])
    except _UNREADABLE:
        return ()
    return tuple(known for one in found if (known := update(one, me)) is not None)


def update(raw: bytes | msgspec.Raw, me: TelegramAccount) -> Update | None:
    """None if this is not an update at all."""
    try:
        number = msgspec.json.decode(raw, type=_Number).update_id
    except _UNREADABLE:
        return None
    try:
        content = msgspec.json.decode(raw, type=_Content)
    except _UNREADABLE:
        return Update(number, None)
    callback = content.callback_query
    if callback is None:
        return Update(number, None if content.message is None else _read_message(content.message, me))
    if callback.message is None or not callback.data or callback.from_.is_bot:
        return Update(number, None)
    press = Press(
        id=callback.id,
        where=_where(callback.message),
        kind=_kind(callback.message.chat),
        sender=_sender(callback.from_),
        data=callback.data,
        message_id=str(callback.message.message_id),
    )
    return Update(number, press)


def _read_message(message: _Message, me: TelegramAccount) -> Arrival | None:
    person = message.from_
    if person is None or person.is_bot or message.sender_chat is not None or message.chat.type == "channel":
        return None
    said, entities = _read_text(message)
    attachments = tuple(_read_attachments(message))
    if not said and not attachments:
        return None
    arrival = Arrival(
        message_id=str(message.message_id),
        where=_where(message),
        kind=_kind(message.chat),
        sender=_sender(person),
        attachments=attachments,
        sent_at=message.date,
    )
    if message.forward_origin is not None:  # somebody else's words are never a command, and never address us
        return replace(arrival, forwarded=Quoted(said, author=_author(message.forward_origin)), is_continued=True)
    text, is_mentioned = _strip_mentions(said, entities, me)
    reply_to = _read_reply(message, me)
    is_bare_command = any(  # one without a bot's name, as apps write it where there is only one bot
        entity.type == "bot_command" and entity.offset == 0 and "@" not in cut_units(said, 0, entity.length)
        for entity in entities
    )
    is_for_us = is_mentioned or is_bare_command or (reply_to is not None and reply_to.is_ours)
    return replace(
        arrival,
        text=text,
        is_addressed=arrival.kind == "group" and is_for_us,
        reply_to=reply_to,
        is_continued=message.media_group_id is not None or units(message.text) >= SPLIT_UNITS,
    )


def _kind(chat: _Chat) -> ChatKind:
    return "dm" if chat.type == "private" else "group"


def _where(message: _Message) -> Address:
    thread = ""
    if message.is_topic_message and message.message_thread_id is not None:
        thread = str(message.message_thread_id)  # without the flag, it is only the first message of a chain of replies
    elif message.chat.is_forum and message.chat.type == "supergroup":
        thread = GENERAL
    return Address(NAME, str(message.chat.id), thread)


def _sender(user: _User) -> Sender:
    return Sender(str(user.id), f"{user.first_name} {user.last_name}".strip() or user.username)


def _author(origin: object) -> str:
    """The author of a forwarded message, as Telegram shows it."""
    try:
        found = msgspec.convert(origin, _Origin)
    except _UNREADABLE:
        return ""
    if found.sender_user is not None:
        return _sender(found.sender_user).name
    chat = found.sender_chat or found.chat or _Chat(0, "")
    return found.sender_user_name or chat.title or chat.username or found.author_signature


def _read_text(message: _Message) -> tuple[str, tuple[_Entity, ...]]:
    if message.text:
        return message.text, message.entities
    if message.caption:
        return message.caption, message.caption_entities
    if message.sticker is not None:
        return message.sticker.emoji, ()
    if message.contact is not None:
        one = message.contact
        return f"Contact: {' '.join(filter(None, (one.first_name, one.last_name, one.phone_number)))}", ()
    if message.location is None:
        return "", ()
    place = message.venue or _Venue()
    at = f"{message.location.latitude}, {message.location.longitude}"
    return f"Location: {', '.join(filter(None, (place.title, place.address, at)))}", ()


def _read_attachments(message: _Message) -> Iterator[Attachment]:
    if message.photo:
        largest = max(message.photo, key=lambda size: size.width * size.height)
        yield _attachment("image", largest, "photo.jpg", "image/jpeg")
    if message.voice is not None:
        yield _attachment("voice", message.voice, "voice.ogg", "audio/ogg")
    if message.audio is not None:
        yield _attachment("audio", message.audio, "audio.mp3", "audio/mpeg")
    video = message.video or message.video_note or message.animation
    if video is not None:
        yield _attachment("video", video, "video.mp4", "video/mp4")
    if message.document is not None and message.animation is None:  # an animation is also sent as a document
        kind = "image" if message.document.mime_type in _PICTURES else "document"
        yield _attachment(kind, message.document, "document", "")


def _attachment(kind: AttachmentKind, file: _File, name: str, mime: str) -> Attachment:
    return Attachment(kind, file.file_id, file.file_name or name, file.mime_type or mime, file.file_size)


def _read_reply(message: _Message, me: TelegramAccount) -> Quoted | None:
    quote = message.quote.text if message.quote is not None else ""
    answered = message.reply_to_message
    # in a topic, a message that is not a reply seems to reply to the topic's first message
    if (
        answered is None
        or answered.forum_topic_created is not None
        or (message.is_topic_message and answered.message_id == message.message_thread_id)
    ):
        return Quoted(quote) if quote else None
    text = quote or _read_text(answered)[0]
    if answered.from_ is not None and answered.from_.id == me.id:
        return Quoted(text, is_ours=True)
    channel = answered.sender_chat.title if answered.sender_chat is not None else ""
    return Quoted(text, author=channel or (_sender(answered.from_).name if answered.from_ is not None else ""))


def _strip_mentions(said: str, entities: tuple[_Entity, ...], me: TelegramAccount) -> tuple[str, bool]:
    """The text without the mentions of us, and whether there are any. Of a command, only the `@` part goes."""
    spans: list[tuple[int, int]] = []  # in units
    us = f"@{me.username}".lower()
    for entity in entities:
        start, end = entity.offset, entity.offset + entity.length
        named = cut_units(said, start, end).lower()
        if entity.type == "bot_command" and named.endswith(us):
            spans.append((end - len(us), end))
        elif (entity.type == "mention" and named == us) or (
            entity.type == "text_mention" and entity.user is not None and entity.user.id == me.id
        ):
            spans.append((start, end))
    text, at = "", 0
    for start, end in sorted(spans):
        text = _join(text, cut_units(said, at, start))
        at = max(at, end)
    return _join(text, cut_units(said, at, units(said))).strip() if spans else said.strip(), bool(spans)


def _join(text: str, more: str) -> str:
    if not text.strip():
        return more.lstrip(" ,:")
    return text.rstrip(" ") + more if more.startswith(" ") else text + more
