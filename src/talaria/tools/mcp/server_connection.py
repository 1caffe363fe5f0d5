"""One server: reached in the background, reached again when it is gone, asked on behalf of calls. Whatever it does, a
call ends within its time and with one sentence."""

import asyncio
import importlib
import logging
import math
import sys
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec

from talaria.core.aio import in_thread
from talaria.core.clock import Clock
from talaria.core.errors import ToolFailed
from talaria.tools.mcp import cache
from talaria.tools.mcp.cache import NEVER_ANSWERED, Listing
from talaria.tools.mcp.peer import Away, Converse, NotMade, Peer, ServerAnswer
from talaria.tools.mcp.sandboxing import ConfinedServer
from talaria.tools.mcp.server_entries import ServerEntry, redact_secrets

STEADY_S = 60.0
"""A connection that has lasted so long was a good one: the next is made at once."""
MAX_PAUSE_S = 60.0
SETTLE_S = 1.0
"""A server that has changed its tools may go on changing them."""
LEAVE_S = 2.0
CLOSE_S = 6.0
MAX_TRIES = 3
MISSING = f"needs a package that is not installed; run: {sys.executable} -m pip install 'mcp>=2.3,<3'"
MAX_FAILED_STARTS = 3

log = logging.getLogger(__name__)


async def load_wire() -> Converse:
    """Half a second of imports, in a thread. Raises `Away`."""
    try:
        wire = await in_thread(lambda: importlib.import_module("talaria.tools.mcp.wire"))
    except ModuleNotFoundError as fault:
        if (fault.name or "").startswith("talaria"):
            raise
        raise Away(MISSING, is_final=True) from fault
    for name in ("mcp", "client"):  # what matters of their news is told in our words
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return wire.converse


