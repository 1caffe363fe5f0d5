"""What third-party adapters derive from, with the messages and results that they exchange with the gateway. It has
what they call and may override; the work is done in `adapted.py`."""

# ruff: noqa: ARG002, B027  (a plain one can do little; the names are for those who can do more)
import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from talaria.compat.hermes.aliases.hermes_gateway import (
    Platform,
    PlatformConfig,
    SessionSource,
    acquire_scoped_lock,
    release_scoped_lock,
)
from talaria.platforms.splitting import split


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


@dataclass
class MessageEvent:
    """Adapters are careless about these types: `incoming_events.py` reads whatever they contain."""

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
    timestamp: datetime = field(default_factory=lambda: datetime.now().astimezone())

    def is_command(self) -> bool:
        return self.text.startswith("/")

    def get_command(self) -> str | None:
        """`/New@bot now` → `new`; a path is not a command."""
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
    """The service certainly did not take it."""
    retry_after: float | None = None
    continuation_message_ids: tuple[str, ...] = ()
    error_kind: str | None = None
    """too_long, bad_format, forbidden, not_found, rate_limited, transient, unknown"""


NUMBER_CHARS = len(" (999/999)")
MIN_PART_CHARS = 4
"""Enough for one character, however it is counted."""

MessageHandler = Callable[[MessageEvent], Awaitable[Any]]
Metadata = dict[str, Any] | None


