"""The plugins of one application: which of them are loaded, what they registered, and what went wrong with the others.

A plugin's code is run only if the person has agreed to it as it is now. Whatever it does, the other plugins go on.
"""

import errno
import logging
import os
import shlex
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from talaria.core.aio import in_thread
from talaria.core.clock import Clock
from talaria.core.plugin_calls import BackgroundLoop, PluginError, run_within
from talaria.core.trees import Entry, Root
from talaria.plugins import consent
from talaria.plugins.api import PluginContext, Services
from talaria.plugins.consent import CACHE, SKIPPED, Consents, PluginConsent
from talaria.plugins.discovery import ENGINES, MODELS, FoundPlugin, Single, find_shared_names, own_names
from talaria.plugins.loading import LOAD_S, Register, being_loaded, explain_failure, import_and_register, module_for
from talaria.plugins.plugin_hooks import FIRED, HookTable
from talaria.plugins.registered import Problems, Registered, engine_name, memory_name

Status = Literal["loaded", "available", "disabled", "not chosen", "changed", "failed"]
AGAIN_S = 10.0
"""How long a session waits while a plugin registers again for another."""
_CHUNK_BYTES = 1 << 20
_LEADING_ELSEWHERE = frozenset({errno.EXDEV, errno.ELOOP, errno.EINVAL, errno.ENOENT, errno.ENOTDIR})

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Plugin:
    found: FoundPlugin
    status: Status
    problems: list[str] = field(default_factory=list[str])
    registered: Registered = field(default_factory=Registered)
    register: Register | None = None
    background: BackgroundLoop = field(default_factory=BackgroundLoop)
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

    def to_consent(self, content: str) -> PluginConsent:
        """What must be known about it while it is not loaded."""
        brought = self.registered
        commands = {one.name: one.help for one in brought.cli}
        return PluginConsent(content, commands, engine_name(brought.engine), memory_name(brought.memory))


# Copies of plugins' folders. Others may still write in the original, so links in it are followed only to files of the
# plugin itself, whenever they were made.


class LeadsElsewhere(Exception):
    """`str()` of it is the name in the plugin."""


def copy_folder(source: Path, target: Path, *, skipped: AbstractSet[str]) -> None:
    """Makes `target`. Folders whose names are `skipped` are left out. Raises `OSError`, and `LeadsElsewhere` for a link
    to a folder, out of the plugin or to nothing, and for anything that is not a file."""
    with Root.open(source) as old, Root.make(target) as new:
        for place, entry in old.descend(lambda one: one.name not in skipped):
            name = f"{place}/{entry.name}" if place else entry.name
            if not entry.is_folder:
                _copy_file(old, new, name, entry)
            elif entry.name not in skipped:
                new.make_folder(name, 0o700).close()


def _copy_file(old: Root, new: Root, name: str, entry: Entry) -> None:
    try:
        content = old.open_file(name if entry.is_plain_file else old.follow(name))
    except OSError as fault:
        if fault.errno in _LEADING_ELSEWHERE:
            raise LeadsElsewhere(name) from fault
        raise
    with content:
        mode = stat.S_IMODE(os.fstat(content.fileno()).st_mode) & 0o755 | 0o600
        with new.create(name, mode) as copy:
            while chunk := content.read(_CHUNK_BYTES):
                left = memoryview(chunk)
                while left:
                    left = left[copy.write(left) :]


@dataclass(frozen=True, slots=True)
class WantedPlugins:
    """According to the settings."""

    enabled: frozenset[str] = frozenset()
    disabled: frozenset[str] = frozenset()
    engine: str = ""
    memory: str = ""
    may_override: frozenset[str] = frozenset()
    """Plugins whose tools may replace others."""


