"""`gateway.platforms.base`: what adapters are made of."""

from collections.abc import Mapping
from typing import Any, cast

from talaria.compat.hermes.aliases.gateway_config import *  # noqa: F403
from talaria.compat.hermes.aliases.gateway_session import *  # noqa: F403
from talaria.compat.hermes.platforms.adapter import *  # noqa: F403  # noqa: F403
from talaria.compat.hermes.platforms.incoming_events import *  # noqa: F403
from talaria.compat.hermes.platforms.send_outcomes import kind_of
from talaria.platforms.splitting import units


def utf16_len(s: str) -> int:
    return units(s)


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
