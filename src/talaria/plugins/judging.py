"""Which of the plugins that are there shall be loaded: those that the settings want, as the person has agreed to
them. Off the event loop: it reads all their files."""

import os
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path

from talaria.plugins import consent
from talaria.plugins.consent import CACHE, SKIPPED, Consents, PluginConsent
from talaria.plugins.discovery import MODELS, FoundPlugin, own_names, shared_names
from talaria.plugins.plugin import Plugin, Status
from talaria.plugins.plugin_copy import LeadsElsewhere, copy_folder


@dataclass(frozen=True, slots=True)
class WantedPlugins:
    """What the settings say."""

    enabled: frozenset[str] = frozenset()
    disabled: frozenset[str] = frozenset()
    engine: str = ""
    memory: str = ""
    may_override: frozenset[str] = frozenset()
    """Plugins whose tools may stand in place of others."""


class Judge:
    """A plugin whose status is `loaded` shall be, once it is judged."""

    def __init__(self, consents: Path, wanted: WantedPlugins, found: Mapping[str, FoundPlugin]) -> None:
        self._file = consents
        self._wanted = wanted
        self._found = found
        self._shared = shared_names(found)
        self.first_time: list[str] = []
        """Those that were nobody's concern before, and are pinned now."""

    def plugins(self) -> dict[str, Plugin]:
        consents = consent.read(self._file)
        return {one.key: self._judged(one, consents) for one in self._found.values()}

    def without_loading(self, obstacle: str) -> dict[str, Plugin]:
        return {one.key: self._left_out(one, obstacle) for one in self._found.values()}

    def may_override(self, found: FoundPlugin) -> bool:
        return bool(self._names(found) & self._wanted.may_override)

    def complaints(self) -> Iterator[str]:
        """About names in the settings that nobody has, or too many."""
        known = {name: [key for key, one in self._found.items() if name in one.names] for name in self._wanted.enabled}
        for name, keys in sorted(known.items()):
            if not keys:
                yield f"Plugin {name} is enabled, but is nowhere to be found."
            elif len(keys) > 1 and name not in keys:
                yield f"Several plugins are called {name}; enable one of them by its full name: {', '.join(keys)}."

    def _names(self, found: FoundPlugin) -> AbstractSet[str]:
        return own_names(found, self._shared)

    def _left_out(self, found: FoundPlugin, obstacle: str) -> Plugin:
        status = self._wish(found)
        if status != "loaded":
            return Plugin(found, status, [found.problem] if found.problem else [])
        return Plugin(found, "disabled", [f"is not loaded: {obstacle}"])

    def _judged(self, found: FoundPlugin, consents: Consents) -> Plugin:
        """A package takes the place of a folder only if it is the one that was agreed to."""
        plugin = self._judged_alone(found, consents)
        if plugin.status == "loaded" or found.behind is None:
            return plugin
        behind = self._judged(found.behind, consents)
        return behind if behind.status == "loaded" else plugin

    def _judged_alone(self, found: FoundPlugin, consents: Consents) -> Plugin:
        status = self._wish(found)
        if status != "loaded" or found.source == "bundled":
            return Plugin(found, status, [found.problem] if found.problem else [])
        if found.problem:
            return Plugin(found, "failed", [found.problem])
        try:
            return self._agreed(found, consents)
        except LeadsElsewhere as link:
            return Plugin(found, "failed", [f"{link} in it is a link to a folder, or leads out of it"])
        except (OSError, consent.TooMuch) as fault:
            return Plugin(found, "failed", [f"cannot be read: {fault}"])

    def _wish(self, found: FoundPlugin) -> Status:
        if found.names & self._wanted.disabled:
            return "disabled"
        is_enabled = bool(self._names(found) & self._wanted.enabled)
        wanted = {"engine": self._wanted.engine, "memory": self._wanted.memory}
        is_chosen = None if found.single is None else wanted[found.single] in found.names
        if found.source == "bundled":
            is_needed = found.category == MODELS or found.manifest.kind == "backend"
            return "loaded" if is_enabled or (is_needed if is_chosen is None else is_chosen) else "available"
        if not is_enabled:
            return "available"
        return "not chosen" if is_chosen is False else "loaded"

    def _agreed(self, found: FoundPlugin, consents: Consents) -> Plugin:
        """A name in the settings is consent to what is there now; what changes later is not covered by it."""
        if not found.places:
            return Plugin(found, "failed", ["has no code"])
        content = consent.content_of(found.places)
        known = consents.get(found.key)
        if known is None and found.source == "project":
            return Plugin(found, "changed", ["came with this project, and you have not agreed to it"])
        if known is None:
            consents[found.key] = PluginConsent(content)
            consent.write(self._file, consents)
            self.first_time.append(found.key)
        elif known.content != content:
            return Plugin(found, "changed", ["has changed since you enabled it"])
        if found.source == "project" and found.folder is not None:
            found = replace(found, folder=self._copied(found.folder, content))
        return Plugin(found, "loaded", list(found.manifest.warnings))

    def _copied(self, folder: Path, content: str) -> Path:
        """Commands of the model can write in a project: what is run is a copy of what the person has agreed to."""
        place = self._file.parent / "cache" / "plugins" / content
        if _holds(place / folder.name, content):
            return place / folder.name
        arriving = place.with_name(f"{content}.{os.urandom(6).hex()}")
        copy_folder(folder, arriving / folder.name, skipped=SKIPPED | {CACHE})
        if not _holds(arriving / folder.name, content):
            raise OSError("it changed while it was read")
        try:
            arriving.rename(place)
        except OSError:  # another one is there, which the plugin has changed since
            return arriving / folder.name
        return place / folder.name


def _holds(folder: Path, content: str) -> bool:
    return folder.exists() and consent.content_of((folder,)) == content
