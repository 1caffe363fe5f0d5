"""What a process tells others of the sessions that it runs: over a socket in `run/`, named by its owner.

It carries what people are shown, and nothing that has to survive: losing it loses nothing. Frames are lines of JSON.
Whoever can open the socket can read the home anyway.
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

import msgspec

from talaria.core.aio import in_threads
from talaria.core.entries import Recorded
from talaria.core.events import Event
from talaria.core.ids import Epoch, OwnerId, SessionId

MAX_PATH_BYTES = 100
"""Of a socket's path; the kernel takes few more."""
MAX_FRAME_BYTES = 64 * 2**20
CONNECT_S = 2.0

log = logging.getLogger(__name__)


class Settled(msgspec.Struct, frozen=True, tag="settled"):
    """An entry of the journal."""

    recorded: Recorded
    was_live: bool = False
    """Live events have said the same."""


class Live(msgspec.Struct, frozen=True, tag="live", omit_defaults=True):
    epoch: Epoch
    number: int
    """Grows for as long as the process lives, whatever it runs."""
    event: Event
    first: int = 0
    """If it stands for several pieces of text: the number of the first of them."""


class Joined(msgspec.Struct, frozen=True, tag="joined"):
    """Comes first. What follows was not in the journal yet."""

    seq: int
    """The last entry in the journal."""
    epoch: Epoch
    since: int
    """Live events up to this number belong to what the process did in the session before."""
    kept: tuple[Live, ...]
    """Live events that were told already, and are not settled."""


class Released(msgspec.Struct, frozen=True, tag="released", omit_defaults=True):
    """The process does not run the session any more."""

    left_open: bool = False
    """In the middle of a turn: what was told live of it is void."""


class FellBehind(msgspec.Struct, frozen=True, tag="fell_behind"):
    """You read too slowly, and have missed something. Begin again."""


Frame = Joined | Settled | Live | Released | FellBehind


class WatchRequest(msgspec.Struct, frozen=True, tag="watch"):
    session: SessionId


class LookRequest(msgspec.Struct, frozen=True, tag="look"):
    """There is a signal in the store for a session that you run."""


Request = WatchRequest | LookRequest

_encode = msgspec.json.Encoder().encode
_decode_frame = msgspec.json.Decoder(Frame).decode
_decode_request = msgspec.json.Decoder(Request).decode


class FrameSource(Protocol):
    async def next(self) -> Frame | None:
        """The first is `Joined`, if the process runs the session. None: the process is gone."""
        ...


