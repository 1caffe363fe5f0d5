"""What Telegram's refusals and silences mean. Pure."""

from telegram.error import TelegramError

from talaria.platforms.base import (
    AccessLost,
    Address,
    ChatMoved,
    NotTaken,
    PlatformFailure,
    Refused,
    Rejected,
    Unsure,
)
from talaria.platforms.failures import harmless, quoted
from talaria.platforms.telegram.transport import Declined, Unreached

_GONE = (
    "chat not found",
    "user not found",
    "peer_id_invalid",
    "user is deactivated",
    "chat was deactivated",
    "bot is not a member",
    "bot was blocked",
    "bot was kicked",
    "no rights to send",
    "not enough rights to send",
    "chat_write_forbidden",
    "chat_restricted",
    "message thread not found",
    "topic_deleted",
    "topic_closed",
)
"""Words of a 400 that is about the chat and not about the message."""


def failure(error: TelegramError, where: Address | None = None) -> PlatformFailure:
    """`where`: the chat that the call was about."""
    if isinstance(error, Declined):
        return _declined(error, where)
    if isinstance(error, Unreached):
        return NotTaken(f"Telegram cannot be reached: {error.message}.")
    return Unsure(f"Telegram did not answer: {error.message}.")


def interrupted(error: TelegramError) -> NotTaken | Refused:
    """Of the line itself: it is opened anew, at once or after somebody has acted."""
    what = harmless(failure(error))
    return what if isinstance(what, NotTaken | Refused) else Refused(str(what))


def is_unchanged(error: TelegramError) -> bool:
    return isinstance(error, Declined) and "message is not modified" in error.words.lower()


def is_without_threads(error: TelegramError) -> bool:
    """The chat is no forum, or we may not open a topic there."""
    words = error.words.lower() if isinstance(error, Declined) and error.status == 400 else ""
    return any(sign in words for sign in ("not a forum", "forum_missing", "create_forbidden", "not enough rights"))


def _declined(error: Declined, where: Address | None) -> PlatformFailure:
    said = quoted(str(error.status), error.words)
    words = error.words.lower()
    match error.status:
        case 429:
            return NotTaken(f"Telegram asks to slow down ({said}).", retry_after_s=error.retry_after_s)
        case 401 | 404:
            return Refused(
                f"Telegram does not know the bot's token ({said}). @BotFather shows the right one; "
                "set it as TELEGRAM_BOT_TOKEN in .env."
            )
        case 409 if "webhook" in words:
            return Refused(
                f"The messages of this Telegram bot go to a webhook ({said}). Stop the program that set it, or give "
                "this one a bot of its own."
            )
        case 409:
            return Refused(
                f"Another program reads the messages of this Telegram bot ({said}). Stop it, or give this one a bot "
                "of its own: two with the same token take them from each other."
            )
        case status if status < 400:
            return Refused(f"Telegram is not found there ({said}). Check gateway.platforms.telegram.base_url.")
        case status if status >= 500:
            return Unsure(f"Telegram is in trouble ({said}).")
        case _:
            return _about(where, error, said, words)


def _about(where: Address | None, error: Declined, said: str, words: str) -> PlatformFailure:
    """A 4xx that is about this call."""
    if where is not None and error.moved_to is not None:
        to = Address(where.platform, str(error.moved_to), where.thread)
        return ChatMoved(f"The group {where} has become {to}.", to)
    if where is not None and (error.status == 403 or any(sign in words for sign in _GONE)):
        return AccessLost(f"Nothing can be sent to {where} any more ({said}).")
    return Rejected(f"Telegram does not take this ({said}).")
