"""Talaria: a self-hosted AI agent with one durable core.

What programs, tools, context engines and platforms import; the how-tos in docs/how-to use all of it. Each name is
loaded on first use, so that `talaria --version` stays instant.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = [
    "EXCLUSIVE",
    "INDEPENDENT",
    "NOTHING",
    "READS",
    "AccessLost",
    "Address",
    "Agent",
    "Arrival",
    "Attachment",
    "BadConfig",
    "Batch",
    "Capabilities",
    "ChatInfo",
    "ChatMoved",
    "Claim",
    "ContextEngine",
    "Deleted",
    "Effect",
    "Kit",
    "NotTaken",
    "Outbound",
    "PlatformSettings",
    "Press",
    "Proposal",
    "Refused",
    "Rejected",
    "Run",
    "Sender",
    "SentId",
    "ToolFailed",
    "Unsure",
    "__version__",
    "in_thread",
    "path_effect",
    "replace_file",
    "tool",
]

if TYPE_CHECKING:
    from talaria.app.library import Agent, tool
    from talaria.context.engine import ContextEngine
    from talaria.core.aio import in_thread
    from talaria.core.errors import BadConfig, ToolFailed
    from talaria.core.fs import replace_file
    from talaria.platforms.base import (
        AccessLost,
        Address,
        Arrival,
        Attachment,
        Batch,
        Capabilities,
        ChatInfo,
        ChatMoved,
        Deleted,
        Kit,
        NotTaken,
        Outbound,
        PlatformSettings,
        Press,
        Refused,
        Rejected,
        Sender,
        SentId,
        Unsure,
    )
    from talaria.tools.base import EXCLUSIVE, INDEPENDENT, NOTHING, READS, Claim, Effect, Run
    from talaria.tools.function import path_effect
    from talaria.tools.person import Proposal

_HOMES = {
    "context.engine": ("ContextEngine",),
    "core.errors": ("BadConfig", "ToolFailed"),
    "core.fs": ("replace_file",),
    "app.library": ("Agent", "tool"),
    "platforms.base": (
        *("AccessLost", "Address", "Arrival", "Attachment", "Batch", "Capabilities", "ChatInfo", "ChatMoved"),
        *("Deleted", "Kit", "NotTaken", "Outbound", "PlatformSettings", "Press", "Refused", "Rejected"),
        *("Sender", "SentId", "Unsure"),
    ),
    "tools.base": ("EXCLUSIVE", "INDEPENDENT", "NOTHING", "READS", "Claim", "Effect", "Run"),
    "tools.function": ("path_effect",),
    "tools.person": ("Proposal",),
    "core.aio": ("in_thread",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'talaria' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415  (keeps `import talaria` as fast as it can be)

    return getattr(import_module(f"talaria.{_HOME_OF[name]}"), name)
