"""What plugins for Hermes expect around them: its modules, its home, and the variables in `.env`.

The finder comes first, knows only exact names, and is removed with its last user. So a `tools/` folder in the working
directory, or an installed Hermes, does not win; and other modules of these names are found as before afterwards.
"""

import importlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from talaria.plugins.discovery import FoundPlugin
from talaria.providers.catalog import catalog

_ALIASES = "talaria.compat.hermes.aliases"
PACKAGES = ("agent", "gateway", "gateway.platforms", "hermes_cli", "plugins", "providers", "tools")
"""Empty but for their modules, unless they are in `MODULES`, too."""
MODULES = {
    **dict.fromkeys(("agent.auxiliary_client", "agent.usage_pricing", "agent.redact"), "hermes_agent"),
    **dict.fromkeys(("agent.context_engine", "agent.memory_provider"), "hermes_agent"),
    **dict.fromkeys(("gateway.config", "gateway.platform_registry", "gateway.status"), "hermes_gateway"),
    **dict.fromkeys(("gateway.session", "gateway.session_context", "gateway.run"), "hermes_gateway"),
    "gateway.whatsapp_identity": "hermes_gateway",
    **dict.fromkeys(("gateway.platforms.base", "gateway.platforms.helpers"), "hermes_platforms"),
    **dict.fromkeys(("hermes_cli.config", "hermes_cli.setup", "hermes_constants"), "hermes_cli_config"),
    **dict.fromkeys(("hermes_cli.commands", "hermes_cli.middleware", "hermes_cli.plugins"), "hermes_cli_plugins"),
    **dict.fromkeys(("plugins.context_engine", "providers", "providers.base", "tools.registry"), "hermes_cli_plugins"),
    "hermes_state": "hermes_state",
}
"""Which file in `aliases/` serves each module; one that serves several shows all its names in each."""


class AliasFinder(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        if fullname not in PACKAGES and fullname not in MODULES:
            return None
        return ModuleSpec(fullname, self, is_package=fullname in PACKAGES)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ not in MODULES:
            return
        real = importlib.import_module(f"{_ALIASES}.{MODULES[module.__name__]}")
        shown = {name: value for name, value in vars(real).items() if not name.startswith("__")}
        vars(module).update(shown, __doc__=real.__doc__)


_finder = AliasFinder()
_hidden: dict[str, ModuleType] = {}
"""Modules of the same names that were imported before."""
_users = 0


def install() -> None:
    """Until `remove` has been called as often."""
    global _users  # noqa: PLW0603  (import machinery is global)
    _users += 1
    if _finder in sys.meta_path:
        return
    for name in _names_in_use():
        _hidden[name] = sys.modules.pop(name)
    sys.meta_path.insert(0, _finder)


def remove() -> None:
    global _users  # noqa: PLW0603
    _users -= 1
    if _users > 0 or _finder not in sys.meta_path:
        return
    sys.meta_path.remove(_finder)
    for name in _names_in_use():
        del sys.modules[name]
    sys.modules.update(_hidden)
    _hidden.clear()


def _names_in_use() -> list[str]:
    """Ours, and everything below the packages that we replace."""
    tops = {name.partition(".")[0] for name in (*PACKAGES, *MODULES)}
    return [name for name in sys.modules if name.partition(".")[0] in tops]


class PluginEnvironment:
    """Variables for plugins. The keys of model providers are not among them, unless a plugin declares that it needs
    one. Commands of the model get none of this."""

    def __init__(self, home: Path, environment: Mapping[str, str], theirs: Mapping[str, str]) -> None:
        """`home` is that of plugins, `theirs` the .env in it."""
        self._home = home
        self._environment = environment
        self._theirs = theirs
        self._added: list[str] = []
        self._is_prepared = False

    def prepare(self, found: Sequence[FoundPlugin]) -> None:
        """For these plugins, which the person has agreed to."""
        self._is_prepared = True
        install()
        self._add("HERMES_HOME", str(self._home))
        needed = {need.name for one in found for need in (*one.manifest.requires_env, *one.manifest.optional_env)}
        model_keys = {key for facts in catalog().values() for key in facts.keys}
        for name, value in self._environment.items():
            base = re.sub(r"_\d$", "", name)  # a provider may have more keys: `NAME_2`
            if name in needed or base not in model_keys:
                self._add(name, value)
        for name in self._theirs.keys() - self._environment.keys():
            self._add(name, self._theirs[name])

    def _add(self, name: str, value: str) -> None:
        if value and name not in os.environ:
            os.environ[name] = value
            self._added.append(name)

    def restore(self) -> None:
        for name in self._added:
            os.environ.pop(name, None)
        if self._is_prepared:
            remove()
