"""What plugins keep in config.yaml for themselves, told apart from settings of ours. Pure.

A section under the name of a plugin, memory provider or engine that the file puts into use is theirs; so is a mapping
under `plugins` that is none of our settings. Everything else is ours, and a mistake in it is told.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec

from talaria.config.schema import AuxiliaryConfig, Config, PluginsConfig


def ours(document: Mapping[str, Any]) -> dict[str, Any]:
    """The settings; what `auxiliary` has for other tasks than ours stands under `auxiliary.tasks`."""
    theirs = {_plain(name) for name in _in_use(document)} - _settings(Config)
    kept = {key: value for key, value in document.items() if _plain(key) not in theirs}
    if isinstance(kept.get("plugins"), dict):
        kept["plugins"] = dict(_without_mappings(kept["plugins"]))
    if isinstance(kept.get("auxiliary"), dict):
        kept["auxiliary"] = _with_tasks(kept["auxiliary"])
    return kept


def _in_use(document: Mapping[str, Any]) -> Iterator[str]:
    plugins, memory, context = (_section(document, name) for name in ("plugins", "memory", "context"))
    enabled = plugins.get("enabled")
    if isinstance(enabled, list):
        yield from (str(name) for name in cast("list[object]", enabled))
    yield from (str(name) for name in (memory.get("provider"), context.get("engine")) if name)


def _section(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = document.get(name)
    return cast("dict[str, Any]", section) if isinstance(section, dict) else {}


def _without_mappings(plugins: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in plugins.items():
        if key in _settings(PluginsConfig) or not isinstance(value, Mapping):
            yield key, value


def _with_tasks(auxiliary: Mapping[str, Any]) -> dict[str, Any]:
    known = _settings(AuxiliaryConfig)
    tasks: dict[str, Any] = {
        key: value for key, value in auxiliary.items() if key not in known and isinstance(value, Mapping)
    }
    if not tasks:
        return dict(auxiliary)
    rest = {key: value for key, value in auxiliary.items() if key not in tasks}
    return {**rest, "tasks": {key: model for key, value in tasks.items() if (model := _model(value))}}


def _model(task: Mapping[str, Any]) -> str:
    """`provider:model`, as far as it says."""
    return ":".join(str(task[key]) for key in ("provider", "model") if task.get(key) and task[key] != "auto")


def _settings(struct: type[msgspec.Struct]) -> set[str]:
    return set(struct.__struct_fields__)


def _plain(name: str) -> str:
    return name.rpartition("/")[2].replace("-", "_").lower()
