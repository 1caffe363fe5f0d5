"""The library API: `from talaria import Agent, tool`.

agent = Agent(tools=[add])
print(agent.ask_sync("What is 2 + 3?").text)"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Self, TypeVar

from talaria.app.build import open_application
from talaria.app.settings import read_settings
from talaria.config import paths
from talaria.core.aio import in_thread
from talaria.core.errors import SessionBusy, TalariaError
from talaria.core.events import Event
from talaria.core.ids import SessionId
from talaria.core.messages import user
from talaria.providers.catalog import catalog
from talaria.runtime.lease import Observer
from talaria.runtime.session import LiveSession, ignore
from talaria.runtime.turn_runner import Report
from talaria.tools.base import Tool
from talaria.tools.function import tool

__all__ = ["Agent", "Report", "tool"]

T = TypeVar("T")
Ability = Tool | Callable[..., Any]

_turns_around: ContextVar[tuple["Agent", ...]] = ContextVar("turns_around", default=())
"""The agents whose turns are running the current code, for example as a tool."""


class Agent:
    """One conversation, stored under `session`, which can be continued in this process or a later one.

    Turns run one after another, even if several tasks ask at once.
    """

    def __init__(
        self,
        *,
        model: str | None = None,
        tools: Iterable[Ability] | None = None,
        session: str | None = None,
        instructions: str = "",
        home: Path | str | None = None,
        cwd: Path | str | None = None,
        max_rounds: int | None = None,
    ) -> None:
        """`tools` are typed functions or tools; by default, the built-in ones. Nothing is opened before first use."""
        self._model = model
        self._tools = None if tools is None else [one if isinstance(one, Tool) else tool(one) for one in tools]
        self._session_id = SessionId(session) if session else None
        self._instructions = instructions
        self._home = Path(home) if home is not None else paths.home()
        self._cwd = Path(cwd) if cwd is not None else Path.cwd()
        self._max_rounds = max_rounds
        self._stack = AsyncExitStack()
        self._live: LiveSession | None = None
        self._runner: asyncio.Runner | None = None
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Interrupts a turn that is still running, such as that of a stream that was not read to its end."""
        self.interrupt()
        async with self._lock:
            live, self._live = self._live, None
            if live is not None:
                await live.close()
            await self._stack.aclose()
        self._lock = asyncio.Lock()  # the next use may be in another event loop

    async def ask(self, text: str, on_event: Observer = ignore) -> Report:
        """Run one turn and return how it ended. Raises the turn's error if it failed."""
        return _raise_error(await self._turn(lambda live: live.ask(user(text), on_event)))

    async def stream(self, text: str) -> AsyncGenerator[Event]:
        """The turn's events as they happen; the last one is `TurnDone`. Leaving early interrupts the turn."""
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        asking = self._turn(lambda live: live.ask(user(text), events.put_nowait))
        turn = asyncio.create_task(asking, name="library turn")  # it has the lock: a forgotten stream blocks nothing
        turn.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            _raise_error(turn.result())
        finally:
            turn.cancel()
            await asyncio.wait([turn])

    async def resume(self, on_event: Observer = ignore) -> Report | None:
        """Finish a turn that a crash left open."""
        report = await self._turn(lambda live: live.resume(on_event))
        return None if report is None else _raise_error(report)

    def steer(self, text: str) -> bool:
        """Give the model a note in its next round. Returns False if no turn is running."""
        running = self._live and self._live.running
        return running is not None and running.steer(text)

    def interrupt(self) -> bool:
        running = self._live and self._live.running
        return running is not None and running.interrupt()

    @property
    def session(self) -> str | None:
        """The conversation's id, once it has begun."""
        return self._live.id if self._live is not None else self._session_id

    def ask_sync(self, text: str, on_event: Observer = ignore) -> Report:
        """For programs without an event loop; `close` (or `with`) cleans up."""
        return self.run_sync(self.ask(text, on_event))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._runner is not None:
            self.run_sync(self.__aexit__())
            self._runner.close()
            self._runner = None

    def run_sync(self, work: Coroutine[Any, Any, T]) -> T:
        """Run one of the async methods without an event loop of your own."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(work)

    async def _turn(self, work: Callable[[LiveSession], Awaitable[T]]) -> T:
        around = _turns_around.get()
        if self in around and self._lock.locked():
            raise SessionBusy("A tool cannot ask the agent whose turn it is part of: it would wait for itself.")
        async with self._lock:
            token = _turns_around.set((*around, self))
            try:
                if self._live is None:
                    self._live = await self._open()
                return await work(self._live)
            finally:
                _turns_around.reset(token)

    async def _open(self) -> LiveSession:
        await in_thread(catalog)  # read once per process, and not in the event loop
        settings = await in_thread(lambda: read_settings(self._home))
        app = await self._stack.enter_async_context(
            open_application(settings, model=self._model, tools=self._tools, kind="library")
        )
        row = await app.store.sessions.get(self._session_id) if self._session_id else None
        return app.session(
            row,
            id=self._session_id,
            cwd=self._cwd,
            origin="library",
            max_rounds=self._max_rounds,
            instructions=self._instructions,
        )


def _raise_error(report: Report) -> Report:
    if isinstance(report.error, TalariaError):
        raise report.error
    return report
