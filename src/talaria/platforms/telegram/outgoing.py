"""Our messages as Telegram takes them."""

from collections.abc import Sequence
from io import BufferedReader

from telegram import InlineKeyboardButton, InlineKeyboardMarkup, InputFile, ReplyParameters

from talaria.platforms.base import Address, Button, File, Outbound, Rejected
from talaria.platforms.telegram.incoming import GENERAL, units
from talaria.platforms.telegram.manner import Manner
from talaria.platforms.telegram.render import plain, render

MAX_PHOTO_BYTES = 10 * 2**20
_PHOTOS = ("image/jpeg", "image/png", "image/webp")
_STYLES = {"plain": None, "good": "success", "bad": "danger"}
_ROW_CHARS = 36


def worded(text: str, manner: Manner, max_units: int) -> tuple[str, str | None]:
    html = render(text, max_units) if manner.has_markup else None
    return (html, "HTML") if html is not None else (_clipped(plain(text), max_units), None)


def _clipped(text: str, max_units: int) -> str:
    if units(text) <= max_units:
        return text
    kept = text.encode("utf-16-le")[: 2 * (max_units - 1)]
    return kept.decode("utf-16-le", "ignore") + "…"


def number(id: str) -> int:
    """Of a chat, a topic or a message."""
    try:
        return int(id)
    except ValueError:
        raise Rejected(f"{id!r} is nothing on Telegram: all ids there are numbers.") from None


def thread(where: Address) -> int | None:
    return number(where.thread) if where.thread and where.thread != GENERAL else None


def reply(message: Outbound) -> ReplyParameters | None:
    return ReplyParameters(number(message.reply_to), allow_sending_without_reply=True) if message.reply_to else None


def keyboard(buttons: Sequence[Button]) -> InlineKeyboardMarkup | None:
    """Side by side while the labels fit."""
    if not buttons:
        return None
    keys = [InlineKeyboardButton(one.label, callback_data=one.data, style=_STYLES[one.style]) for one in buttons]
    is_short = sum(len(one.label) for one in buttons) <= _ROW_CHARS
    return InlineKeyboardMarkup([keys] if is_short else [[key] for key in keys])


def is_photo(file: File) -> bool:
    try:
        return file.mime in _PHOTOS and file.path.stat().st_size <= MAX_PHOTO_BYTES
    except OSError:
        return False


def upload(file: File) -> tuple[BufferedReader, InputFile]:
    """For a thread: it opens the file, and looks for what the system knows of its kind."""
    try:
        content = file.path.open("rb")
    except OSError as fault:
        raise Rejected(f"{file.name} cannot be sent: {fault.strerror}.") from None
    name = "".join(sign if sign.isprintable() else "_" for sign in file.name)
    return content, InputFile(content, name or "file", read_file_handle=False)
