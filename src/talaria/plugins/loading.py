"""Imports one plugin and runs its `register`, off the event loop and with a time limit."""

import importlib.util
import sys
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from talaria.context.engine import ContextEngine
from talaria.foreign import Broke
from talaria.plugins.api import PluginContext
from talaria.plugins.discovery import MODELS, Found

NAMESPACE = "hermes_plugins"
LOAD_S = 30.0

Register = Callable[[PluginContext], object]

loading: ContextVar[PluginContext | None] = ContextVar("loading", default=None)
"""The context of the plugin that is being loaded, for code that registers without being given one."""


def register_of(found: Found) -> Register:
    """Imports it. Raises `Broke`, and whatever its code raises."""
    loaded: object = _imported(found) if found.entry_point is None else found.entry_point.load()
    if not isinstance(loaded, ModuleType):
        register: object = loaded
    elif found.manifest.kind == "model-provider" or found.category == MODELS:
        register = getattr(loaded, "register", _nothing)  # it registers while it is imported
    else:
        register = getattr(loaded, "register", None) or _engine_in(loaded)
    if not callable(register):
        raise Broke("has no register(ctx)")
    return register


def _imported(found: Found) -> ModuleType:
    """Executed anew."""
    if found.folder is None:
        raise Broke("has no code")
    _namespace()
    name = f"{NAMESPACE}.{slug(found.key)}"
    init = found.folder / "__init__.py"
    spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[str(found.folder)])
    if spec is None or spec.loader is None:
        raise Broke("cannot be imported")
    forget(name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        forget(name)
        raise
    return module


def slug(key: str) -> str:
    return key.replace("/", "__").replace("-", "_").replace(" ", "_").replace(".", "_")


def forget(name: str) -> None:
    for known in [known for known in sys.modules if known == name or known.startswith(f"{name}.")]:
        del sys.modules[known]


def _namespace() -> None:
    if NAMESPACE not in sys.modules:
        package = ModuleType(NAMESPACE, "Plugins that are loaded from folders.")
        package.__path__ = []
        sys.modules[NAMESPACE] = package


def _nothing(_: PluginContext) -> None:
    return None


def _engine_in(module: ModuleType) -> Register | None:
    """The folder of an engine may have nothing but its class."""
    engines = [one for one in vars(module).values() if _is_engine(one)]
    return (lambda ctx: ctx.register_context_engine(engines[0]())) if engines else None


def _is_engine(one: Any) -> bool:
    return isinstance(one, type) and issubclass(one, ContextEngine) and one is not ContextEngine
