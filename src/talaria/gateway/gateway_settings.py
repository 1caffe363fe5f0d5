"""The settings under `gateway`. Each platform reads its own part of `platforms`."""

from typing import Annotated, Any, Literal

import msgspec

from talaria.store.chat_ports import BusyMode

ResetMode = Literal["none", "idle", "daily", "both"]

Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class ResetPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When a chat starts a new conversation by itself."""

    mode: ResetMode = "none"
    at_hour: Annotated[int, msgspec.Meta(ge=0, le=23)] = 4
    idle_minutes: Count = 1440


class GatewaySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    platforms: dict[str, dict[str, Any]] = {}
    busy_mode: BusyMode = "queue"
    """What happens with a message that comes while a turn runs."""
    workspace: str = "~/talaria"
    """Where the agent works for people in chats: each has a folder in it."""
    cwd: str | None = None
    """One folder for all of them instead."""
    pairing: bool = True
    """Whether strangers get a code with which they can be let in."""
    group_sessions_per_user: bool = True
    thread_sessions_per_user: bool = False
    session_reset: ResetPolicy = ResetPolicy()
    max_live_sessions: Count = 128
    live_session_idle_s: Seconds = 3600.0
    max_running: Count = 1024
    """How many turns may run at the same time, not counting those that wait for a person."""
    drain_s: Seconds = 20.0
    """How long running turns may take to end when the gateway is stopped."""
    metrics_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = None
    """Serves /metrics and /health on this machine. Unless it is set, nothing listens."""
    keep_days: Count = 30
    """For how many days attachments, long output, logs and sent replies are kept."""