class LiveSocket:
    """The end of the process that runs sessions."""

    def __init__(
        self,
        folder: Path,
        owner: OwnerId,
        subscribe: Callable[[SessionId], AbstractContextManager[FrameSource]],
        on_signal: Callable[[], None],
        flush_s: float,
    ) -> None:
        """`on_signal` is called when somebody says that there is a signal. `flush_s`: how long the end waits for those
        who have not read the last frames."""
        self._folder = folder
        self._owner = owner
        self._subscribe = subscribe
        self._on_signal = on_signal
        self._flush_s = flush_s
        self._connections: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def serve(self) -> None:
        """Until cancelled. Without the socket, others see what is settled, and no more."""
        try:
            async with in_threads(_listening(self._folder, self._owner)) as listener:
                server = await asyncio.start_unix_server(self._accept, sock=listener, start_serving=False)
                try:
                    await server.start_serving()
                    await asyncio.Event().wait()
                finally:
                    self._is_closed = True
                    asyncio.get_running_loop().remove_reader(listener)
                    await asyncio.sleep(0)  # asyncio loses what it has accepted, but not handed over, when it closes
                    server.close()
                    await self._end_connections()
        except OSError as fault:
            log.warning("other processes cannot watch what runs here: %s", fault)

    async def _end_connections(self) -> None:
        if self._connections:
            await asyncio.wait(self._connections, timeout=self._flush_s)
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_closed:
            writer.transport.abort()
            return

        def end(task: asyncio.Task[None]) -> None:
            self._connections.discard(task)
            if task.cancelled():
                writer.transport.abort()  # this process ends, and does not wait until everything is read
            writer.close()

        task = asyncio.create_task(self._handle(reader, writer), name="watcher")
        self._connections.add(task)
        task.add_done_callback(end)  # it may be cancelled before its first step

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if not (line := await reader.readline()):  # somebody has only looked whether we are here
                return
            match _decode_request(line):
                case WatchRequest(session):
                    await self._tell(session, reader, writer)
                case _:
                    self._on_signal()
        except (msgspec.MsgspecError, OSError, ValueError) as fault:
            log.debug("a watcher is gone: %s", fault)

    async def _tell(self, session: SessionId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until the watcher leaves, falls behind, or the session is not run here any more."""
        with self._subscribe(session) as frames:
            leaving = asyncio.create_task(reader.read(1), name="watcher leaves")
            telling = asyncio.create_task(self._write(frames, writer), name="tell a watcher")
            try:
                await asyncio.wait([leaving, telling], return_when=asyncio.FIRST_COMPLETED)
            finally:
                leaving.cancel()
                telling.cancel()
                await asyncio.gather(leaving, telling, return_exceptions=True)

    async def _write(self, frames: FrameSource, writer: asyncio.StreamWriter) -> None:
        while (frame := await frames.next()) is not None:
            writer.write(_encode(frame) + b"\n")
            await writer.drain()
            if isinstance(frame, Released | FellBehind):
                return


class _RemoteFrames:
    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    async def next(self) -> Frame | None:
        try:
            return _decode_frame(await _read_line(self._reader))
        except (OSError, EOFError, ValueError, msgspec.MsgspecError) as fault:
            log.debug("the process that runs the session is gone: %s", fault)
            return None


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    """May be longer than what the reader takes from the socket ahead of us. Raises `EOFError`, `ValueError`."""
    parts: list[bytes] = []
    while True:
        try:
            return b"".join((*parts, await reader.readuntil(b"\n")))
        except asyncio.LimitOverrunError as overrun:
            parts.append(await reader.readexactly(overrun.consumed))
            if sum(map(len, parts)) > MAX_FRAME_BYTES:
                raise ValueError("a frame is too long") from None


@asynccontextmanager
async def watch_remotely(folder: Path, owner: OwnerId, session: SessionId) -> AsyncGenerator[FrameSource | None]:
    """What another process tells. None: it cannot be reached."""
    connection = await _connect(folder, owner, WatchRequest(session))
    try:
        yield _RemoteFrames(connection[0]) if connection else None
    finally:
        if connection:
            connection[1].close()


async def mention_signal(folder: Path, owner: OwnerId) -> None:
    """It looks for signals now and then by itself; this only makes it look at once."""
    if connection := await _connect(folder, owner, LookRequest()):
        connection[1].close()


async def _connect(
    folder: Path, owner: OwnerId, request: Request
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    try:
        async with asyncio.timeout(CONNECT_S):
            with _short_path(_file(folder, owner)) as path:
                reader, writer = await asyncio.open_unix_connection(path)
    except (OSError, TimeoutError) as fault:
        log.debug("process of %s cannot be watched: %s", owner, fault)
        return None
    writer.write(_encode(request) + b"\n")
    return reader, writer


@contextmanager
def _listening(folder: Path, owner: OwnerId) -> Generator[socket.socket]:
    """Blocks. It has its name only once it listens, and nobody else can connect."""
    remove_dead(folder)
    file, unready = _file(folder, owner), folder / f"{owner}.new"
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            with _short_path(unready) as path:
                listener.bind(path)
            unready.chmod(0o600)
            listener.listen()
            unready.rename(file)
            yield listener
        finally:
            for name in (unready, file):
                name.unlink(missing_ok=True)


def remove_dead(folder: Path) -> None:
    """Sockets of processes that were killed. Blocks."""
    for file in folder.glob("*.sock"):
        with suppress(OSError), _short_path(file) as path, socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)  # a process that was stopped accepts nobody
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                file.unlink(missing_ok=True)


def _file(folder: Path, owner: OwnerId) -> Path:
    return folder / f"{owner}.sock"


@contextmanager
def _short_path(file: Path) -> Generator[str]:
    """The kernel takes no long paths for sockets, but Linux has another name for every open folder."""
    if len(os.fsencode(file)) <= MAX_PATH_BYTES:
        yield str(file)
        return
    descriptor = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{file.name}"
    finally:
        os.close(descriptor)
