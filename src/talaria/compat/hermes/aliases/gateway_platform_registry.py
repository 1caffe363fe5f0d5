"""`gateway.platform_registry`: the platforms that plugins bring."""

import logging
from dataclasses import fields
from typing import Any

from talaria.compat.hermes.bound import last_bound
from talaria.core.plugin_calls import PluginError, contain
from talaria.plugins.loading import loading
from talaria.plugins.registered import PlatformEntry

log = logging.getLogger(__name__)


class PlatformRegistry:
    """Those of all loaded plugins, and of the one that is being loaded. Ours are not listed."""

    def register(self, entry: PlatformEntry) -> None:
        """For the plugin that is being loaded. Raises `RuntimeError` if none is."""
        ctx = loading.get()
        if ctx is None:
            raise RuntimeError(
                f"Platform {entry.name} comes too late: they are registered while their plugin is loaded."
            )
        ctx.register_platform(**{one.name: getattr(entry, one.name) for one in fields(entry)})

    def unregister(self, name: str) -> bool:
        """Only by the plugin that is being loaded, of what it has registered itself."""
        ctx = loading.get()
        mine = [] if ctx is None else ctx.registered.platforms
        kept = [entry for entry in mine if entry.name != name]
        is_there = len(kept) < len(mine)
        mine[:] = kept
        return is_there

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
        try:
            return None if entry is None else contain(lambda: _make_adapter(entry, config))
        except PluginError as fault:
            log.warning("the adapter of platform %s is not made: it %s", name, fault)
            return None


def _make_adapter(entry: PlatformEntry, config: Any) -> Any:
    is_valid = entry.validate_config is None or entry.validate_config(config)
    return entry.adapter_factory(config) if entry.check_fn() and is_valid else None


platform_registry = PlatformRegistry()
