"""Our messages as Telegram takes them."""

from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Literal

import msgspec

from talaria.platforms.base import Address, Button, File, Outbound, Rejected
from talaria.platforms.splitting import cut_units, units
from talaria.platforms.telegram.bot_api import Declined, Upload
from talaria.platforms.telegram.incoming import GENERAL
from talaria.platforms.telegram.render import plain, render

MAX_PHOTO_BYTES = 10 * 2**20
MAX_PHOTO_PIXELS = 10_000
"""Width and height together."""
MAX_PHOTO_RATIO = 20

Way = Literal["photo", "animation", "voice", "audio", "video", "document"]
"""How a file is sent: `sendPhoto` and so on."""

_WAYS: Mapping[str, Way] = {
    "image/jpeg": "photo",
    "image/png": "photo",
    "image/webp": "photo",
    "image/gif": "animation",
    "audio/ogg; codecs=opus": "voice",
    "audio/mpeg": "audio",
    "audio/mp4": "audio",
    "video/mp4": "video",
}
_NOT_SO = ("photo_", "image_process", "too big for a photo", "animation_", "voice_", "audio_", "video_", "wrong type")
"""Words of a refusal that is about the way: as a document the file may still be taken."""
_STYLES: Mapping[str, Mapping[str, str]] = {"plain": {}, "good": {"style": "success"}, "bad": {"style": "danger"}}
_ROW_CHARS = 36


class Manner(msgspec.Struct, frozen=True):
    """How a message is put: with all that the service offers, or with less of it, after it has refused some.

    A refusal means that nothing was sent, so the lesser manner may be tried at once.
    """

    has_markup: bool = True
    is_reply: bool = True
    is_in_thread: bool = True
    way: Way = "document"

    def after(self, refusal: Declined, *, is_private: bool) -> "Manner | None":
        """What to try next; None: the refusal was about something else."""
        if self.has_markup and refusal.mentions("can't parse", "entity_", "entities_"):
            return msgspec.structs.replace(self, has_markup=False)
        if self.is_reply and refusal.mentions("repl") and refusal.mentions("not found"):
            return msgspec.structs.replace(self, is_reply=False)
        if self.way != "document" and refusal.mentions(*_NOT_SO):
            return msgspec.structs.replace(self, way="document")
        if self.is_in_thread and is_private and refusal.mentions("thread not found"):
            return msgspec.structs.replace(self, is_in_thread=False)  # the person still reads it there
        return None


def format_text(text: str, manner: Manner, max_units: int) -> tuple[str, str | None]:
    """The text, and the mode in which Telegram is to read it."""
    html = render(text, max_units) if manner.has_markup else None
    if html is not None:
        return html, "HTML"
    unmarked = plain(text)
    return unmarked if units(unmarked) <= max_units else cut_units(unmarked, 0, max_units - 1) + "…", None


def number(id: str) -> int:
    """Of a chat, a topic or a message."""
    try:
        return int(id)
    except ValueError:
        raise Rejected(f"{id!r} is nothing on Telegram: all ids there are numbers.") from None


def thread(where: Address) -> int | None:
    return number(where.thread) if where.thread and where.thread != GENERAL else None


def reply(message: Outbound) -> dict[str, Any] | None:
    if not message.reply_to:
        return None
    return {"message_id": number(message.reply_to), "allow_sending_without_reply": True}


def keyboard(buttons: Sequence[Button]) -> dict[str, Any] | None:
    """Side by side while the labels fit."""
    if not buttons:
        return None
    keys = [{"text": one.label, "callback_data": one.data, **_STYLES[one.style]} for one in buttons]
    is_short = sum(len(one.label) for one in buttons) <= _ROW_CHARS
    return {"inline_keyboard": [keys] if is_short else [[key] for key in keys]}


def way(file: File) -> Way:
    """The best that Telegram has for it, within its limits. For a thread: it asks the disk."""
    found = _WAYS.get(file.mime, "document")
    if found != "photo":
        return found
    width, height = file.pixels or (1, 1)
    is_too_large = width + height > MAX_PHOTO_PIXELS or max(width, height) > MAX_PHOTO_RATIO * min(width, height)
    try:
        return "document" if is_too_large or file.path.stat().st_size > MAX_PHOTO_BYTES else "photo"
    except OSError:
        return "document"


def upload(file: File, content: BinaryIO, way: Way) -> Upload:
    name = "".join(sign if sign.isprintable() else "_" for sign in file.name)
    return Upload(way, content, name or "file", file.mime.partition(";")[0])
