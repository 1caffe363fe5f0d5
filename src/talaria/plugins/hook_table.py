"""Who listens to which hook, and what they answer.

A callback that raises is left out of that call; one that does not return in time is not called again before it has
returned. Both are its plugin's problem, and nobody else's.
"""

import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from talaria.core.clock import Clock
from talaria.plugin_calls import Background, PluginError, as_text, fitting, returned, within
from talaria.plugins.problems import Problems

HOOK_S = 10.0
SCHEMA_VERSION = 1

Callback = Callable[..., Any]
log = logging.getLogger(__name__)


class HookTable:
    def __init__(self, clock: Clock, problems: Problems) -> None:
        self.callbacks: dict[str, list[Callback]] = {}
        self.problems = problems
        self._owners: dict[int, tuple[str, Background]] = {}
        self._nobodys = ("?", Background())
        """Of callbacks that somebody has put into the table without us."""
        self._hanging: set[int] = set()
        self._clock = clock

    def add(self, owner: str, name: str, callback: Callback, background: Background) -> None:
        self.callbacks.setdefault(name, []).append(callback)
        self._owners[id(callback)] = (owner, background)

    @contextmanager
    def unchanged(self) -> Generator[None]:
        """What is put into the table meanwhile goes again. Of those before none is missing at any moment: it may be a
        guard."""
        kept = [(name, callbacks, list(callbacks)) for name, callbacks in tuple(self.callbacks.items())]
        try:
            yield
        finally:
            for name, callbacks, content in kept:
                callbacks[:] = content
                self.callbacks[name] = callbacks
            for name in self.callbacks.keys() - {name for name, _, _ in kept}:
                del self.callbacks[name]

    def close(self) -> None:
        self._nobodys[1].close()

    async def invoke(self, name: str, **facts: Any) -> list[Any]:
        """What those who answer say, in the order in which they came."""
        answers: list[Any] = []
        for callback in tuple(self.callbacks.get(name, ())):
            answer = None if id(callback) in self._hanging else await self._answer(name, callback, facts)
            if answer is not None:
                answers.append(answer)
        return answers

    async def read(self, look: Callable[[], Any]) -> Any:
        """What has been through their hands may run their code when it is looked at; None if that fails."""
        try:
            return await within(look, HOOK_S, self._clock)
        except PluginError as fault:
            log.warning("what a plugin has changed cannot be used: it %s", fault)
            return None

    async def _answer(self, name: str, callback: Callback, facts: dict[str, Any]) -> Any:
        owner, background = self._owners.get(id(callback), self._nobodys)
        ended = partial(self._hanging.discard, id(callback))
        try:
            return await within(lambda: _heard(callback, facts, background), HOOK_S, self._clock, when_late=ended)
        except PluginError as fault:
            log.warning("hook %s of plugin %s %s", name, owner, fault)
            if fault.has_hung:
                self._hanging.add(id(callback))
            self.problems.add(owner, f"hook {name}", fault)
            return None


def _heard(callback: Callback, facts: Mapping[str, Any], background: Background) -> Any:
    told = fitting(callback, {"telemetry_schema_version": SCHEMA_VERSION, **facts})
    return _plain(returned(lambda: callback(**told), background))


def _plain(answer: Any) -> Any:
    """As data that can be looked at without running code of theirs."""
    if isinstance(answer, str):
        return as_text(answer)
    if not isinstance(answer, dict):
        return answer
    return {as_text(key): _plain_value(key, value) for key, value in cast("dict[Any, Any]", answer).items()}


def _plain_value(key: Any, value: Any) -> Any:
    is_said = isinstance(value, str) or (key == "message" and value is not None)
    return as_text(value) if is_said else value
