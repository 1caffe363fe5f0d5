"""The plugins of one application: which are loaded, what they brought, and what became of those that failed.

A plugin's code is only run if the person has agreed to it as it is now. Whatever it does, the others go on.
"""

import logging
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path

from talaria.core.clock import Clock
from talaria.plugin_calls import PluginError, within
from talaria.plugins import consent
from talaria.plugins.api import PluginContext, Services
from talaria.plugins.discovery import ENGINES, FoundPlugin
from talaria.plugins.hook_table import HookTable
from talaria.plugins.judging import Judge, WantedPlugins
from talaria.plugins.loading import LOAD_S, being_loaded, module_for, registered, why
from talaria.plugins.plugin import Plugin
from talaria.plugins.plugin_hooks import FIRED
from talaria.plugins.problems import Problems
from talaria.plugins.registered import Registered
from talaria.waiting import in_thread

AGAIN_S = 10.0
"""How long one waits while another is asked again."""

log = logging.getLogger(__name__)


class PluginHost:
    def __init__(self, consents: Path, wanted: WantedPlugins, services: Services, clock: Clock) -> None:
        """`consents` is the file of what the person has agreed to."""
        self._consents = consents
        self._wanted = wanted
        self._services = services
        self._clock = clock
        self._judge = Judge(consents, wanted, {})
        self._modules: set[str] = set()
        self._asking_again = threading.Lock()
        self.plugins: dict[str, Plugin] = {}
        self.faults = Problems()
        """What they do wrong while they run."""
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
        """`before_hermes` is called once, with all that shall be loaded, if one of them may import Hermes' names.
        Nobody is loaded if there is an `obstacle`, a clause that says which."""
        self._judge = Judge(self._consents, self._wanted, found)
        if obstacle:
            self.plugins = self._judge.without_loading(obstacle)
            self.notices.append(f"No plugin is loaded: {obstacle}.")
            return
        self.plugins = await in_thread(self._judge.plugins)
        if any(plugin.found.is_hermes_style for plugin in self.loaded):
            before_hermes([plugin.found for plugin in self.loaded])
        for plugin in self.loaded:
            await self._load(plugin)
        await in_thread(self._remember)
        self.notices.extend(self._complaints())

    async def _load(self, plugin: Plugin) -> None:
        """What it prints goes where notices go: stdout is for answers."""
        ctx = self._context(plugin.found)
        module = module_for(plugin.key, self._modules)
        self._modules.add(module)
        try:
            with redirect_stdout(sys.stderr):
                plugin.register = await within(lambda: registered(plugin.found, ctx, module), LOAD_S, self._clock)
        except PluginError as fault:
            plugin.status = "failed"
            plugin.problems.append(why(fault, plugin.found))
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
        """So that `talaria NAME`, and what is chosen by name, are known without loading anybody."""
        consents = consent.read(self._consents)
        known = {
            plugin.key: plugin.remembered(consents[plugin.key].content)
            for plugin in self.loaded
            if plugin.key in consents
        }
        if {**consents, **known} != consents:
            consent.write(self._consents, {**consents, **known})

    def _complaints(self) -> Iterator[str]:
        for key in self._judge.first_time:
            yield f"Plugin {key} is loaded for the first time, and pinned as it is now."
        for plugin in self.plugins.values():
            if plugin.status == "changed":
                yield (
                    f"Plugin {plugin.key} {plugin.problems[0]}; it is not loaded. "
                    f"Look at it, then: talaria plugins enable {shlex.quote(plugin.key)}"
                )
            elif plugin.status == "failed" and plugin.names & self._wanted.enabled:
                yield f"Plugin {plugin.key} is not loaded: it {plugin.problems[0]}."
        yield from self._judge.complaints()

    @property
    def loaded(self) -> list[Plugin]:
        return [plugin for plugin in self.plugins.values() if plugin.status == "loaded"]

    def close(self) -> None:
        for plugin in self.plugins.values():
            plugin.background.close()
        self.hooks.close()

    def may_override(self, plugin: Plugin) -> bool:
        return self._judge.may_override(plugin.found)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Of which plugin, and what; also what it did since."""
        for plugin in self.plugins.values():
            yield from ((plugin.key, problem) for problem in plugin.problems)
        yield from self.faults

    def again(self, plugin: Plugin) -> Registered:
        """What it registers when it is asked anew; nothing else of it counts. Off the event loop, one at a time."""
        if plugin.register is None or not self._asking_again.acquire(timeout=AGAIN_S):
            raise PluginError("cannot be asked again")
        try:
            ctx = self._context(plugin.found)
            with self.hooks.unchanged(), being_loaded(ctx):  # some put their hooks into the table themselves
                plugin.register(ctx)
            return ctx.registered
        finally:
            self._asking_again.release()
