"""One plugin in an application: what was found of it, what became of it, and what it brought."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Literal

from talaria.plugin_calls import Background
from talaria.plugins.consent import PluginConsent
from talaria.plugins.discovery import FoundPlugin
from talaria.plugins.loading import Register
from talaria.plugins.registered import Registered, engine_name, memory_name

Status = Literal["loaded", "available", "disabled", "not chosen", "changed", "failed"]


@dataclass(slots=True)
class Plugin:
    found: FoundPlugin
    status: Status
    problems: list[str] = field(default_factory=list[str])
    registered: Registered = field(default_factory=Registered)
    register: Register | None = None
    background: Background = field(default_factory=Background)
    """Where its async code runs."""

    @property
    def key(self) -> str:
        return self.found.key

    @property
    def name(self) -> str:
        return self.found.manifest.name

    @property
    def names(self) -> AbstractSet[str]:
        return self.found.names

    def remembered(self, content: str) -> PluginConsent:
        """What is to be known of it while it is not loaded."""
        brought = self.registered
        commands = {one.name: one.help for one in brought.cli}
        return PluginConsent(content, commands, engine_name(brought.engine), memory_name(brought.memory))
