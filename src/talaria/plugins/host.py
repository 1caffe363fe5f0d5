"""The plugins of one application: which are loaded, what they brought, and what became of those that failed.

A plugin's code is only run if the person has agreed to it as it is now. Whatever it does, the others go on.
"""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from talaria.foreign import Broke, within
from talaria.model.clock import Clock
from talaria.plugins import consent
from talaria.plugins.api import PluginContext, Services
from talaria.plugins.consent import Consent
from talaria.plugins.discovery import ENGINES, MEMORY, MODELS, Found
from talaria.plugins.hooks import VALID_HOOKS, HookTable
from talaria.plugins.loading import LOAD_S, Register, loading, register_of
from talaria.plugins.registered import Registered
from talaria.waiting import in_thread

Status = Literal["loaded", "available", "disabled", "not chosen", "changed", "failed"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the settings say."""

    enabled: frozenset[str] = frozenset()
    disabled: frozenset[str] = frozenset()
    engine: str = ""
    memory: str = ""
    may_override: frozenset[str] = frozenset()
    """Plugins whose tools may stand in place of others."""


@dataclass(slots=True)
class Plugin:
    found: Found
    status: Status
    problems: list[str] = field(default_factory=list[str])
    registered: Registered = field(default_factory=Registered)
    register: Register | None = None

    @property
    def key(self) -> str:
        return self.found.key

    @property
    def name(self) -> str:
        return self.found.manifest.name


class PluginHost:
    def __init__(self, consents: Path, wanted: Wanted, services: Services, clock: Clock) -> None:
        """`consents` is the file of what the person has agreed to."""
        self._consents = consents
        self._wanted = wanted
        self._services = services
        self._clock = clock
        self.plugins: dict[str, Plugin] = {}
        self.hooks = HookTable(clock)
        self.notices: list[str] = []
        """What the person should know at the start."""

    async def load(self, found: Mapping[str, Found], *, before_hermes: Callable[[], None]) -> None:
        """`before_hermes` is called once, before the first that may import Hermes' names."""
        self.plugins = await in_thread(lambda: self._all_judged(found))
        is_prepared = False
        for plugin in self.loaded:
            if plugin.found.is_hermes_style and not is_prepared:
                before_hermes()
                is_prepared = True
            await self._load(plugin)
        await in_thread(self._remember_commands)
        self.notices.extend(self._complaints())

    def _all_judged(self, found: Mapping[str, Found]) -> dict[str, Plugin]:
        consents = consent.read(self._consents)
        return {one.key: self._judged(one, consents) for one in found.values()}

    def _remember_commands(self) -> None:
        """So that `talaria NAME` is known without loading anybody."""
        consents = consent.read(self._consents)
        known = {
            plugin.key: Consent(consents[plugin.key].content, {one.name: one.help for one in plugin.registered.cli})
            for plugin in self.loaded
            if plugin.key in consents
        }
        if {**consents, **known} != consents:
            consent.write(self._consents, {**consents, **known})

    def _judged(self, found: Found, consents: dict[str, Consent]) -> Plugin:
        """`loaded` means here: shall be."""
        status = self._wish(found)
        if status != "loaded" or found.source == "bundled":
            return Plugin(found, status, [found.problem] if found.problem else [])
        if found.problem:
            return Plugin(found, "failed", [found.problem])
        try:
            return self._agreed(found, consents)
        except (OSError, consent.TooMuch) as fault:
            return Plugin(found, "failed", [f"cannot be read: {fault}"])

    def _wish(self, found: Found) -> Status:
        names = {found.key, found.manifest.name}
        if names & self._wanted.disabled:
            return "disabled"
        chosen = _single_choice(found, self._wanted)
        if found.source == "bundled":
            is_wanted = chosen if chosen is not None else found.category == MODELS or found.manifest.kind == "backend"
            return "loaded" if is_wanted or names & self._wanted.enabled else "available"
        if not names & self._wanted.enabled:
            return "available"
        return "not chosen" if chosen is False else "loaded"

    def _agreed(self, found: Found, consents: dict[str, Consent]) -> Plugin:
        """A name in the settings is consent to what is there now; what changes later is not covered by it."""
        if found.place is None:
            return Plugin(found, "failed", ["its code is not there"])
        content = consent.content_of(found.place)
        known = consents.get(found.key)
        if known is None and found.source == "project":
            return Plugin(found, "changed", ["came with this project, and you have not agreed to it"])
        if known is None:
            consents[found.key] = Consent(content)
            consent.write(self._consents, consents)
            self.notices.append(f"Plugin {found.key} is loaded for the first time, and pinned as it is now.")
        elif known.content != content:
            return Plugin(found, "changed", ["has changed since you enabled it"])
        return Plugin(found, "loaded", list(found.manifest.warnings))

    async def _load(self, plugin: Plugin) -> None:
        ctx = PluginContext(plugin.key, plugin.found.manifest, self._services)
        try:
            plugin.register = await within(lambda: _registered(plugin.found, ctx), LOAD_S, self._clock)
        except Broke as fault:
            plugin.status = "failed"
            plugin.problems.append(_why(fault))
            log.warning("plugin %s %s", plugin.key, fault, exc_info=True)
            return
        plugin.registered = ctx.registered
        plugin.problems.extend(ctx.registered.problems)
        for name, callback in ctx.registered.hooks:
            if name not in VALID_HOOKS:
                plugin.problems.append(f"listens for {name!r}, which nobody fires")
            self.hooks.add(plugin.key, name, callback)

    def _complaints(self) -> Iterator[str]:
        for plugin in self.plugins.values():
            if plugin.status == "changed":
                yield (
                    f"Plugin {plugin.key} {plugin.problems[0]}; it is not loaded. "
                    f"Look at it, then: talaria plugins enable {plugin.key}"
                )
            elif plugin.status == "failed" and {plugin.key, plugin.name} & self._wanted.enabled:
                yield f"Plugin {plugin.key} is not loaded: it {plugin.problems[0]}."
        known = {name for one in self.plugins.values() for name in (one.key, one.name)}
        for key in sorted(self._wanted.enabled - known):
            yield f"Plugin {key} is enabled, but is nowhere to be found."

    @property
    def loaded(self) -> list[Plugin]:
        return [plugin for plugin in self.plugins.values() if plugin.status == "loaded"]

    def may_override(self, plugin: Plugin) -> bool:
        return bool({plugin.key, plugin.name} & self._wanted.may_override)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Of which plugin, and what; also what its hooks did since."""
        for plugin in self.plugins.values():
            yield from ((plugin.key, problem) for problem in plugin.problems)
        yield from self.hooks.problems

    def again(self, plugin: Plugin) -> Registered:
        """What it registers when it is asked anew; nothing else of it counts. Off the event loop."""
        if plugin.register is None:
            raise Broke("cannot be asked again")
        kept = {name: list(callbacks) for name, callbacks in self.hooks.callbacks.items()}
        ctx = PluginContext(plugin.key, plugin.found.manifest, self._services)
        token = loading.set(ctx)
        try:
            plugin.register(ctx)
        finally:  # some put their hooks into the table themselves
            loading.reset(token)
            self.hooks.callbacks.clear()
            self.hooks.callbacks.update(kept)
        return ctx.registered


def _why(fault: Broke) -> str:
    missing = fault.__cause__
    if isinstance(missing, ModuleNotFoundError) and missing.name:
        package = missing.name.partition(".")[0]
        return f"needs the Python package {package}, which is not there: {sys.executable} -m pip install {package}"
    return f"{fault} while it was loaded"


def _registered(found: Found, ctx: PluginContext) -> Register:
    token = loading.set(ctx)
    try:
        register = register_of(found)
        register(ctx)
    finally:
        loading.reset(token)
    return register


def _single_choice(found: Found, wanted: Wanted) -> bool | None:
    """Whether it is the chosen one of a kind of which there is only one; None if it is of no such kind."""
    names = {found.manifest.name, found.key.rpartition("/")[2]}
    if found.category == ENGINES:
        return wanted.engine in names
    if found.category == MEMORY or found.manifest.kind == "exclusive":
        return wanted.memory in names
    return None
