"""A handler that holds one object, made to hold another: a plugin's slash command was registered with one engine, and
each conversation has an engine of its own. Looks only at functions, bound methods and partials; runs no code of theirs
but `getattr`."""

from collections.abc import Callable, Iterator
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any, cast


def rebound(handler: Callable[..., Any], old: object, new: object) -> Callable[..., Any]:
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
        return any(self._is_reached_from(held, seen) for held in _held(value))


def _held(value: Any) -> Iterator[Any]:
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
