"""What a plugin says of a chat service that it can speak to: how its adapter is made, and all that is known before."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from talaria.plugin_calls import as_text

OWN_PLATFORMS = frozenset({"telegram", "discord", "slack", "matrix", "webhook"})
"""Nobody's to take, unless the person says so."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_ENTRY_TEXTS = ("install_hint", "allowed_users_env", "allow_all_env", "emoji", "platform_hint", "cron_deliver_env_var")
_ENTRY_FUNCTIONS = (
    *("validate_config", "is_connected", "setup_fn", "env_enablement_fn", "apply_yaml_config_fn"),
    "standalone_sender_fn",
)


@dataclass(frozen=True, slots=True)
class PlatformEntry:
    """The names are those that plugins for Hermes pass; a keyword that is none of them is a `TypeError`."""

    name: str
    label: str
    adapter_factory: Callable[[Any], Any]
    check_fn: Callable[[], object]
    """Whether what it needs is installed."""
    validate_config: Callable[[Any], object] | None = None
    is_connected: Callable[[Any], object] | None = None
    required_env: list[str] = field(default_factory=list[str])
    install_hint: str = ""
    setup_fn: Callable[[], object] | None = None
    source: str = "plugin"
    plugin_name: str = ""
    allowed_users_env: str = ""
    allow_all_env: str = ""
    max_message_length: int = 0
    pii_safe: bool = False
    emoji: str = ""
    allow_update_command: bool = True
    platform_hint: str = ""
    env_enablement_fn: Callable[[], Mapping[str, Any] | None] | None = None
    """Settings that the environment has; None: it does not set this platform up."""
    apply_yaml_config_fn: Callable[[dict[str, Any], dict[str, Any]], Mapping[str, Any] | None] | None = None
    """Settings as the adapter calls them, of all settings and its own section."""
    cron_deliver_env_var: str = ""
    """The variable with the home channel."""
    standalone_sender_fn: Callable[..., Awaitable[Any]] | None = None


def flaw(entry: PlatformEntry) -> str:
    """Why it cannot be used; empty if it can."""
    if not isinstance(entry.name, str) or not _NAME.fullmatch(entry.name):  # pyright: ignore[reportUnnecessaryIsInstance]
        return f"{as_text(entry.name)!r} cannot be the name of a platform"
    if not callable(entry.adapter_factory) or not callable(entry.check_fn):
        return f"platform {entry.name} has no adapter_factory, or no check_fn"
    for name in _ENTRY_FUNCTIONS:
        if getattr(entry, name) is not None and not callable(getattr(entry, name)):
            return f"{name} of platform {entry.name} is not callable"
    for name in ("label", *_ENTRY_TEXTS):
        if not isinstance(getattr(entry, name), str):
            return f"{name} of platform {entry.name} is not text"
    if not isinstance(entry.max_message_length, int) or entry.max_message_length < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        return f"max_message_length of platform {entry.name} is not a length"
    return ""
