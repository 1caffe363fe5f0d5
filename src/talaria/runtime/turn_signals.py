"""Signals from other processes: a turn is stopped or steered, or its question is answered, by whoever may do so.

A signal is a row before it is obeyed. The process that runs the turn looks for new ones whenever another process has
written to the store, and at once when it is told over its live socket. What people do in the process that runs the turn
needs no signal.

Queued lines are for what comes after the turn, so they are not obeyed here: see `LiveSession.ask_queued`.
"""

import asyncio
import logging
import os
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from talaria.core.errors import BadInput, TalariaError
from talaria.core.ids import SessionId, TurnId
from talaria.runtime.live_socket import mention_signal
from talaria.runtime.store_changes import StoreChanges
from talaria.runtime.turn_runner import RunningTurn
from talaria.store.base import Store
from talaria.store.signal_port import NewSignal, Signal, SignalId, SignalKind, Signals

LOOK_S = 10.0
"""After which it looks by itself, even if nothing seems to be new."""
OBEYED_WITHIN_S = 5.0
SENDER_FIRST_S = 2.0
"""A queued line is asked by the terminal that sent it, unless that has not done so for this long."""
SEEN_WITHIN_S = 0.5
"""That it was obeyed; sooner, if another process has done so."""
OVER = "The turn had ended before it came."

log = logging.getLogger(__name__)


class SignalReader:
    """Obeys signals for the turns that run in this process."""

    def __init__(self, signals: Signals, changes: StoreChanges) -> None:
        self._signals = signals
        self._changes = changes
        self._turns: dict[SessionId, RunningTurn] = {}
        self._over: set[tuple[SessionId, TurnId]] = set()
        """Turns that have ended since the last look: what came for them meanwhile is late. A turn that was left open
        gets its signals where it is resumed, and the session's next turn may run in another process."""
        self._unread: dict[SignalId, RunningTurn] = {}
        """Notes that were handed to a turn, and that the model has not read yet, as far as we know."""
        self.queued: set[SessionId] = set()
        """Sessions whose turn ran here when others queued lines. Whoever finds none discards the session."""
        self._has_news = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if (reading := self._reading) is not None:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
        if self._over:
            await self._try_to_obey()

    @contextmanager
    def obey_during(self, session: SessionId, turn: RunningTurn, *, is_resumed: bool) -> Generator[None]:
        """A resumed turn may have signals from before, which a process that died has not read."""
        self._turns[session] = turn
        if is_resumed:
            self.look()
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="signals")
        try:
            yield
        finally:
            del self._turns[session]
            if not turn.is_open:
                self._over.add((session, turn.turn.id))
            if unread := [id for id, one in self._unread.items() if one is turn]:
                for id in unread:
                    del self._unread[id]
                self.look()

    def look(self) -> None:
        """There may be a new one."""
        self._has_news.set()

    async def _read(self) -> None:
        with self._changes.subscribe(self._has_news):
            while self._turns or self._over:
                self._has_news.clear()
                await self._try_to_obey()
                with suppress(TimeoutError):  # goes on for a while after the last turn: the next one often comes soon
                    async with asyncio.timeout(LOOK_S):
                        await self._has_news.wait()

    async def _try_to_obey(self) -> None:
        over = frozenset(self._over)
        try:
            await self._obey_new(over)
        except TalariaError as fault:
            log.warning("signals are not read: %s", fault)
        self._over -= over

    async def _obey_new(self, over: Collection[tuple[SessionId, TurnId]]) -> None:
        new = await self._signals.list_new({*self._turns, *(session for session, _ in over)})
        for id in self._unread.keys() - {one.id for one in new}:
            del self._unread[id]  # it was settled in the commit in which the model read it
        for signal in new:
            if signal.kind == "queue":
                self.queued.add(signal.session)
                continue
            turn = self._turns.get(signal.session)
            if turn is None and (signal.session, signal.turn) not in over:
                continue
            if turn is None or turn.turn.id != signal.turn:
                await self._signals.settle(signal.id, "late", OVER)
            elif signal.kind == "stop":
                is_late = not turn.interrupt()
                await self._signals.settle(signal.id, "late" if is_late else "obeyed", OVER if is_late else "")
            elif signal.kind == "answer":
                why_not = turn.questions.answer(signal)
                await self._signals.settle(signal.id, "late" if why_not else "obeyed", why_not)
            elif signal.kind == "steer" and signal.id not in self._unread:
                if turn.steer(signal.text, signal=signal.id):
                    self._unread[signal.id] = turn
                else:
                    await self._signals.settle(signal.id, "late", OVER)