class BasePlatformAdapter(ABC):
    REQUIRES_EDIT_FINALIZE: bool = False

    def __init__(self, config: PlatformConfig, platform: Platform) -> None:
        self.config = config
        self.platform = platform
        self._message_handler: MessageHandler | None = None
        self._fatal_error_handler: Callable[[Any], Any] | None = None
        self._fatal_error: tuple[str, str, bool] | None = None
        self._platform_lock: tuple[str, str] | None = None
        self._running = False
        self._background_tasks: set[asyncio.Task[Any]] = set()
        self._session_store: Any = None

    @property
    def name(self) -> str:
        return self.platform.value.title()

    @abstractmethod
    async def connect(self, *, is_reconnect: bool = False) -> bool: ...
    @abstractmethod
    async def disconnect(self) -> None: ...
    @abstractmethod
    async def send(
        self, chat_id: str, content: str, reply_to: str | None = None, metadata: Metadata = None
    ) -> SendResult: ...
    @abstractmethod
    async def get_chat_info(self, chat_id: str) -> dict[str, Any]: ...

    # Its state.

    @property
    def is_connected(self) -> bool:
        return self._running

    @property
    def has_fatal_error(self) -> bool:
        return self._fatal_error is not None

    @property
    def fatal_error_code(self) -> str | None:
        return self._fatal_error[0] if self._fatal_error else None

    @property
    def fatal_error_message(self) -> str | None:
        return self._fatal_error[1] if self._fatal_error else None

    @property
    def fatal_error_retryable(self) -> bool:
        return self._fatal_error[2] if self._fatal_error else True

    def set_fatal_error_handler(self, handler: Callable[[Any], Any]) -> None:
        self._fatal_error_handler = handler

    def _mark_connected(self) -> None:
        self._running = True
        self._fatal_error = None

    def _mark_disconnected(self) -> None:
        self._running = False

    def _set_fatal_error(self, code: str, message: str, *, retryable: bool = True) -> None:
        self._running = False
        self._fatal_error = (code, message, retryable)

    async def _notify_fatal_error(self) -> None:
        handled = self._fatal_error_handler(self) if self._fatal_error_handler else None
        if inspect.isawaitable(handled):
            await handled

    def _acquire_platform_lock(self, scope: str, identity: str, resource_desc: str = "") -> bool:
        is_ours, other = acquire_scoped_lock(scope, identity, {"platform": self.platform.value})
        if is_ours:
            self._platform_lock = (scope, identity)
        else:
            who = f"process {other['pid']}" if other and "pid" in other else "another process"
            self._set_fatal_error(f"{scope}_lock", f"{resource_desc or scope} is in use by {who}", retryable=False)
        return is_ours

    def _release_platform_lock(self) -> None:
        if self._platform_lock is not None:
            release_scoped_lock(*self._platform_lock)
            self._platform_lock = None

    # What comes in.

    def set_message_handler(self, handler: MessageHandler) -> None:
        self._message_handler = handler

    def set_session_store(self, session_store: Any) -> None:
        self._session_store = session_store

    async def handle_message(self, event: MessageEvent) -> None:
        """Returns once it is on our disk. Raises `RuntimeError` if the platform is closed: the message is not taken."""
        if self._message_handler is None:
            raise RuntimeError(f"{self.name} is not connected yet.")
        await self._message_handler(event)

    def build_source(
        self,
        chat_id: Any,
        chat_name: str | None = None,
        chat_type: str = "dm",
        user_id: Any = None,
        user_name: str | None = None,
        thread_id: Any = None,
        chat_topic: str | None = None,
        user_id_alt: str | None = None,
        chat_id_alt: str | None = None,
        is_bot: bool = False,
        guild_id: Any = None,
        parent_chat_id: Any = None,
        message_id: Any = None,
        **more: Any,
    ) -> SessionSource:
        known = {name: value for name, value in more.items() if name in SessionSource.__dataclass_fields__}
        return SessionSource(
            self.platform,
            str(chat_id),
            chat_name,
            chat_type,
            _text(user_id),
            user_name,
            _text(thread_id),
            (chat_topic or "").strip() or None,
            user_id_alt,
            chat_id_alt,
            is_bot,
            guild_id=_text(guild_id),
            parent_chat_id=_text(parent_chat_id),
            message_id=_text(message_id),
            **known,
        )

    async def on_processing_start(self, event: MessageEvent) -> None:
        """The message is accepted."""

    async def on_processing_complete(self, event: MessageEvent, outcome: ProcessingOutcome) -> None:
        """It is answered."""

    # What can be sent besides text. Methods that are not overridden do nothing.

    async def edit_message(
        self, chat_id: str, message_id: str, content: str, *, finalize: bool = False, metadata: Metadata = None
    ) -> SendResult:
        return _cannot("edit messages")

    async def delete_message(self, chat_id: str, message_id: str) -> bool:
        return False

    async def send_typing(self, chat_id: str, metadata: Metadata = None) -> None: ...
    async def stop_typing(self, chat_id: str) -> None: ...

    async def create_handoff_thread(self, parent_chat_id: str, name: str) -> str | None:
        return None

    async def send_image(
        self,
        chat_id: str,
        image_url: str,
        caption: str | None = None,
        reply_to: str | None = None,
        metadata: Metadata = None,
    ) -> SendResult:
        """Its address, unless the adapter can do better."""
        return await self.send(chat_id, f"{caption}\n{image_url}" if caption else image_url, reply_to, metadata)

    async def send_animation(
        self,
        chat_id: str,
        animation_url: str,
        caption: str | None = None,
        reply_to: str | None = None,
        metadata: Metadata = None,
    ) -> SendResult:
        return await self.send_image(chat_id, animation_url, caption, reply_to, metadata)

    async def send_image_file(
        self, chat_id: str, image_path: str, caption: str | None = None, reply_to: str | None = None, **_: Any
    ) -> SendResult:
        return _cannot("send images")

    async def send_document(
        self,
        chat_id: str,
        file_path: str,
        caption: str | None = None,
        file_name: str | None = None,
        reply_to: str | None = None,
        **_: Any,
    ) -> SendResult:
        return _cannot("send files")

    async def send_video(
        self, chat_id: str, video_path: str, caption: str | None = None, reply_to: str | None = None, **_: Any
    ) -> SendResult:
        return _cannot("send videos")

    async def send_voice(
        self, chat_id: str, audio_path: str, caption: str | None = None, reply_to: str | None = None, **_: Any
    ) -> SendResult:
        return _cannot("send sound")

    def format_message(self, content: str) -> str:
        return content

    @staticmethod
    def truncate_message(content: str, max_length: int = 4096, len_fn: Callable[[str], int] | None = None) -> list[str]:
        """In parts, numbered if there are several; a code block that is cut is closed and opened again."""
        length = len_fn or len
        if length(content) <= max_length:
            return [content]
        parts = split(content, max(max_length - NUMBER_CHARS, MIN_PART_CHARS), length)
        return [f"{part} ({number}/{len(parts)})" for number, part in enumerate(parts, 1)]


def has_own(adapter: BasePlatformAdapter, method: str) -> bool:
    return getattr(type(adapter), method) is not getattr(BasePlatformAdapter, method)


def _cannot(what: str) -> SendResult:
    return SendResult(False, error=f"it cannot {what}", error_kind="unsupported")


def _text(value: Any) -> str | None:
    return str(value) if value else None
