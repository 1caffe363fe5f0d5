"""The connection to one server: opened in the background, reopened when it is lost, and used by calls.

Whatever the server does, a call ends within its time limit and with one sentence.
"""

import asyncio
import importlib
import logging
import math
import sys
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from talaria.core.aio import in_thread
from talaria.core.clock import Clock
from talaria.core.errors import ToolFailed
from talaria.tools.mcp.offers import (
    NEVER_ANSWERED,
    CallNotMade,
    Listing,
    ServerAnswer,
    ServerUnavailable,
    listing_file,
    read_listing,
    write_listing,
)
from talaria.tools.mcp.sandboxing import ConfinedServer
from talaria.tools.mcp.server_entries import ServerEntry, redact_secrets

if TYPE_CHECKING:
    from talaria.tools.mcp.wire import WirePeer

STEADY_S = 60.0
"""If a connection lasted this long, the next attempt is made at once."""
MAX_PAUSE_S = 60.0
SETTLE_S = 1.0
"""A server that has changed its tools may go on changing them."""
LEAVE_S = 2.0
CLOSE_S = 6.0
MAX_TRIES = 3
MISSING = f"needs a package that is not installed; run: {sys.executable} -m pip install 'mcp>=2.3,<3'"
MAX_FAILED_STARTS = 3