class PluginSelection:
    """Which of the plugins that were found are to be loaded: those that the settings want, as the person has agreed to
    them. A plugin whose status is `loaded` here is to be loaded. Off the event loop: it reads all their files."""

    def __init__(self, consents: Path, wanted: WantedPlugins, found: Mapping[str, FoundPlugin]) -> None:
        self._file = consents
        self._wanted = wanted
        self._found = found
        self._shared = find_shared_names(found)
        self.first_time: list[str] = []
        """Those that had no consent yet, and are pinned now."""

    def plugins(self) -> dict[str, Plugin]:
        consents = consent.read(self._file)
        return {one.key: self._select(one, consents) for one in self._found.values()}

    def without_loading(self, obstacle: str) -> dict[str, Plugin]:
        plugins: dict[str, Plugin] = {}
        for one in self._found.values():
            status = self._find_status(one)
            if status == "loaded":
                plugins[one.key] = Plugin(one, "disabled", [f"is not loaded: {obstacle}"])
            else:
                plugins[one.key] = Plugin(one, status, [one.problem] if one.problem else [])
        return plugins

    def may_override(self, found: FoundPlugin) -> bool:
        return bool(own_names(found, self._shared) & self._wanted.may_override)

    def complaints(self) -> Iterator[str]:
        """About names in the settings that no plugin has, or several."""
        known = {name: [key for key, one in self._found.items() if name in one.names] for name in self._wanted.enabled}
        for name, keys in sorted(known.items()):
            if not keys:
                yield f"Plugin {name} is enabled, but was not found."
            elif len(keys) > 1 and name not in keys:
                yield f"Several plugins are called {name}; enable one of them by its full name: {', '.join(keys)}."

    def _select(self, found: FoundPlugin, consents: Consents) -> Plugin:
        """A package replaces a folder of the same key only if the person has agreed to the package."""
        plugin = self._check(found, consents)
        if plugin.status == "loaded" or found.replaces is None:
            return plugin
        replaced = self._select(found.replaces, consents)
        return replaced if replaced.status == "loaded" else plugin

    def _check(self, found: FoundPlugin, consents: Consents) -> Plugin:
        """A name in the settings is consent to what is there now; it does not cover what changes later."""
        status = self._find_status(found)
        if status != "loaded" or found.source == "bundled":
            return Plugin(found, status, [found.problem] if found.problem else [])
        if found.problem:
            return Plugin(found, "failed", [found.problem])
        try:
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
                found = replace(found, folder=self._make_copy(found.folder, content))
        except LeadsElsewhere as link:
            return Plugin(found, "failed", [f"{link} in it is a link to a folder, or leads out of it"])
        except (OSError, consent.TooMuch) as fault:
            return Plugin(found, "failed", [f"cannot be read: {fault}"])
        return Plugin(found, "loaded", list(found.manifest.warnings))

    def _find_status(self, found: FoundPlugin) -> Status:
        """By the settings alone."""
        if found.names & self._wanted.disabled:
            return "disabled"
        is_enabled = bool(own_names(found, self._shared) & self._wanted.enabled)
        wanted = {"engine": self._wanted.engine, "memory": self._wanted.memory}
        is_chosen = None if found.single is None else wanted[found.single] in found.names
        if found.source == "bundled":
            is_needed = found.category == MODELS or found.manifest.kind == "backend"
            return "loaded" if is_enabled or (is_needed if is_chosen is None else is_chosen) else "available"
        if not is_enabled:
            return "available"
        return "not chosen" if is_chosen is False else "loaded"

    def _make_copy(self, folder: Path, content: str) -> Path:
        """Commands of the model can write in a project, so what is run is a copy of what the person has agreed to."""
        place = self._file.parent / "cache" / "plugins" / content
        if _has_content(place / folder.name, content):
            return place / folder.name
        arriving = place.with_name(f"{content}.{os.urandom(6).hex()}")
        copy_folder(folder, arriving / folder.name, skipped=SKIPPED | {CACHE})
        if not _has_content(arriving / folder.name, content):
            raise OSError("it changed while it was read")
        try:
            arriving.rename(place)
        except OSError:  # there is another one, which the plugin has changed since
            return arriving / folder.name
        return place / folder.name


def _has_content(folder: Path, content: str) -> bool:
    return folder.exists() and consent.content_of((folder,)) == content


