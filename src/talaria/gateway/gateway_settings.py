"""The settings under `gateway`. What is under `platforms` is read by each platform itself."""

from typing import Annotated, Any, Literal

import msgspec

from talaria.store.chat_ports import BusyMode

ResetMode = Literal["none", "idle", "daily", "both"]

Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class ResetPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When a chat begins a new conversation by itself."""

    mode: ResetMode = "none"
    at_hour: Annotated[int, msgspec.Meta(ge=0, le=23)] = 4
    idle_minutes: Count = 1440


class GatewaySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    platforms: dict[str, dict[str, Any]] = {}
    busy_mode: BusyMode = "queue"
    """What a message does that comes while a turn runs."""
    workspace: str = "~/talaria"
    """Where the agent works for people in chats: each has a folder in it."""
    cwd: str | None = None
    """One folder for all of them instead."""
    pairing: bool = True
    """Whether strangers get a code by which they can be let in."""
    group_sessions_per_user: bool = True
    thread_sessions_per_user: bool = False
    session_reset: ResetPolicy = ResetPolicy()
    max_live_sessions: Count = 128
    live_session_idle_s: Seconds = 3600.0
    max_running: Count = 1024
    """Turns at the same time; those that wait for a person do not count."""
    drain_s: Seconds = 20.0
    """How long turns that run may take to end when the gateway is stopped."""
    metrics_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = None
    """For /metrics and /health on this machine; nothing listens unless it is set."""
    keep_days: Count = 30
    """How long attachments, long output, logs and sent replies are kept."""
