"""Imports one plugin and runs its `register`, off the event loop and with a time limit."""

import importlib.util
import re
import shlex
import sys
from collections.abc import Callable, Generator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from types import ModuleType
from typing import Any

from talaria.context.engine import ContextEngine
from talaria.plugin_calls import PluginError
from talaria.plugins.api import PluginContext, nothing
from talaria.plugins.discovery import MODELS, FoundPlugin

NAMESPACE = "hermes_plugins"
LOAD_S = 30.0

_OF_HERMES = frozenset(
    {"agent", "cron", "gateway", "hermes_cli", "hermes_state", "plugins", "providers", "run_agent", "tools", "utils"}
)

Register = Callable[[PluginContext], object]

loading: ContextVar[PluginContext | None] = ContextVar("loading", default=None)
"""The context of the plugin that is being loaded, for code that registers without being given one."""


def registered(found: FoundPlugin, ctx: PluginContext, module: str) -> Register:
    """Imports it, a folder as `module`, and asks it what it brings; how to ask it again. Raises whatever its code
    raises."""
    with being_loaded(ctx):
        register = _register_of(found, module)
        register(ctx)
    return register


@contextmanager
def being_loaded(ctx: PluginContext) -> Generator[None]:
    token = loading.set(ctx)
    try:
        yield
    finally:
        loading.reset(token)


def why(fault: PluginError, found: FoundPlugin) -> str:
    """It could not be loaded; goes on behind its name."""
    missing = fault.__cause__
    if not isinstance(missing, ModuleNotFoundError) or not missing.name:
        return f"{fault} while it was loaded"
    package = missing.name.partition(".")[0]
    if package in _OF_HERMES:
        return f"uses {missing.name} of Hermes, which is not here"
    if package == NAMESPACE or "." in missing.name:  # a part of what is there: no package would bring it
        return f"needs {missing.name}, which is not here"
    packages = shlex.join(found.manifest.packages)  # only its author knows what it is called where pip looks
    how = f": {sys.executable} -m pip install {packages}" if packages else "; its README may say how to get it"
    return f"needs the Python package {package}, which is not there{how}"


def _register_of(found: FoundPlugin, module: str) -> Register:
    loaded: object = _imported(found, module) if found.entry_point is None else found.entry_point.load()
    if not isinstance(loaded, ModuleType):
        register: object = loaded
    elif found.manifest.kind == "model-provider" or found.category == MODELS:
        register = getattr(loaded, "register", nothing)  # it registers while it is imported
    else:
        register = getattr(loaded, "register", None) or _engine_in(loaded)
    if not callable(register):
        raise PluginError("has no register(ctx)")
    return register


def _imported(found: FoundPlugin, name: str) -> ModuleType:
    """Executed anew."""
    if found.folder is None:
        raise PluginError("has no code")
    _namespace()
    init = found.folder / "__init__.py"
    spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[str(found.folder)])
    if spec is None or spec.loader is None:
        raise PluginError("cannot be imported")
    forget(name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        forget(name)
        raise
    return module


def module_for(key: str, taken: AbstractSet[str]) -> str:
    """Two keys may differ only by what no module's name can have."""
    slug = re.sub("[-. ]", "_", key.replace("/", "__"))
    names = (f"{NAMESPACE}.{slug}{'_' * more}" for more in count())
    return next(name for name in names if name not in taken)


def forget(name: str) -> None:
    for known in [known for known in sys.modules if known == name or known.startswith(f"{name}.")]:
        del sys.modules[known]


def _namespace() -> None:
    if NAMESPACE not in sys.modules:
        package = ModuleType(NAMESPACE, "Plugins that are loaded from folders.")
        package.__path__ = []
        sys.modules[NAMESPACE] = package


def _engine_in(module: ModuleType) -> Register | None:
    """The folder of an engine may have nothing but its class."""
    engines = [one for one in vars(module).values() if _is_engine(one)]
    return (lambda ctx: ctx.register_context_engine(engines[0]())) if engines else None


def _is_engine(one: Any) -> bool:
    return isinstance(one, type) and issubclass(one, ContextEngine) and one is not ContextEngine
