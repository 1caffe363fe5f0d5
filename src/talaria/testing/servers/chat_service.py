"""What the fake chat services share: how a test talks to them, what it sees there, and the faults that it causes."""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
from aiohttp import web

from talaria.testing.patience import PATIENCE_S

R = TypeVar("R", bound=web.StreamResponse)


class Refusal(msgspec.Struct, frozen=True):
    """The call is answered with an error and has no effect."""

    status: int
    retry_after_s: float | None = None
    words: str = ""
    """Instead of the service's usual error text."""
    extra: Mapping[str, Any] = {}
    """Additional fields of the answer."""


class LostAnswer(msgspec.Struct, frozen=True):
    """The call takes effect, but the connection is cut before the answer."""


class Slow(msgspec.Struct, frozen=True):
    """The answer comes late."""

    seconds: float


Fault = Refusal | LostAnswer | Slow


class SeenMessage(msgspec.Struct, frozen=True):
    """A message from the bot, as people see it now."""

    id: str
    text: str
    """Without markup."""
    edits: int = 0
    buttons: tuple[tuple[str, str], ...] = ()
    """Label and data."""
    thread: str = ""
    reply_to: str = ""
    file: str = ""
    """The name of an attached file."""


class ChatService(Protocol):
    """A loopback server that speaks the protocol of a chat service."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """For `gateway.platforms.NAME`, so that a gateway connects to this server."""
        ...

    async def say(self, text: str, *, user: str = "1001", chat: str = "", thread: str = "") -> str:
        """Somebody writes to the bot or, with `chat`, to a group. Returns the message's id."""
        ...

    async def press(self, message: str, data: str, *, user: str = "1001", chat: str = "") -> None:
        """Somebody presses a button under a message from the bot."""
        ...

    def list_messages(self, *, user: str = "1001", chat: str = "") -> Sequence[SeenMessage]:
        """The bot's messages there, oldest first, without deleted ones."""
        ...

    async def wait_for(self, count: int, *, user: str = "1001", chat: str = "") -> Sequence[SeenMessage]:
        """Waits until the bot has sent `count` messages there."""
        ...

    def fault(self, method: str, *faults: Fault) -> None:
        """Faults for the next calls of a method, in order; later calls succeed."""
        ...

    def calls(self, method: str) -> Sequence[Mapping[str, Any]]:
        """The arguments of each call of a method, successful or not; `at` is the monotonic time."""
        ...


class Loopback:
    """A port, a record of the calls, and the faults that are still to come."""

    def __init__(self) -> None:
        self._faults: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._calls: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
        self._changed = asyncio.Condition()

    def fault(self, method: str, *faults: Fault) -> None:
        self._faults[method].extend(faults)

    def forget_faults(self) -> None:
        """From now on, all calls succeed."""
        self._faults.clear()

    def calls(self, method: str) -> Sequence[Mapping[str, Any]]:
        return tuple(self._calls[method])

    async def wait_for_calls(self, method: str, count: int) -> Sequence[Mapping[str, Any]]:
        await self._until(lambda: len(self.calls(method)) >= count, f"{count} calls of {method}")
        return self.calls(method)

    async def _open(
        self, app: web.Application, port: int = 0, *, shutdown_s: float = 0.1, cancels: bool = False
    ) -> int:
        """Returns the port. `cancels`: a request is cancelled when its client hangs up."""
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=shutdown_s, handler_cancellation=cancels)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        return self._runner.addresses[0][1]

    def _record_call(self, method: str, given: Mapping[str, Any]) -> Fault | None:
        """Records the call; returns its fault."""
        self._calls[method].append({**given, "at": time.monotonic()})
        return self._faults[method].popleft() if self._faults[method] else None

    async def _tell_change(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S), self._changed:
                await self._changed.wait_for(holds)
        except TimeoutError:
            made = ", ".join(f"{len(calls)} of {name}" for name, calls in self._calls.items() if calls)
            raise TimeoutError(f"waited {PATIENCE_S} s for {what}; calls so far: {made or 'none'}") from None


async def deliver(request: web.Request, response: R, fault: Fault | None) -> R:
    """Delays the response, or cuts the connection, if that is the fault."""
    if isinstance(fault, Slow):
        await asyncio.sleep(fault.seconds)
    if isinstance(fault, LostAnswer) and request.transport is not None:
        request.transport.abort()
    return response
