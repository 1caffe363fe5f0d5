"""The kinds of which one is chosen by name: what there is to choose from, as `(name, description)`."""

from collections.abc import Callable

from talaria.plugins.discovery import Single
from talaria.plugins.plugin_host import PluginHost
from talaria.plugins.registered import Registered, engine_name, memory_name

BUILTIN = ("compressor", "Built in: leaves out old tool output, then sums up the middle with a model.")

Choice = tuple[str, str]


def engine_choices(host: PluginHost) -> list[Choice]:
    """The built-in one first."""
    return _choices(host, "engine", lambda brought: engine_name(brought.engine), BUILTIN)


def memory_choices(host: PluginHost) -> list[Choice]:
    return _choices(host, "memory", lambda brought: memory_name(brought.memory))


def _choices(host: PluginHost, kind: Single, name_in: Callable[[Registered], str], *builtin: Choice) -> list[Choice]:
    """Those that are bundled before those of plugins; each name once. What is not loaded is known by its manifest."""
    known = dict(builtin)
    for plugin in sorted(host.plugins.values(), key=lambda plugin: plugin.found.source != "bundled"):
        is_offered = plugin.found.source == "bundled" or plugin.status == "not chosen"
        name = name_in(plugin.registered) or (plugin.name if plugin.found.single == kind and is_offered else "")
        if name:
            known.setdefault(name, plugin.found.manifest.description)
    return list(known.items())