log = logging.getLogger(__name__)


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
        """From the last connection, or else from the cache."""
        self.problem = ""
        """Why it is away; continues a sentence that begins with its name."""
        self._failures = 0
        """In a row."""
        self._file = listing_file(home, name, entry)
        self._clock = clock
        self._environment = environment
        self._peer: WirePeer | None = None
        self._is_hopeless = False
        """Somebody must change something first, so calls do not wait for it."""
        self._is_closing = False
        self._news = asyncio.Event()
        """Set and replaced when `_peer` or `_is_hopeless` changes."""
        self._tried = asyncio.Event()
        self._limit: asyncio.Future[None] | None = None
        self._settling: asyncio.Future[None] | None = None
        self._steady_from = math.inf
        self._tasks: set[asyncio.Task[Any]] = set()

    async def load_listing(self) -> None:
        self.listing = await in_thread(lambda: read_listing(self._file))

    def open(self) -> None:
        self._start(self._run())

    async def first_try(self) -> None:
        """Waits for the outcome of the first attempt, which takes `connect_timeout` at most."""
        await self._tried.wait()

    async def close(self) -> None:
        """Leaves nothing running; does not wait forever for a server that does not stop."""
        self._is_closing = True
        if self._settling is not None:
            self._settling.cancel()
        if self._peer is not None:
            self._peer.leave()
            await self._wait_for_tasks(LEAVE_S)
        for task in self._tasks:
            task.cancel()
        await self._wait_for_tasks(CLOSE_S)

    async def _wait_for_tasks(self, seconds: float) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    def _start(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        def forget(task: "asyncio.Task[Any]") -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                task.exception()  # retrieved here, as the caller may be gone

        task = asyncio.create_task(work, name=f"mcp server {self.name}")
        self._tasks.add(task)
        task.add_done_callback(forget)
        return task

    async def _run(self) -> None:
        while not self._is_closing:
            self._steady_from = math.inf
            try:
                await self._attempt()
            except ServerUnavailable as fault:
                self._note_failure(str(fault), is_final=fault.is_final)
            except Exception as fault:
                log.exception("MCP server %s", self.name)
                self._note_failure(f"failed: {type(fault).__name__}: {fault}")
            self._tried.set()
            self._failures = 0 if self._clock.monotonic() >= self._steady_from else self._failures + 1
            self._tell()
            if self._is_closing:
                return
            pause_s = min(2.0 ** (self._failures - 1), MAX_PAUSE_S) if self._failures else 0.0
            await self._clock.sleep(MAX_PAUSE_S if self._is_hopeless else pause_s)

    async def _attempt(self) -> None:
        """One whole conversation. Raises `ServerUnavailable`."""
        try:  # half a second of imports
            wire = await in_thread(lambda: importlib.import_module("talaria.tools.mcp.wire"))
        except ModuleNotFoundError as fault:
            if (fault.name or "").startswith("talaria"):
                raise
            raise ServerUnavailable(MISSING, is_final=True) from fault
        for name in ("mcp", "client"):  # we report what matters in our own words
            logging.getLogger(name).setLevel(logging.CRITICAL)
        talk = self._start(wire.converse(self.entry, self._environment, self.confined, self._visit))
        self._limit = asyncio.ensure_future(self._clock.expire(self.entry.connect_timeout))
        try:
            await asyncio.wait([talk, self._limit], return_when=asyncio.FIRST_COMPLETED)
            if not talk.done() and not self._limit.cancelled():
                talk.cancel()
                await asyncio.wait([talk], timeout=CLOSE_S)
                if self.listing is None:
                    await self._save_listing(NEVER_ANSWERED)
                raise ServerUnavailable(f"did not answer within {self.entry.connect_timeout:.0f} seconds")
            await asyncio.wait([talk])
            if talk.cancelled():
                raise ServerUnavailable("was cut off")
            talk.result()
        finally:
            self._limit.cancel()
            talk.cancel()

    async def _visit(self, peer: "WirePeer") -> None:
        await self._update_listing(peer)
        self._peer, self.problem, self._is_hopeless = peer, "", False
        self._steady_from = self._clock.monotonic() + STEADY_S
        self._tried.set()
        if self._limit is not None:
            self._limit.cancel()
        self._tell()
        try:
            while await peer.wait_for_change():
                self._settling = asyncio.ensure_future(self._clock.sleep(SETTLE_S))
                await asyncio.wait([self._settling])
                if self._is_closing:
                    break
                await self._update_listing(peer)
        finally:
            self._note_departure(peer)

    async def _update_listing(self, peer: "WirePeer") -> None:
        listing = await peer.listing()
        if listing != self.listing:
            self.listing = listing
            await self._save_listing(listing)

    async def _save_listing(self, listing: Listing) -> None:
        try:
            await in_thread(lambda: write_listing(self._file, listing))
        except OSError as fault:
            log.warning("cannot save the tools of MCP server %s in %s: %s", self.name, self._file, fault.strerror)

    def _note_departure(self, peer: "WirePeer") -> None:
        if self._peer is peer:
            self._peer = None
            self._tell()

    def _note_failure(self, reason: str, *, is_final: bool = False) -> None:
        has_started = self._steady_from < math.inf
        if self.confined is not None and not is_final and not has_started:
            hint = self.confined.hint() or f"it runs in the sandbox, as {self.confined.setting} says"
            reason = f"{reason}; {hint}"
        self.problem = redact_secrets(reason, self.entry)
        self._is_hopeless = is_final
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ServerAnswer:
        """A cancelled caller leaves at once; the server is told in the background. Raises `ToolFailed`."""
        asking = self._start(self._ask(tool, arguments))
        limit = asyncio.ensure_future(self._clock.expire(self.entry.timeout))
        try:
            await asyncio.wait([asking, limit], return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
        finally:
            limit.cancel()
            asking.cancel()
        server, seconds = f"The MCP server {self.name}", f"{self.entry.timeout:.0f} seconds"
        if self._peer is None:
            why = f" (it {self.problem})" if self.problem else ""
            raise ToolFailed(f"{server} is away{why} and did not come back within {seconds}; nothing was done.")
        raise ToolFailed(f"{server} did not answer within {seconds} and was told to stop; check what it did.")

    async def _ask(self, tool: str, arguments: Mapping[str, Any]) -> ServerAnswer:
        reason = ""
        for _ in range(MAX_TRIES):
            while (peer := self._peer) is None:
                ends_at_once = self.entry.command is not None and self._failures >= MAX_FAILED_STARTS
                if self._is_hopeless or ends_at_once:
                    raise ToolFailed(f"The MCP server {self.name} {self.problem}; nothing was done.")
                await self._news.wait()
            try:
                answer = await peer.call(tool, arguments)
            except CallNotMade as fault:
                self._note_departure(peer)
                reason = redact_secrets(str(fault), self.entry)
            except ServerUnavailable as fault:
                self._note_departure(peer)
                reason = redact_secrets(str(fault), self.entry)
                raise ToolFailed(
                    f"The MCP server {self.name} {reason} during this call; whether it took effect is unknown."
                ) from fault
            else:
                hint = self.confined.take_hint() if self.confined else ""
                text = f"{answer.text}\n[About {self.name}: {hint}.]" if hint else answer.text
                return msgspec.structs.replace(answer, text=text)
        raise ToolFailed(f"The MCP server {self.name} {reason}; nothing was done.")
