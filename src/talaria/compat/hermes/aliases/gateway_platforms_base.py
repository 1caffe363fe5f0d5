"""`gateway.platforms.base`: what adapters are made of."""

from collections.abc import Mapping
from typing import Any, cast

from talaria.compat.hermes.aliases.gateway_config import Platform, PlatformConfig
from talaria.compat.hermes.aliases.gateway_session import SessionSource, build_session_key
from talaria.compat.hermes.platforms.adapter import BasePlatformAdapter, MessageHandler
from talaria.compat.hermes.platforms.media import (
    cache_audio_from_bytes,
    cache_audio_from_url,
    cache_document_from_bytes,
    cache_image_from_bytes,
    cache_image_from_url,
    cache_video_from_bytes,
    get_audio_cache_dir,
    get_document_cache_dir,
    get_image_cache_dir,
    get_video_cache_dir,
)
from talaria.compat.hermes.platforms.messages import MessageEvent, MessageType, ProcessingOutcome, SendResult
from talaria.compat.hermes.platforms.outcomes import kind_of

__all__ = [
    "BasePlatformAdapter",
    "MessageEvent",
    "MessageHandler",
    "MessageType",
    "Platform",
    "PlatformConfig",
    "ProcessingOutcome",
    "SendResult",
    "SessionSource",
    "build_session_key",
    "cache_audio_from_bytes",
    "cache_audio_from_url",
    "cache_document_from_bytes",
    "cache_image_from_bytes",
    "cache_image_from_url",
    "cache_video_from_bytes",
    "classify_send_error",
    "get_audio_cache_dir",
    "get_document_cache_dir",
    "get_image_cache_dir",
    "get_video_cache_dir",
    "resolve_channel_prompt",
    "utf16_len",
]


def utf16_len(s: str) -> int:
    return len(s.encode("utf-16-le", "surrogatepass")) // 2


def classify_send_error(exc: BaseException | None, error_text: str = "") -> str:
    words = (error_text, "" if exc is None else f"{exc} {type(exc).__name__}")
    return kind_of(" ".join(words))


def resolve_channel_prompt(
    config_extra: Mapping[str, Any], channel_id: str, parent_id: str | None = None
) -> str | None:
    """What the settings say for that channel, or else for the one that it is in."""
    prompts = config_extra.get("channel_prompts")
    known: Mapping[str, Any] = cast("Mapping[str, Any]", prompts) if isinstance(prompts, Mapping) else {}
    found = (str(known.get(one) or "").strip() for one in (channel_id, parent_id) if one)
    return next((prompt for prompt in found if prompt), None)
