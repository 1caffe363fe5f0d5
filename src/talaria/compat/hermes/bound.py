"""The application behind the aliases. Plugins import names, and names are global: so there is one at a time."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from talaria.compat.hermes.plugin_home import PluginHome
from talaria.plugins.bridge import Bridge
from talaria.plugins.plugin_host import PluginHost
from talaria.plugins.registered import ProviderProfile
from talaria.plugins.services import Ask
from talaria.runtime.commands import Commands


@dataclass(frozen=True, slots=True)
class Bound:
    home: Path
    """Ours."""
    environment: Mapping[str, str]
    """`.env` and the environment of the process."""
    host: PluginHost
    bridge: Bridge
    ask: Ask
    commands: Commands
    providers: dict[str, ProviderProfile]
    """Described by plugins, by name."""

    @property
    def plugin_home(self) -> PluginHome:
        return PluginHome(self.home)


_applications: list[Bound] = []


def bind(application: Bound) -> None:
    _applications.append(application)


def release(application: Bound) -> None:
    if application in _applications:
        _applications.remove(application)


def last_bound() -> Bound | None:
    return _applications[-1] if _applications else None


def require_bound() -> Bound:
    """The same. Raises `RuntimeError` if there is none."""
    application = last_bound()
    if application is None:
        raise RuntimeError("Talaria is not running: this part of a plugin works only in a conversation.")
    return application
