"""The kinds of which one is chosen by name: what there is to choose from, as `(name, description)`."""

from collections.abc import Callable, Iterable, Iterator

from talaria.plugins.discovery import ENGINES, MEMORY
from talaria.plugins.host import PluginHost
from talaria.plugins.plugin import Plugin
from talaria.plugins.registered import engine_name, memory_name

BUILTIN = ("compressor", "Built in: leaves out old tool output, then sums up the middle with a model.")

Choice = tuple[str, str]


def engine_choices(host: PluginHost) -> list[Choice]:
    """The built-in one first, then those that are bundled, then those of plugins; each name once."""
    return _each_once([BUILTIN, *_offered(host, _engine)])


def memory_choices(host: PluginHost) -> list[Choice]:
    return _each_once(_offered(host, _memory))


def _offered(host: PluginHost, name_in: Callable[[Plugin], str | None]) -> Iterator[Choice]:
    ordered = sorted(host.plugins.values(), key=lambda plugin: plugin.found.source != "bundled")
    for plugin in ordered:
        name = name_in(plugin)
        if name:
            yield name, plugin.found.manifest.description


def _engine(plugin: Plugin) -> str | None:
    """What is not loaded is known by its manifest."""
    if plugin.registered.engine is not None:
        return engine_name(plugin.registered.engine)
    is_offered = plugin.found.source == "bundled" or plugin.status == "not chosen"
    return plugin.name if plugin.found.category == ENGINES and is_offered else None


def _memory(plugin: Plugin) -> str | None:
    if plugin.registered.memory is not None:
        return memory_name(plugin.registered.memory)
    is_memory = plugin.found.category == MEMORY or plugin.found.manifest.kind == "exclusive"
    is_offered = plugin.found.source == "bundled" or plugin.status == "not chosen"
    return plugin.name if is_memory and is_offered else None


def _each_once(choices: Iterable[Choice]) -> list[Choice]:
    known: dict[str, Choice] = {}
    for choice in choices:
        known.setdefault(choice[0], choice)
    return list(known.values())