class ServerConnection:
    def __init__(
        self,
        name: str,
        entry: ServerEntry,
        home: Path,
        clock: Clock,
        environment: Mapping[str, str],
        confined: ConfinedServer | None,
    ) -> None:
        """`confined`: its place in the sandbox; None: it runs outside, or elsewhere."""
        self.name = name
        self.entry = entry
        self.confined = confined
        self.listing: Listing | None = None
        """What it offers, as far as known: by the last connection, or by the cache."""
        self.problem = ""
        """Why it is away; goes on behind its name."""
        self._failures = 0
        """Attempts in a row that came to nothing."""
        self._file = cache.file_for(home, name, entry)
        self._clock = clock
        self._environment = environment
        self._peer: Peer | None = None
        self._is_hopeless = False
        """Somebody must change something first: calls do not wait for it."""
        self._is_closing = False
        self._news = asyncio.Event()
        """Set, and replaced, when `_peer` or `_is_hopeless` change."""
        self._tried = asyncio.Event()
        self._limit: asyncio.Future[None] | None = None
        self._settling: asyncio.Future[None] | None = None
        self._steady_from = math.inf
        self._tasks: set[asyncio.Task[Any]] = set()

    async def recall(self) -> None:
        self.listing = await in_thread(lambda: cache.read(self._file))

    def open(self) -> None:
        self._start(self._run())

    async def first_try(self) -> None:
        """Waits for the outcome of the first attempt, which takes `connect_timeout` at most."""
        await self._tried.wait()

    async def close(self) -> None:
        """Nothing is left running; a server that does not let go is let go of."""
        self._is_closing = True
        if self._settling is not None:
            self._settling.cancel()
        if self._peer is not None:
            self._peer.leave()
            await self._over(LEAVE_S)
        for task in self._tasks:
            task.cancel()
        await self._over(CLOSE_S)

    async def _over(self, seconds: float) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    def _start(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.create_task(work, name=f"mcp server {self.name}")
        self._tasks.add(task)
        task.add_done_callback(self._forget_task)
        return task

    def _forget_task(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # looked at: whoever asked may have left

    async def _run(self) -> None:
        while not self._is_closing:
            self._steady_from = math.inf
            try:
                await self._attempt()
            except Away as fault:
                self._away(str(fault), is_final=fault.is_final)
            except Exception as fault:
                log.exception("MCP server %s", self.name)
                self._away(f"failed: {type(fault).__name__}: {fault}")
            self._tried.set()
            self._failures = 0 if self._clock.monotonic() >= self._steady_from else self._failures + 1
            self._tell()
            if not self._is_closing:
                await self._clock.sleep(self._pause_s())

    def _pause_s(self) -> float:
        if self._is_hopeless:
            return MAX_PAUSE_S
        return min(2.0 ** (self._failures - 1), MAX_PAUSE_S) if self._failures else 0.0

    @property
    def _is_given_up(self) -> bool:
        """Calls do not wait for it: somebody must change something, or its program ends as soon as it is started."""
        return self._is_hopeless or (self.entry.command is not None and self._failures >= MAX_FAILED_STARTS)

    async def _attempt(self) -> None:
        """From the first word to the last. Raises `Away`."""
        converse = await load_wire()
        talk = self._start(converse(self.entry, self._environment, self.confined, self._visit))
        self._limit = asyncio.ensure_future(self._clock.expire(self.entry.connect_timeout))
        try:
            await asyncio.wait([talk, self._limit], return_when=asyncio.FIRST_COMPLETED)
            if not talk.done() and not self._limit.cancelled():
                await self._give_up(talk)
            await asyncio.wait([talk])
            if talk.cancelled():
                raise Away("was cut off")
            talk.result()
        finally:
            self._limit.cancel()
            talk.cancel()

    async def _give_up(self, talk: "asyncio.Task[None]") -> None:
        talk.cancel()
        await asyncio.wait([talk], timeout=CLOSE_S)
        if self.listing is None:
            await self._keep(NEVER_ANSWERED)
        raise Away(f"did not answer within {self.entry.connect_timeout:.0f} seconds")

    async def _visit(self, peer: Peer) -> None:
        await self._take(await peer.listing())
        self._note_arrival(peer)
        try:
            while await peer.wait_for_change() and await self._is_settled():
                await self._take(await peer.listing())
        finally:
            self._note_departure(peer)

    async def _is_settled(self) -> bool:
        """After a moment; at once, and not, when all is being closed."""
        self._settling = asyncio.ensure_future(self._clock.sleep(SETTLE_S))
        await asyncio.wait([self._settling])
        return not self._is_closing

    async def _take(self, listing: Listing) -> None:
        if listing != self.listing:
            self.listing = listing
            await self._keep(listing)

    async def _keep(self, listing: Listing) -> None:
        try:
            await in_thread(lambda: cache.write(self._file, listing))
        except OSError as fault:
            log.warning("the tools of MCP server %s are not kept in %s: %s", self.name, self._file, fault.strerror)

    def _note_arrival(self, peer: Peer) -> None:
        self._peer, self.problem, self._is_hopeless = peer, "", False
        self._steady_from = self._clock.monotonic() + STEADY_S
        self._tried.set()
        if self._limit is not None:
            self._limit.cancel()
        self._tell()

    def _note_departure(self, peer: Peer) -> None:
        if self._peer is peer:
            self._peer = None
            self._tell()

    def _away(self, reason: str, *, is_final: bool = False) -> None:
        hint = self._sandbox_hint() if not is_final and self._steady_from == math.inf else ""
        self.problem = redact_secrets(f"{reason}; {hint}" if hint else reason, self.entry)
        self._is_hopeless = is_final
        self._tell()

    def _sandbox_hint(self) -> str:
        """Why it may have failed to start."""
        if self.confined is None:
            return ""
        return self.confined.hint() or f"it runs in the sandbox, as {self.confined.setting} says"

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ServerAnswer:
        """Whoever is cancelled leaves at once; the server is told behind their back. Raises `ToolFailed`."""
        asking = self._start(self._ask(tool, arguments))
        limit = asyncio.ensure_future(self._clock.expire(self.entry.timeout))
        try:
            await asyncio.wait([asking, limit], return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
        finally:
            limit.cancel()
            asking.cancel()
        raise ToolFailed(self._too_late())

    def _too_late(self) -> str:
        seconds = f"{self.entry.timeout:.0f} seconds"
        if self._peer is None:
            why = f" (it {self.problem})" if self.problem else ""
            return f"The MCP server {self.name} is away{why} and did not come back within {seconds}; nothing was done."
        return f"The MCP server {self.name} did not answer within {seconds} and was told to stop; check what it did."

    async def _ask(self, tool: str, arguments: Mapping[str, Any]) -> ServerAnswer:
        reason = ""
        for _ in range(MAX_TRIES):
            peer = await self._present()
            try:
                answer = await peer.call(tool, arguments)
            except NotMade as fault:
                self._note_departure(peer)
                reason = redact_secrets(str(fault), self.entry)
            except Away as fault:
                self._note_departure(peer)
                reason = redact_secrets(str(fault), self.entry)
                raise ToolFailed(
                    f"The MCP server {self.name} {reason} during this call; whether it took effect is unknown."
                ) from fault
            else:
                hint = self.confined.take_hint() if self.confined else ""
                told = f"{answer.text}\n[About {self.name}: {hint}.]" if hint else answer.text
                return msgspec.structs.replace(answer, text=told)
        raise ToolFailed(f"The MCP server {self.name} {reason}; nothing was done.")

    async def _present(self) -> Peer:
        while self._peer is None:
            if self._is_given_up:
                raise ToolFailed(f"The MCP server {self.name} {self.problem}; nothing was done.")
            await self._news.wait()
        return self._peer
