"""What adapters and Hermes' gateway tell each other: a message that came, and what became of one that was sent."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from talaria.compat.hermes.aliases.gateway_session import SessionSource


class MessageType(Enum):
    TEXT = "text"
    LOCATION = "location"
    PHOTO = "photo"
    VIDEO = "video"
    AUDIO = "audio"
    VOICE = "voice"
    DOCUMENT = "document"
    STICKER = "sticker"
    COMMAND = "command"


class ProcessingOutcome(Enum):
    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"


def _now() -> datetime:
    return datetime.now().astimezone()


@dataclass
class MessageEvent:
    """Adapters are not careful about these types: `incoming.py` reads them as they come."""

    text: str
    message_type: MessageType = MessageType.TEXT
    source: SessionSource | None = None
    raw_message: Any = None
    message_id: str | None = None
    platform_update_id: int | None = None
    media_urls: list[str] = field(default_factory=list[str])
    """Files on this machine."""
    media_types: list[str] = field(default_factory=list[str])
    reply_to_message_id: str | None = None
    reply_to_text: str | None = None
    reply_to_author_id: str | None = None
    reply_to_author_name: str | None = None
    reply_to_is_own_message: bool = False
    auto_skill: str | list[str] | None = None
    channel_prompt: str | None = None
    channel_context: str | None = None
    internal: bool = False
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    timestamp: datetime = field(default_factory=_now)

    def is_command(self) -> bool:
        return self.text.startswith("/")

    def get_command(self) -> str | None:
        """`/New@bot now` → `new`; a path is none."""
        word = self.text.split(maxsplit=1)[0][1:].lower().partition("@")[0] if self.is_command() else ""
        return word if word and "/" not in word else None

    def get_command_args(self) -> str:
        return self.text.partition(" ")[2].strip() if self.is_command() else self.text


@dataclass
class SendResult:
    success: bool
    message_id: str | None = None
    error: str | None = None
    raw_response: Any = None
    retryable: bool = False
    """The service surely did not take it."""
    retry_after: float | None = None
    continuation_message_ids: tuple[str, ...] = ()
    error_kind: str | None = None
    """too_long, bad_format, forbidden, not_found, rate_limited, transient, unknown"""
