"""Model providers that plugins describe. What they say counts; what they would compute per request is not asked."""

from collections.abc import Iterator, Mapping
from typing import Any

from talaria.providers.base import WireName

WIRES: Mapping[str, WireName] = {
    "chat_completions": "openai_chat",
    "codex_responses": "openai_responses",
    "responses": "openai_responses",
    "anthropic_messages": "anthropic_messages",
}
"""Of Hermes' names for them."""
OMIT_TEMPERATURE: Any = object()
COMPUTED = ("prepare_messages", "build_extra_body", "build_api_kwargs_extras", "get_max_tokens", "fetch_models")


class ProviderProfile:
    """As plugins make it: by keywords, or as a class with these names."""

    name: str = ""
    api_mode: str = "chat_completions"
    aliases: tuple[str, ...] = ()
    display_name: str = ""
    description: str = ""
    signup_url: str = ""
    env_vars: tuple[str, ...] = ()
    base_url: str = ""
    models_url: str = ""
    auth_type: str = "api_key"
    supports_health_check: bool = True
    supports_vision: bool = False
    supports_vision_tool_messages: bool = True
    fallback_models: tuple[str, ...] = ()
    hostname: str = ""
    default_headers: dict[str, str] = {}  # noqa: RUF012  (replaced, never changed)
    fixed_temperature: Any = None
    default_max_tokens: int | None = None
    default_aux_model: str = ""

    def __init__(self, **fields: Any) -> None:
        for name, value in fields.items():
            setattr(self, name, value)


def overridden(profile: ProviderProfile) -> Iterator[str]:
    """What it would compute, and is not asked for here."""
    return (name for name in COMPUTED if getattr(type(profile), name, None) is not getattr(ProviderProfile, name, None))
