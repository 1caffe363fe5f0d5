"""Decides who runs a session. Here: one task of this process for each session with work, up to a number at once.

The contract is weak on purpose (a woken session is handled at least once, by one task at a time): safety rests only on
the epoch in the journal.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from typing import Protocol

from talaria.core.ids import SessionId

SLOTS = 1024

log = logging.getLogger(__name__)

Activate = Callable[[SessionId], Awaitable[None]]


class Placement(Protocol):
    async def serve(self, activate: Activate) -> None:
        """Run woken sessions, until cancelled."""
        ...

    def wake(self, session: SessionId) -> None: ...
    async def drain(self, grace_s: float) -> bool:
        """Begin nothing more, and wait for all that do not wait for a person. False: some still run."""
        ...


class _Slot:
    """Held by a task while it works, and free for others while the task waits for a person."""

    def __init__(self, slots: asyncio.Semaphore, has_changed: asyncio.Event) -> None:
        self._slots = slots
        self._has_changed = has_changed
        self._waits = 0
        self._is_held = False

    @property
    def is_vacated(self) -> bool:
        return self._waits > 0

    async def __aenter__(self) -> None:
        await self._slots.acquire()
        self._is_held = True

    async def __aexit__(self, *_: object) -> None:
        self._free()

    @asynccontextmanager
    async def vacate(self) -> AsyncGenerator[None]:
        self._waits += 1
        self._has_changed.set()
        self._free()
        try:
            yield
        finally:
            self._waits -= 1
            if self._waits == 0:
                await self.__aenter__()

    def _free(self) -> None:
        if self._is_held:
            self._is_held = False
            self._slots.release()


_slot: ContextVar[_Slot | None] = ContextVar("slot", default=None)


@asynccontextmanager
async def park() -> AsyncGenerator[None]:
    """The running turn waits for a person, and leaves its slot to others."""
    slot = _slot.get()
    if slot is None:
        yield
        return
    async with slot.vacate():
        yield


class LocalPlacement:
    def __init__(self, slots: int = SLOTS) -> None:
        self._slots = asyncio.Semaphore(slots)
        self._woken: dict[SessionId, None] = {}
        self._running: dict[SessionId, asyncio.Task[None]] = {}
        self._held: dict[SessionId, _Slot] = {}
        self._has_changed = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self._activate: Activate | None = None
        self._is_draining = False

    async def serve(self, activate: Activate) -> None:
        async with asyncio.TaskGroup() as group:
            self._group, self._activate = group, activate
            try:
                for session in tuple(self._woken):
                    self._start(session)
                await asyncio.Event().wait()
            finally:
                self._group = None

    def wake(self, session: SessionId) -> None:
        self._woken[session] = None
        self._start(session)

    @property
    def running(self) -> int:
        return len(self._running)

    async def drain(self, grace_s: float) -> bool:
        self._is_draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while not all(slot.is_vacated for slot in self._held.values()):
                    self._has_changed.clear()
                    await self._has_changed.wait()
        return not self._running

    async def wait_until_idle(self, grace_s: float) -> None:
        """Wait until nothing runs, for at most `grace_s`."""
        if self._running:
            await asyncio.wait(self._running.values(), timeout=grace_s)

    def _start(self, session: SessionId) -> None:
        if self._group is None or self._is_draining or session in self._running:
            return
        self._running[session] = self._group.create_task(self._run(session), name=f"session {session}")

    async def _run(self, session: SessionId) -> None:
        slot = self._held[session] = _Slot(self._slots, self._has_changed)
        _slot.set(slot)
        try:
            async with slot:
                while session in self._woken and not self._is_draining and self._activate is not None:
                    del self._woken[session]
                    await self._activate(session)
        except Exception:  # one conversation must not end the others
            log.exception("session %s broke", session)
        finally:
            del self._running[session], self._held[session]
            self._has_changed.set()
