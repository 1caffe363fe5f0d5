"""`gateway.config`, `gateway.platform_registry`, `gateway.session`, `gateway.session_context`, `gateway.status`,
`gateway.whatsapp_identity`, `gateway.run`: platforms, their settings, and where a message came from."""

import fcntl
import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any, cast

from talaria.compat.hermes.aliases.hermes_cli_config import get_hermes_dir
from talaria.compat.hermes.bound import last_bound
from talaria.core.fs import read_text
from talaria.core.plugin_calls import PluginError, contain
from talaria.plugins.loading import loading
from talaria.plugins.registered import PlatformEntry
from talaria.runtime.session_config import current_session

_MAX_BYTES = 4_096
_ALWAYS = ("chat_id", "chat_name", "chat_type", "user_id", "user_name", "thread_id", "chat_topic")
_SAFE = re.compile(r"[A-Za-z0-9@.+-]+")
_PHONE = re.compile(r"\+?[\d\s().-]+")
_MAX_PHONE_DIGITS = 15

log = logging.getLogger(__name__)


def _gateway_runner_ref() -> None:  # pyright: ignore[reportUnusedFunction]
    """None: no gateway of that kind runs in this process, as callers must expect."""


# Platforms, and what their adapters are given.


class PlatformRegistry:
    """The platforms of all loaded plugins, and of the one that is being loaded. Ours are not listed."""

    def register(self, entry: PlatformEntry) -> None:
        """For the plugin that is being loaded. Raises `RuntimeError` if none is."""
        ctx = loading.get()
        if ctx is None:
            raise RuntimeError(f"Platform {entry.name} comes too late: register platforms while the plugin is loaded.")
        ctx.register_platform(**{one.name: getattr(entry, one.name) for one in fields(entry)})

    def unregister(self, name: str) -> bool:
        """Only for the plugin that is being loaded, and what it has registered itself."""
        ctx = loading.get()
        mine = [] if ctx is None else ctx.registered.platforms
        kept = [entry for entry in mine if entry.name != name]
        was_registered = len(kept) < len(mine)
        mine[:] = kept
        return was_registered

    def get(self, name: str) -> PlatformEntry | None:
        return next((entry for entry in self.all_entries() if entry.name == name), None)

    def all_entries(self) -> list[PlatformEntry]:
        here, ctx = last_bound(), loading.get()
        loaded = [entry for plugin in (here.host.loaded if here else ()) for entry in plugin.registered.platforms]
        return [*loaded, *(() if ctx is None else ctx.registered.platforms)]

    def plugin_entries(self) -> list[PlatformEntry]:
        return [entry for entry in self.all_entries() if entry.source == "plugin"]

    def is_registered(self, name: str) -> bool:
        return self.get(name) is not None

    def create_adapter(self, name: str, config: Any) -> Any:
        """None if there is no such platform, or if it cannot be used here."""
        entry = self.get(name)
        if entry is None:
            return None

        def make() -> Any:
            is_valid = entry.validate_config is None or entry.validate_config(config)
            return entry.adapter_factory(config) if entry.check_fn() and is_valid else None

        try:
            return contain(make)
        except PluginError as fault:
            log.warning("the adapter of platform %s is not made: it %s", name, fault)
            return None


platform_registry = PlatformRegistry()


class Platform(Enum):
    """Those that Hermes itself names. A plugin's is added when it is registered, and is always the same object."""

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
            known = object.__new__(cls)
            known._name_ = name.upper().replace("-", "_")
            known._value_ = name
            known = _of_plugins.setdefault(name, known)
        return known


_of_plugins: dict[str, Platform] = {}


