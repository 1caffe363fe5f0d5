"""Imports one plugin and runs its `register`, off the event loop and with a time limit; and makes each live session an
engine or memory provider of its own from what was registered."""

import copy
import importlib.util
import logging
import re
import shlex
import sys
from collections.abc import Callable, Generator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from itertools import count
from pathlib import Path
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar, cast

from talaria.context.engine import ContextEngine
from talaria.core.plugin_calls import PluginError
from talaria.plugins.api import PluginContext, do_nothing
from talaria.plugins.discovery import MODELS, FoundPlugin
from talaria.plugins.registered import Registered
from talaria.runtime.commands import normalise

NAMESPACE = "hermes_plugins"
LOAD_S = 30.0

_OF_HERMES = frozenset(
    {"agent", "cron", "gateway", "hermes_cli", "hermes_state", "plugins", "providers", "run_agent", "tools", "utils"}
)
_users: list[str] = []
_before: list[str | None] = []
"""What the first user found; import machinery is global."""

T = TypeVar("T")
Register = Callable[[PluginContext], object]

loading: ContextVar[PluginContext | None] = ContextVar("loading", default=None)
"""The context of the plugin that is being loaded, for code that registers without being given one."""
log = logging.getLogger(__name__)


@contextmanager
def keep_bytecode_in(folder: Path) -> Generator[None]:
    """Keeps bytecode there while plugins are loaded, also for late imports: bytecode that came with a plugin may not be
    of the code that the person has agreed to, and Python would run it."""
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


def import_and_register(found: FoundPlugin, ctx: PluginContext, module: str) -> Register:
    """Imports it, a folder as `module`, and asks it what it registers. Returns the function that asks it again. Raises
    whatever its code raises."""
    with being_loaded(ctx):
        loaded: object = _import_module(found, module) if found.entry_point is None else found.entry_point.load()
        if not isinstance(loaded, ModuleType):
            register: object = loaded
        elif found.manifest.kind == "model-provider" or found.category == MODELS:
            register = getattr(loaded, "register", do_nothing)  # it registers while it is imported
        else:
            register = getattr(loaded, "register", None) or _find_engine(loaded)
        if not callable(register):
            raise PluginError("has no register(ctx)")
        register(ctx)
    return register


@contextmanager
def being_loaded(ctx: PluginContext) -> Generator[None]:
    token = loading.set(ctx)
    try:
        yield
    finally:
        loading.reset(token)


def explain_failure(fault: PluginError, found: FoundPlugin) -> str:
    """Why it could not be loaded; follows its name."""
    missing = fault.__cause__
    if not isinstance(missing, ModuleNotFoundError) or not missing.name:
        return f"{fault} while it was loaded"
    package = missing.name.partition(".")[0]
    if package in _OF_HERMES:
        return f"uses {missing.name} of Hermes, which is not available here"
    if package == NAMESPACE or "." in missing.name:  # part of something installed: no package would provide it
        return f"needs {missing.name}, which is missing"
    packages = shlex.join(found.manifest.packages)  # only its author knows their names for pip
    how = f": {sys.executable} -m pip install {packages}" if packages else "; its README may say how to get it"
    return f"needs the Python package {package}, which is not installed{how}"


def _import_module(found: FoundPlugin, name: str) -> ModuleType:
    """Always executes it again."""
    if found.folder is None:
        raise PluginError("has no code")
    if NAMESPACE not in sys.modules:
        package = ModuleType(NAMESPACE, "Plugins that are loaded from folders.")
        package.__path__ = []
        sys.modules[NAMESPACE] = package
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
    """Two keys may differ only in characters that module names cannot have."""
    slug = re.sub("[-. ]", "_", key.replace("/", "__"))
    names = (f"{NAMESPACE}.{slug}{'_' * more}" for more in count())
    return next(name for name in names if name not in taken)


def forget(name: str) -> None:
    for known in [known for known in sys.modules if known == name or known.startswith(f"{name}.")]:
        del sys.modules[known]


def _find_engine(module: ModuleType) -> Register | None:
    """The folder of an engine may contain nothing but its class."""
    for one in vars(module).values():
        if isinstance(one, type) and issubclass(one, ContextEngine) and one is not ContextEngine:
            return lambda ctx: ctx.register_context_engine(one())
    return None


# One engine, or memory provider, for each live session. Off the event loop.


def make_fresh(is_one: Callable[[object], bool], registered: T, register_again: Callable[[], T | None]) -> T | None:
    """Another instance: a clone that it makes itself, its class's own deep copy, one from running `register` again with
    a context that only collects, or a plain deep copy; None if none of these works, and all sessions must share it."""
    ways: list[tuple[str, Callable[[], Any]]] = []
    clone = getattr(registered, "clone_for_agent", None)
    if callable(clone):
        ways.append(("clone_for_agent", clone))
    if hasattr(type(registered), "__deepcopy__"):
        ways.append(("its own deep copy", lambda: copy.deepcopy(registered)))
    ways += [("register", register_again), ("deep copy", lambda: copy.deepcopy(registered))]
    for way, make in ways:
        try:
            made = make()
        except Exception:
            log.info("no instance of %s by %s", type(registered).__name__, way, exc_info=True)
            continue
        if made is not None and made is not registered and is_one(made):  # a clone may be of another class
            return made
    return None


def commands_of(engine: ContextEngine, first: Registered, run: Registered) -> dict[str, Callable[[str], Any]]:
    """The handlers of the slash commands for this engine: those of the run of `register` that made it or, if it is a
    clone or a copy, those of the `first` run, with this engine in place of the one they were registered with."""
    copied = {normalise(one.name): rebind(one.handler, first.engine, engine) for one in reversed(first.commands)}
    if run is first:
        return copied
    return copied | {normalise(one.name): one.handler for one in reversed(run.commands)}


# The handlers of slash commands, for another engine than the one they were registered with.


def rebind(handler: Callable[..., Any], old: object, new: object) -> Callable[..., Any]:
    """The handler with `new` wherever it refers to `old`; the same one if it does not. Variables that it shares with
    other functions stay shared.

    Looks only at functions, bound methods and partials, and runs none of their code but `getattr`.
    """
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
            owner, function = self.of(value.__self__), self.of(value.__func__)
            # The new owner's own method: a clone may be of another class.
            own = getattr(owner, value.__name__, None) if owner is not value.__self__ else None
            return own if callable(own) else MethodType(function, owner)
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
        references: tuple[Any, ...] = ()
        if isinstance(value, CellType):
            with suppress(ValueError):  # empty
                references = (value.cell_contents,)
        elif isinstance(value, MethodType):
            references = (value.__self__, value.__func__)
        elif isinstance(value, partial):
            held = cast("partial[Any]", value)
            references = (held.func, *held.args, *held.keywords.values())
        elif isinstance(value, FunctionType):
            defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
            references = (*(value.__closure__ or ()), *defaults)
        return any(self._is_reached_from(held, seen) for held in references)