class PluginHost:
    def __init__(self, consents: Path, wanted: WantedPlugins, services: Services, clock: Clock) -> None:
        """`consents` is the file of what the person has agreed to."""
        self._consents = consents
        self._wanted = wanted
        self._services = services
        self._clock = clock
        self._selection = PluginSelection(consents, wanted, {})
        self._modules: set[str] = set()
        self._asking_again = threading.Lock()
        self.plugins: dict[str, Plugin] = {}
        self.faults = Problems()
        """What goes wrong while they run."""
        self.hooks = HookTable(clock, self.faults)
        self.notices: list[str] = []
        """What the person should know at the start."""

    async def load(
        self,
        found: Mapping[str, FoundPlugin],
        *,
        before_hermes: Callable[[Sequence[FoundPlugin]], None],
        obstacle: str = "",
    ) -> None:
        """`before_hermes` is called once with all plugins to load, if one of them may import Hermes' names. An
        `obstacle`, as a clause, keeps all of them from being loaded."""
        self._selection = PluginSelection(self._consents, self._wanted, found)
        if obstacle:
            self.plugins = self._selection.without_loading(obstacle)
            self.notices.append(f"No plugin is loaded: {obstacle}.")
            return
        self.plugins = await in_thread(self._selection.plugins)
        if any(plugin.found.is_hermes_style for plugin in self.loaded):
            before_hermes([plugin.found for plugin in self.loaded])
        for plugin in self.loaded:
            await self._load(plugin)
        await in_thread(self._remember)
        for key in self._selection.first_time:
            self.notices.append(f"Plugin {key} is loaded for the first time, and pinned as it is now.")
        for plugin in self.plugins.values():
            if plugin.status == "changed":
                self.notices.append(
                    f"Plugin {plugin.key} {plugin.problems[0]}; it is not loaded. "
                    f"Check its code, then run: talaria plugins enable {shlex.quote(plugin.key)}"
                )
            elif plugin.status == "failed" and plugin.names & self._wanted.enabled:
                self.notices.append(f"Plugin {plugin.key} is not loaded: it {plugin.problems[0]}.")
        self.notices.extend(self._selection.complaints())

    async def _load(self, plugin: Plugin) -> None:
        """What it prints goes to stderr: stdout is for answers."""
        ctx = self._context(plugin.found)
        module = module_for(plugin.key, self._modules)
        self._modules.add(module)
        try:
            with redirect_stdout(sys.stderr):
                plugin.register = await run_within(
                    lambda: import_and_register(plugin.found, ctx, module), LOAD_S, self._clock
                )
        except PluginError as fault:
            plugin.status = "failed"
            plugin.problems.append(explain_failure(fault, plugin.found))
            log.warning("plugin %s %s", plugin.key, fault, exc_info=True)
            return
        plugin.registered = ctx.registered
        plugin.problems.extend(ctx.registered.problems)
        for name in dict.fromkeys(name for name, _ in ctx.registered.hooks if name not in FIRED):
            plugin.problems.append(f"registers the hook {name}, which Talaria never calls")
        for name, callback in ctx.registered.hooks:
            self.hooks.add(plugin.key, name, callback, plugin.background)

    def _context(self, found: FoundPlugin) -> PluginContext:
        return PluginContext(found.key, found.manifest, self._services, takes_any_engine=found.category == ENGINES)

    def _remember(self) -> None:
        """So that `talaria NAME`, and what is chosen by name, are known without loading any plugin."""
        consents = consent.read(self._consents)
        known = {
            plugin.key: plugin.to_consent(consents[plugin.key].content)
            for plugin in self.loaded
            if plugin.key in consents
        }
        if {**consents, **known} != consents:
            consent.write(self._consents, {**consents, **known})

    @property
    def loaded(self) -> list[Plugin]:
        return [plugin for plugin in self.plugins.values() if plugin.status == "loaded"]

    def close(self) -> None:
        for plugin in self.plugins.values():
            plugin.background.close()
        self.hooks.close()

    def may_override(self, plugin: Plugin) -> bool:
        return self._selection.may_override(plugin.found)

    def problems(self) -> Iterator[tuple[str, str]]:
        """The plugin and the problem; also problems since it was loaded."""
        for plugin in self.plugins.values():
            yield from ((plugin.key, problem) for problem in plugin.problems)
        yield from self.faults

    def register_again(self, plugin: Plugin) -> Registered:
        """What it registers when it is asked again; nothing else takes effect. Off the event loop, one at a time."""
        if plugin.register is None or not self._asking_again.acquire(timeout=AGAIN_S):
            raise PluginError("cannot be asked again")
        try:
            ctx = self._context(plugin.found)
            with self.hooks.restore_on_exit(), being_loaded(ctx):  # some put hooks into the table directly
                plugin.register(ctx)
            return ctx.registered
        finally:
            self._asking_again.release()


BUILTIN = ("compressor", "Built in: leaves out old tool output, then summarizes the middle with a model.")

Choice = tuple[str, str]


def engine_choices(host: PluginHost) -> list[Choice]:
    """The built-in one first."""
    return _choices(host, "engine", lambda brought: engine_name(brought.engine), BUILTIN)


def memory_choices(host: PluginHost) -> list[Choice]:
    return _choices(host, "memory", lambda brought: memory_name(brought.memory))


def _choices(host: PluginHost, kind: Single, name_in: Callable[[Registered], str], *builtin: Choice) -> list[Choice]:
    """Name and description, each name once, bundled ones first. What is not loaded is known by its manifest."""
    known = dict(builtin)
    for plugin in sorted(host.plugins.values(), key=lambda plugin: plugin.found.source != "bundled"):
        is_offered = plugin.found.source == "bundled" or plugin.status == "not chosen"
        name = name_in(plugin.registered) or (plugin.name if plugin.found.single == kind and is_offered else "")
        if name:
            known.setdefault(name, plugin.found.manifest.description)
    return list(known.items())
