"""What the gateway works with and may be changed while it runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from talaria.core.ids import TurnId
from talaria.gateway.chat_keys import MAIN, KeyRules
from talaria.gateway.counts import Counts
from talaria.gateway.gateway_settings import GatewaySettings
from talaria.platforms.base import Address
from talaria.runtime.command_host import CommandHost


@dataclass(slots=True)
class GatewayState:
    host: CommandHost
    settings: GatewaySettings
    homes: Mapping[str, Address] = field(default_factory=dict[str, Address])
    """Home channels that the settings name, by platform."""
    counts: Counts = field(default_factory=Counts)
    stopped: dict[TurnId, str] = field(default_factory=dict[TurnId, str])
    """Turns that a person is stopping, and what else to say at their end."""

    @property
    def key_rules(self) -> KeyRules:
        home = self.host.home
        profile = home.name if home.parent.name == "profiles" else MAIN
        return KeyRules(profile, self.settings.group_sessions_per_user, self.settings.thread_sessions_per_user)
