"""`plugins.context_engine`: the context engines there are."""

from talaria.compat.hermes.bound import require_bound
from talaria.context.engine import ContextEngine
from talaria.plugins.discovery import ENGINES
from talaria.plugins.plugin_host import Plugin
from talaria.plugins.registered import engine_name


def discover_context_engines() -> list[tuple[str, str, bool]]:
    """Name, description, and whether it could be used. Of one that is not loaded the folder's name is taken."""
    known = [
        one for one in require_bound().host.plugins.values() if one.registered.engine or one.found.category == ENGINES
    ]
    return sorted((_name(one), one.found.manifest.description, one.status != "failed") for one in known)


def load_context_engine(name: str) -> ContextEngine | None:
    """The registered one, which sessions get copies of; None unless its plugin is loaded."""
    engines = [plugin.registered.engine for plugin in require_bound().host.loaded if plugin.registered.engine]
    return next((engine for engine in engines if engine_name(engine) == name), None)


def _name(plugin: Plugin) -> str:
    return engine_name(plugin.registered.engine) or plugin.key.rpartition("/")[2]
