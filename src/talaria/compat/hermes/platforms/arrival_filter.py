"""The hook before a message of a chat is let in: what plugins are shown of it, and what their answers make of it."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from talaria.compat.hermes.aliases.gateway_config import Platform
from talaria.compat.hermes.aliases.gateway_session import SessionSource
from talaria.compat.hermes.platforms.adapter import MessageEvent, MessageType
from talaria.platforms.base import Arrival

HOOK = "pre_gateway_dispatch"
_TYPES = {
    "image": MessageType.PHOTO,
    "voice": MessageType.VOICE,
    "audio": MessageType.AUDIO,
    "video": MessageType.VIDEO,
    "document": MessageType.DOCUMENT,
}


def to_event(arrival: Arrival) -> MessageEvent:
    """Attachments are not fetched yet, so it has no files. Raises `ValueError` for a platform that nobody knows."""
    where, sender = arrival.where, arrival.sender
    first = next(iter(arrival.attachments), None)
    plain = MessageType.COMMAND if arrival.text.startswith("/") else MessageType.TEXT
    return MessageEvent(
        arrival.text,
        _TYPES[first.kind] if first else plain,
        SessionSource(
            Platform(where.platform),
            where.chat,
            chat_type=arrival.kind,
            user_id=sender.id,
            user_name=sender.name or None,
            thread_id=where.thread or None,
            message_id=arrival.message_id,
        ),
        message_id=arrival.message_id,
        reply_to_text=arrival.reply_to.text if arrival.reply_to else None,
        reply_to_is_own_message=bool(arrival.reply_to and arrival.reply_to.is_ours),
        timestamp=datetime.fromtimestamp(arrival.sent_at, UTC).astimezone(),
    )


def apply_answers(arrival: Arrival, answers: Sequence[Any]) -> Arrival | None:
    """By the first answer that says what to do: `skip` drops the message (None), `rewrite` with a text replaces its
    text, `allow` leaves it as it is."""
    for answer in answers:
        if not isinstance(answer, dict):
            continue
        fields = cast("dict[str, Any]", answer)
        match fields.get("action"), fields.get("text"):
            case "skip", _:
                return None
            case "rewrite", str() as text:
                return msgspec.structs.replace(arrival, text=text)
            case "allow", _:
                return arrival
            case _:
                pass
    return arrival
