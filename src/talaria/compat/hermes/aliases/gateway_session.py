"""`gateway.session`: where a message came from, and the key of the conversation that it belongs to."""

from dataclasses import asdict, dataclass
from typing import Any

from talaria.compat.hermes.aliases.gateway_config import Platform
from talaria.compat.hermes.aliases.gateway_whatsapp_identity import canonical_whatsapp_identifier

_ALWAYS = ("chat_id", "chat_name", "chat_type", "user_id", "user_name", "thread_id", "chat_topic")


@dataclass
class SessionSource:
    platform: Platform
    chat_id: str
    chat_name: str | None = None
    chat_type: str = "dm"
    """dm, group, channel, thread"""
    user_id: str | None = None
    user_name: str | None = None
    thread_id: str | None = None
    chat_topic: str | None = None
    user_id_alt: str | None = None
    chat_id_alt: str | None = None
    is_bot: bool = False
    scope_id: str | None = None
    guild_id: str | None = None
    """The older name of `scope_id`."""
    parent_chat_id: str | None = None
    message_id: str | None = None
    role_authorized: bool = False
    profile: str | None = None

    def __post_init__(self) -> None:
        self.scope_id = self.guild_id = self.scope_id or self.guild_id

    @property
    def description(self) -> str:
        chat = self.chat_name or self.chat_id
        named = {"dm": f"DM with {self.user_name or self.user_id or 'user'}"}
        words = named.get(self.chat_type, f"{self.chat_type}: {chat}")
        return f"{words}, thread: {self.thread_id}" if self.thread_id else words

    def to_dict(self) -> dict[str, Any]:
        """What it always has, and whatever else is known."""
        told = {name: value for name, value in asdict(self).items() if name in _ALWAYS or value}
        return {**told, "platform": self.platform.value}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "SessionSource":
        more = cls.__dataclass_fields__.keys() - {"platform", "chat_id"}
        known = {name: value for name, value in data.items() if name in more}
        return cls(Platform(data["platform"]), str(data["chat_id"]), **known)


def build_session_key(
    source: SessionSource,
    group_sessions_per_user: bool = True,
    thread_sessions_per_user: bool = False,
    profile: str | None = None,
) -> str:
    """`agent:main:telegram:dm:42`: namespace, platform, kind of chat, chat, thread, and who if that parts people."""
    is_dm = source.chat_type == "dm"
    is_whatsapp = source.platform is Platform.WHATSAPP
    person = source.user_id_alt or source.user_id
    if person and is_whatsapp:
        person = canonical_whatsapp_identifier(person) or person
    chat = canonical_whatsapp_identifier(source.chat_id) if is_dm and is_whatsapp else source.chat_id
    if is_dm:
        rest = [chat or person, source.thread_id]
    else:
        is_own = thread_sessions_per_user and group_sessions_per_user if source.thread_id else group_sessions_per_user
        rest = [chat, source.thread_id, person if is_own else None]
    namespace = "main" if profile in (None, "", "default") else profile
    parts = ["agent", namespace, source.platform.value, source.chat_type, *(part for part in rest if part)]
    return ":".join(str(part) for part in parts)
