"""A plugin's engine as one live session has it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from talaria.context.engine import ContextEngine
from talaria.plugin_calls import HostedPlugin


@dataclass(frozen=True, slots=True)
class HostedEngine(HostedPlugin[ContextEngine]):
    """An engine, and the slash commands of its plugin that reach this very engine."""

    commands: Mapping[str, Callable[[str], Any]] = field(default_factory=dict[str, Callable[[str], Any]])
    """By name."""