@dataclass
class HomeChannel:
    platform: Platform
    chat_id: str
    name: str = "Home"
    thread_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        fields = {"platform": self.platform.value, "chat_id": self.chat_id, "name": self.name}
        return {**fields, "thread_id": self.thread_id} if self.thread_id else fields

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
    """Everything else in its section of config.yaml."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "PlatformConfig":
        home = data.get("home_channel")
        known = {name: data[name] for name in ("enabled", "token", "api_key", "reply_to_mode") if name in data}
        channel = HomeChannel.from_dict(cast("dict[str, Any]", home)) if isinstance(home, dict) else None
        return cls(**known, home_channel=channel, extra=dict(data.get("extra") or {}))


# A person who has several names on WhatsApp.


def normalize_whatsapp_identifier(value: object) -> str:
    """`+60123:47@s.whatsapp.net` → `60123`."""
    return str(value or "").strip().replace("+", "", 1).partition(":")[0].partition("@")[0]


def to_whatsapp_jid(value: object) -> str:
    """`+60 123` → `60123@s.whatsapp.net`; a longer number is a group's."""
    text = str(value or "").strip()
    if "@" in text:
        person, _, domain = text.partition("@")
        return f"{person.partition(':')[0]}@{domain}"
    digits = re.sub(r"\D", "", text) if _PHONE.fullmatch(text) else ""
    if not digits:
        return text
    return f"{digits}@{'g.us' if len(digits) > _MAX_PHONE_DIGITS else 's.whatsapp.net'}"


def expand_whatsapp_aliases(identifier: object) -> set[str]:
    """All names of the same person, by the bridge's files; with the normalised one."""
    folder = get_hermes_dir("platforms/whatsapp/session", "whatsapp/session")
    known: set[str] = set()
    found = [normalize_whatsapp_identifier(identifier)]
    while found:
        name = found.pop()
        if name in known or not _SAFE.fullmatch(name):
            continue
        known.add(name)
        for end in ("", "_reverse"):
            mapped = read_text(folder / f"lid-mapping-{name}{end}.json", _MAX_BYTES)
            with suppress(ValueError):
                found.append(normalize_whatsapp_identifier(json.loads(mapped or '""')))
    return known


def canonical_whatsapp_identifier(identifier: object) -> str:
    """The shortest of those names."""
    return min(expand_whatsapp_aliases(identifier), key=lambda name: (len(name), name), default="")


# The conversation that a message belongs to.


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
        """The usual fields, and any others that are known."""
        fields = {name: value for name, value in asdict(self).items() if name in _ALWAYS or value}
        return {**fields, "platform": self.platform.value}

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
    """`agent:main:telegram:dm:42`: namespace, platform, kind of chat, chat, thread; person if each has their own."""
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


def get_session_env(name: str, default: str = "") -> str:
    """From the conversation that is being served, if it has that name; else from the process."""
    current = current_session.get()
    facts: dict[str, str] = {}
    if current is not None:
        facts = {
            "HERMES_SESSION_ID": current.session,
            "HERMES_SESSION_KEY": current.conversation,
            "HERMES_SESSION_PLATFORM": current.platform,
            "HERMES_SESSION_SOURCE": current.platform,
            "HERMES_SESSION_USER_ID": current.person,
        }
    return facts[name] or default if name in facts else os.environ.get(name, default)


# An account of a service is used by one process of this person at a time, whatever their homes.

_held: dict[Path, int] = {}


def acquire_scoped_lock(
    scope: str, identity: str, metadata: Mapping[str, Any] | None = None
) -> tuple[bool, dict[str, Any] | None]:
    """Whether it is ours now; if not, what is known about the process that holds it. It is freed when that ends."""
    file = _lock_file(scope, identity)
    if file in _held:
        return True, None
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        known: object = None
        with suppress(OSError, ValueError):
            known = json.loads(os.pread(descriptor, _MAX_BYTES, 0))
        os.close(descriptor)
        return False, cast("dict[str, Any]", known) if isinstance(known, dict) else None
    about = {"pid": os.getpid(), "scope": scope, "metadata": dict(metadata or {})}
    os.truncate(descriptor, 0)
    os.write(descriptor, json.dumps(about, default=str).encode())
    _held[file] = descriptor
    return True, None


def release_scoped_lock(scope: str, identity: str) -> None:
    descriptor = _held.pop(_lock_file(scope, identity), None)
    if descriptor is not None:
        os.close(descriptor)


def write_runtime_status(**_: object) -> None:
    """Does nothing: `talaria gateway status` shows it."""


def _lock_file(scope: str, identity: str) -> Path:
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    digest = hashlib.sha256(f"{scope}\0{identity}".encode()).hexdigest()
    return state / "talaria" / "locks" / f"{digest[:32]}.lock"
