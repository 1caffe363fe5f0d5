"""The sink of a live session: writes under its epoch, waits out a store that is not well, and shows events. No known
secret passes it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from talaria.core.aio import completed
from talaria.core.clock import Clock
from talaria.core.entries import Entry
from talaria.core.errors import Fenced, StoreUnavailable
from talaria.core.events import AnswerRestarted, Event, Notice, RoundEnded, TextDelta
from talaria.core.ids import Epoch
from talaria.core.redaction import Redactor
from talaria.runtime.lease import SessionLease
from talaria.runtime.transcript import Transcript
from talaria.store.base import Write

PATIENCE_S = 120.0
FIRST_WAIT_S = 0.25
LONGEST_WAIT_S = 4.0

T = TypeVar("T")
Observer = Callable[[Event], None]

log = logging.getLogger(__name__)


class Recorder:
    def __init__(
        self,
        tenure: SessionLease,
        epoch: Epoch,
        view: Transcript,
        clock: Clock,
        observer: Observer,
        redactor: Redactor | None = None,
    ) -> None:
        self._tenure = tenure
        self._epoch = epoch
        self._view = view
        self._clock = clock
        self._observer = observer
        self._redactor = redactor or Redactor()
        self._shown: list[str] = []
        self._hurried = asyncio.Event()
        self._is_closed = False
        self._settle: Callable[[Sequence[Write]], None] = lambda _: None

    async def record(self, *writes: Write) -> None:
        """Durable when it returns, also when it returns by cancellation. Raises `Fenced`, `StoreUnavailable`."""
        if self._is_closed:
            raise Fenced(f"Session {self._tenure.session} is left as it is.")
        redacted = self._redactor.value(writes)
        await completed(self.patiently(lambda: self._write(redacted)))

    async def begin(self, *writes: Write) -> bool:
        """Seize the session and record, in one commit. False: somebody has had it meanwhile, and nothing is written.

        As who seizes it, it waits for no store. Raises `StoreUnavailable`.
        """
        return await completed(self._begin((self._tenure.seizing, *self._redactor.value(writes))))

    async def _begin(self, writes: tuple[Write, ...]) -> bool:
        try:
            await self._write(writes)
        except Fenced:
            return False
        return True

    def when_durable(self, settle: Callable[[Sequence[Write]], None]) -> None:
        """Call this with the writes of each record, once they survive a crash, also if the record was cancelled."""
        self._settle = settle

    def close(self) -> None:
        """Write nothing more: the turn goes on elsewhere, or later, from what is on the disk."""
        self._is_closed = True
        self.hurry()

    def hurry(self) -> None:
        """Do not wait for the store to heal any more: somebody wants to stop."""
        self._hurried.set()

    async def patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Work on the store, again and again while that is not well. Raises `StoreUnavailable` when it stays so."""
        wait_s = FIRST_WAIT_S
        deadline = self._clock.monotonic() + PATIENCE_S
        while True:
            try:
                return await work()
            except StoreUnavailable as fault:
                if self._hurried.is_set() or self._clock.monotonic() + wait_s > deadline:
                    raise
                if wait_s == FIRST_WAIT_S:
                    self.emit(Notice(f"{fault} Waiting for it."))
            await self._pause(wait_s)
            wait_s = min(wait_s * 2, LONGEST_WAIT_S)

    async def _write(self, writes: tuple[Write, ...]) -> None:
        try:
            await self._tenure.record(self._epoch, writes)
        except asyncio.CancelledError:
            self._take(writes)  # the journal lets a cancellation through only after the commit
            raise
        self._take(writes)

    def _take(self, writes: Sequence[Write]) -> None:
        for write in writes:
            if isinstance(write, Entry):
                self._view.add(write, self._clock.now())
        self._settle(writes)

    async def _pause(self, seconds: float) -> None:
        waits = [asyncio.ensure_future(self._clock.sleep(seconds)), asyncio.ensure_future(self._hurried.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def emit(self, event: Event) -> None:
        event = self._redactor.value(event)
        match event:
            case TextDelta(text):
                self._shown.append(text)
            case AnswerRestarted() | RoundEnded():
                self._shown.clear()
            case _:
                pass
        try:
            self._observer(event)
        except Exception:
            log.exception("an observer failed on %s", type(event).__name__)

    @property
    def partial_text(self) -> str:
        """What people have seen of an answer that is not recorded."""
        return "".join(self._shown)
