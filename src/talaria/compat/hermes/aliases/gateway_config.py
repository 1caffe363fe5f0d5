"""`gateway.config`: what platforms are called, and what their adapters are given."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

from talaria.compat.hermes.aliases.gateway_platform_registry import platform_registry


class Platform(Enum):
    """Those that Hermes names itself; a plugin's is one as soon as it is registered, and always the same object."""

    LOCAL = "local"
    TELEGRAM = "telegram"
    DISCORD = "discord"
    WHATSAPP = "whatsapp"
    WHATSAPP_CLOUD = "whatsapp_cloud"
    SLACK = "slack"
    SIGNAL = "signal"
    MATTERMOST = "mattermost"
    MATRIX = "matrix"
    HOMEASSISTANT = "homeassistant"
    EMAIL = "email"
    SMS = "sms"
    DINGTALK = "dingtalk"
    API_SERVER = "api_server"
    WEBHOOK = "webhook"
    MSGRAPH_WEBHOOK = "msgraph_webhook"
    FEISHU = "feishu"
    WECOM = "wecom"
    WECOM_CALLBACK = "wecom_callback"
    WEIXIN = "weixin"
    BLUEBUBBLES = "bluebubbles"
    QQBOT = "qqbot"
    YUANBAO = "yuanbao"
    RELAY = "relay"

    @classmethod
    def _missing_(cls, value: object) -> "Platform | None":
        name = value.strip().lower() if isinstance(value, str) else ""
        known = next((one for one in cls if one.value == name), None) or _of_plugins.get(name)
        if known is None and platform_registry.is_registered(name):
            known = _of_plugins.setdefault(name, _make_platform(name))
        return known


_of_plugins: dict[str, Platform] = {}


def _make_platform(name: str) -> Platform:
    made = object.__new__(Platform)
    made._name_ = name.upper().replace("-", "_")
    made._value_ = name
    return made


@dataclass
class HomeChannel:
    platform: Platform
    chat_id: str
    name: str = "Home"
    thread_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        told = {"platform": self.platform.value, "chat_id": self.chat_id, "name": self.name}
        return {**told, "thread_id": self.thread_id} if self.thread_id else told

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "HomeChannel":
        thread = data.get("thread_id")
        return cls(
            Platform(data["platform"]), str(data["chat_id"]), data.get("name", "Home"), str(thread) if thread else None
        )


@dataclass
class PlatformConfig:
    enabled: bool = False
    token: str | None = None
    api_key: str | None = None
    home_channel: HomeChannel | None = None
    reply_to_mode: str = "first"
    gateway_restart_notification: bool = True
    typing_indicator: bool = True
    typing_status_text: str | None = None
    channel_overrides: dict[str, Any] = field(default_factory=dict[str, Any])
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    """Whatever else stands in its section of config.yaml."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "PlatformConfig":
        home = data.get("home_channel")
        known = {name: data[name] for name in ("enabled", "token", "api_key", "reply_to_mode") if name in data}
        channel = HomeChannel.from_dict(cast("dict[str, Any]", home)) if isinstance(home, dict) else None
        return cls(**known, home_channel=channel, extra=dict(data.get("extra") or {}))