class SignalSender:
    """For people who did not start the turn, or not in this process."""

    def __init__(self, store: Store, changes: StoreChanges, folder: Path | None, *, by: str, surface: str) -> None:
        self._store = store
        self._changes = changes
        self._folder = folder
        self._by = by
        self._surface = surface

    async def stop(self, session: SessionId, key: str = "") -> Signal:
        """Raises `BadInput` if no turn is open. The same `key` is the same request."""
        signal = await self._send(session, "stop", key)
        return await self._wait_until_settled(signal)

    async def steer(self, session: SessionId, text: str, key: str = "") -> Signal:
        """The model reads it in its next round; if it never does, the signal becomes late. Raises `BadInput`."""
        return await self._send(session, "steer", key, text)

    async def answer(self, session: SessionId, question: str, answer: str, text: str = "", key: str = "") -> Signal:
        """`text`: with a no, what to do instead; or the person's own words. Raises `BadInput`."""
        signal = await self._send(session, "answer", key, text, question, answer)
        return await self._wait_until_settled(signal)

    async def queue(self, session: SessionId, text: str, key: str = "") -> Signal:
        """The next message of the conversation once nothing runs, whoever asks it. Raises `UnknownSession`."""
        row = await self._store.sessions.get(session)
        turn = (row.open_turn if row else None) or TurnId("")
        return await self._store.signals.send(self._new(session, turn, "queue", key, text))

    async def _send(
        self, session: SessionId, kind: SignalKind, key: str, text: str = "", question: str = "", answer: str = ""
    ) -> Signal:
        row = await self._store.sessions.get(session)
        if row is None or row.open_turn is None:
            raise BadInput("Nothing is running in this conversation.")
        signal = await self._store.signals.send(self._new(session, row.open_turn, kind, key, text, question, answer))
        holder = await self._store.journal.holder(session)
        if holder is not None and self._folder is not None:
            await mention_signal(self._folder, holder)
        return await self._settle_if_over(signal)  # a turn that was open now will be seen to end by whoever runs it

    def _new(self, session: SessionId, turn: TurnId, kind: SignalKind, key: str, *said: str) -> NewSignal:
        return NewSignal(key or os.urandom(8).hex(), session, turn, kind, self._by, self._surface, *said)

    async def _settle_if_over(self, signal: Signal) -> Signal:
        row = await self._store.sessions.get(signal.session) if signal.state == "new" else None
        if row is None or row.open_turn == signal.turn:
            return signal
        await self._store.signals.settle(signal.id, "late", OVER)
        return await self._find(signal)

    async def _find(self, signal: Signal) -> Signal:
        return await self._store.signals.find(signal.key) or signal

    async def _wait_until_settled(self, signal: Signal) -> Signal:
        changed = asyncio.Event()
        with self._changes.subscribe(changed), suppress(TimeoutError):
            async with asyncio.timeout(OBEYED_WITHIN_S):
                while signal.state == "new":
                    with suppress(TimeoutError):
                        async with asyncio.timeout(SEEN_WITHIN_S):
                            await changed.wait()
                    changed.clear()
                    signal = await self._settle_if_over(await self._find(signal))
        return signal
