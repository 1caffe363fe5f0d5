"""Imports one plugin and runs its `register`, off the event loop and with a time limit.

Keeps bytecode of its own while plugins are loaded: what came with a plugin may be of other code than the one that
the person has agreed to, and Python would run it unseen. It holds for all that is imported meanwhile, also late.
A handler that holds one object, made to hold another: a plugin's slash command was registered with one engine, and
each conversation has an engine of its own. Looks only at functions, bound methods and partials; runs no code of theirs
but `getattr`.
One engine, or memory provider, per live session, made of what a plugin has registered. Off the event loop.

In this order: what it says itself (`clone_for_agent`), its class's own deep copy, `register` run again with a context
that only collects, a plain deep copy; and if none of that works, the registered one for all, which is told.
"""

import copy
import importlib.util
import logging
import re
import shlex
import sys
from collections.abc import Callable, Generator, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import count
from pathlib import Path
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar, cast

from talaria.context.engine import ContextEngine
from talaria.core.plugin_calls import PluginError
from talaria.plugins.api import PluginContext, nothing
from talaria.plugins.discovery import MODELS, FoundPlugin
from talaria.plugins.registered import Registered
from talaria.runtime.commands import normalise

_users: list[str] = []
_before: list[str | None] = []
"""What the first of them found; import machinery is global."""


@contextmanager
def keep_bytecode_in(folder: Path) -> Generator[None]:
    """Until the last that has asked for it leaves."""
    place = str(folder)
    if not _users:
        _before[:] = [sys.pycache_prefix]
    _users.append(place)
    sys.pycache_prefix = place
    try:
        yield
    finally:
        _users.remove(place)
        sys.pycache_prefix = _users[-1] if _users else _before[0]


def rebind(handler: Callable[..., Any], old: object, new: object) -> Callable[..., Any]:
    """The handler with `new` wherever it holds `old`; the same one if it does not hold it. Variables that it shares
    with other functions stay shared."""
    return _Rebinding(old, new).of(handler)


class _Rebinding:
    def __init__(self, old: object, new: object) -> None:
        self._old = old
        self._made: dict[int, Any] = {id(old): new}

    def of(self, value: Any) -> Any:
        if id(value) in self._made:
            return self._made[id(value)]
        if not self._is_reached_from(value, set()):
            return value
        if isinstance(value, MethodType):
            return _method(value, self.of(value.__self__), self.of(value.__func__))
        if isinstance(value, partial):
            held = cast("partial[Any]", value)
            keywords = {name: self.of(given) for name, given in held.keywords.items()}
            return partial(self.of(held.func), *map(self.of, held.args), **keywords)
        return self._function(value)

    def _function(self, function: FunctionType) -> FunctionType:
        """Known as made before its variables are filled in: it may call itself."""
        cells = tuple(CellType() if self._is_reached_from(cell, set()) else cell for cell in function.__closure__ or ())
        made = FunctionType(function.__code__, function.__globals__, function.__name__, None, cells)
        self._made[id(function)] = made
        for cell, before in zip(cells, function.__closure__ or (), strict=True):
            if cell is not before:
                cell.cell_contents = self.of(before.cell_contents)
        made.__defaults__ = function.__defaults__ and tuple(map(self.of, function.__defaults__))
        made.__kwdefaults__ = function.__kwdefaults__ and {
            name: self.of(given) for name, given in function.__kwdefaults__.items()
        }
        made.__dict__.update(function.__dict__)
        return made

    def _is_reached_from(self, value: Any, seen: set[int]) -> bool:
        if value is self._old:
            return True
        if id(value) in seen:
            return False
        seen.add(id(value))
        return any(self._is_reached_from(held, seen) for held in _find_references(value))


def _find_references(value: Any) -> Iterator[Any]:
    if isinstance(value, CellType):
        try:
            yield value.cell_contents
        except ValueError:  # empty
            return
    elif isinstance(value, MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, partial):
        held = cast("partial[Any]", value)
        yield from (held.func, *held.args, *held.keywords.values())
    elif isinstance(value, FunctionType):
        yield from (*(value.__closure__ or ()), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())


def _method(method: MethodType, owner: object, function: Any) -> Any:
    """As the new owner has it: a clone may be of another class."""
    own = getattr(owner, method.__name__, None) if owner is not method.__self__ else None
    return own if callable(own) else MethodType(function, owner)


NAMESPACE = "hermes_plugins"
LOAD_S = 30.0

_OF_HERMES = frozenset(
    {"agent", "cron", "gateway", "hermes_cli", "hermes_state", "plugins", "providers", "run_agent", "tools", "utils"}
)

Register = Callable[[PluginContext], object]

loading: ContextVar[PluginContext | None] = ContextVar("loading", default=None)
"""The context of the plugin that is being loaded, for code that registers without being given one."""


def import_and_register(found: FoundPlugin, ctx: PluginContext, module: str) -> Register:
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
    loaded: object = _import_module(found, module) if found.entry_point is None else found.entry_point.load()
    if not isinstance(loaded, ModuleType):
        register: object = loaded
    elif found.manifest.kind == "model-provider" or found.category == MODELS:
        register = getattr(loaded, "register", nothing)  # it registers while it is imported
    else:
        register = getattr(loaded, "register", None) or _engine_in(loaded)
    if not callable(register):
        raise PluginError("has no register(ctx)")
    return register


def _import_module(found: FoundPlugin, name: str) -> ModuleType:
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


T = TypeVar("T")

log = logging.getLogger(__name__)


def fresh(is_one: Callable[[object], bool], registered: T, register_again: Callable[[], T | None]) -> T | None:
    """Another one; None if there is no way to one. A clone may be of another class."""
    for way, make in _ways(registered, register_again):
        try:
            made = make()
        except Exception:
            log.info("no instance of %s by %s", type(registered).__name__, way, exc_info=True)
            continue
        if made is not None and made is not registered and is_one(made):
            return made
    return None


def commands_of(engine: ContextEngine, first: Registered, run: Registered) -> dict[str, Callable[[str], Any]]:
    """The handlers of the slash commands that reach this engine: those of the run of `register` that made it or, if it
    is a clone or a copy, those of the `first` run, with this engine in place of the one that they were registered with.
    """
    copied = {normalise(one.name): rebind(one.handler, first.engine, engine) for one in reversed(first.commands)}
    if run is first:
        return copied
    return copied | {normalise(one.name): one.handler for one in reversed(run.commands)}


def _ways(registered: T, register_again: Callable[[], T | None]) -> Iterator[tuple[str, Callable[[], Any]]]:
    clone = getattr(registered, "clone_for_agent", None)
    if callable(clone):
        yield "clone_for_agent", clone
    if hasattr(type(registered), "__deepcopy__"):
        yield "its own deep copy", lambda: copy.deepcopy(registered)
    yield "register", register_again
    yield "deep copy", lambda: copy.deepcopy(registered)
