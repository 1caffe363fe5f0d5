"""Connections between a sandbox and this machine, port by port and socket by socket: commands reach a service of the
person, or the person reaches a server that commands have started.

All of them pass through here, so that they can be closed while in use. Through a socket only bytes pass, no
descriptors.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Collection, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from talaria.core.aio import complete, in_thread, in_threads, wait_until_done
from talaria.core.clock import Clock, SystemClock
from talaria.core.errors import ToolFailed
from talaria.core.trees import Root
from talaria.net.proxy_requests import Meter, Tunnel

ANSWER_S = 10.0
CONNECT_S = 5.0
PAUSE_S = 0.5
"""After a connection could not be accepted, because others must end first."""
MAX_CONNECTIONS = 200
"""At a time, through each port or socket."""
_PROGRAM = Path(__file__).with_name("port_program.py")

Dial = Callable[[], Awaitable[socket.socket]]


class Ports:
    """Of one sandbox, as long as it runs. Nothing is started before the first port is opened."""

    def __init__(
        self,
        find_host: Callable[[], int | None],
        show: Callable[[Path, Path], Awaitable[str]],
        hide: Callable[[Path], Awaitable[str]],
        clock: Clock | None = None,
    ) -> None:
        """`find_host`: returns the process number of the tool host outside; not on the loop. `show`: shows a file of
        this machine in the sandbox, under another path; `hide` removes it. Both return why that cannot be done."""
        self._find_host = find_host
        self._show = show
        self._hide = hide
        self._clock = clock or SystemClock()
        self._asking = asyncio.Lock()
        self._program: asyncio.subprocess.Process | None = None
        self._orders: socket.socket | None = None
        self._inwards: dict[int, asyncio.Task[None]] = {}
        self._sockets: dict[Path, asyncio.Task[None]] = {}
        self._published: dict[int, tuple[int, asyncio.Task[None]]] = {}

    @property
    def open_inwards(self) -> Collection[int]:
        return self._inwards.keys()

    @property
    def open_sockets(self) -> Collection[Path]:
        return self._sockets.keys()

    @property
    def published(self) -> dict[int, int]:
        """The ports of this machine, by those of the sandbox."""
        return {port: outside for port, (outside, _) in self._published.items()}

    async def let_in(self, port: int) -> None:
        """Let commands reach what listens on this port here, under the same number. Raises `ToolFailed`."""
        if port in self._inwards:
            return
        listeners = await self._ask("listen", port)

        async def dial() -> socket.socket:
            with suppress(OSError):
                return await _dial(socket.AF_INET, ("127.0.0.1", port))
            return await _dial(socket.AF_INET6, ("::1", port))

        self._inwards[port] = asyncio.create_task(self._forward(listeners, dial), name=f"port {port} inwards")

    async def shut(self, port: int) -> None:
        """Let no new connection of commands through, and end those that are open."""
        task = self._inwards.pop(port, None)
        if task is not None:
            task.cancel()
            await complete(asyncio.wait([task]))

    async def let_in_socket(self, path: Path) -> None:
        """Let commands reach what listens on this socket here, under the same path. Raises `ToolFailed`."""
        if path not in self._sockets:
            await complete(self._let_in_socket(path))

    async def _let_in_socket(self, path: Path) -> None:
        with ExitStack() as failing:
            listener = failing.enter_context(socket.socket(socket.AF_UNIX))
            try:
                with TemporaryDirectory(prefix="talaria-socket-") as folder, Root.open(folder) as root:
                    listener.bind(f"/proc/self/fd/{root.descriptor}/socket")  # the path may be too long for a socket
                    listener.listen(MAX_CONNECTIONS)
                    fault = await self._show(Path(root.path, "socket"), path)
            except OSError as failed:
                fault = failed.strerror or str(failed)
            if fault:
                raise ToolFailed(f"The socket {path} cannot be opened: {fault}.")
            failing.pop_all()

        async def dial() -> socket.socket:
            with ExitStack() as failing:  # it may be cancelled while it lets go of the path
                async with in_threads(_hold_socket(path)) as held:
                    connected = failing.enter_context(await _dial(socket.AF_UNIX, held))
                failing.pop_all()
            return connected

        self._sockets[path] = asyncio.create_task(self._forward([listener], dial), name=f"socket {path}")

    async def shut_socket(self, path: Path) -> None:
        """Like `shut`."""
        task = self._sockets.pop(path, None)
        if task is not None:
            task.cancel()
            await complete(asyncio.wait([task]))
            await self._hide(path)  # if that fails, it leads nowhere without its listener

    async def publish(self, port: int) -> int:
        """Let the person reach what commands serve on this port, on this machine only. Returns the port to use, the
        same one if it is free. Raises `ToolFailed`."""
        if port not in self._published:
            await complete(self._publish(port))
        return self._published[port][0]

    async def _publish(self, port: int) -> None:
        def listen() -> socket.socket:
            for wanted in (port, 0):
                with suppress(OSError):
                    return socket.create_server(("127.0.0.1", wanted))
            raise ToolFailed("No port of this machine is free.")

        listener = await in_thread(listen)
        outside: int = listener.getsockname()[1]

        async def dial() -> socket.socket:
            return (await self._ask("connect", port))[0]

        task = asyncio.create_task(self._forward([listener], dial), name=f"port {port} outwards")
        self._published[port] = outside, task

    async def withdraw(self, port: int) -> None:
        """Let nobody reach this port of the sandbox any more, and end connections."""
        _, task = self._published.pop(port, (0, None))
        if task is not None:
            task.cancel()
            await complete(asyncio.wait([task]))

    async def aclose(self) -> None:
        tasks = [*self._inwards.values(), *self._sockets.values(), *(task for _, task in self._published.values())]
        self._inwards.clear()
        self._sockets.clear()
        self._published.clear()
        for task in tasks:
            task.cancel()
        try:
            if tasks:
                await complete(asyncio.wait(tasks))
        finally:
            await complete(self._end_program())

    async def _end_program(self) -> None:
        if self._orders is not None:
            self._orders.close()
            self._orders = None
        if self._program is not None:
            with suppress(ProcessLookupError):
                self._program.kill()
            await complete(self._program.wait())
            self._program = None

    async def _ask(self, what: str, port: int) -> list[socket.socket]:
        """Sockets in the network of the sandbox. Raises `ToolFailed`."""
        async with self._asking:
            orders = self._orders or await complete(self._start_program())
            exchanging = asyncio.ensure_future(in_thread(lambda: _exchange(orders, f"{what} {port}")))
            try:
                await wait_until_done(exchanging)
                answer, sockets = exchanging.result()
            except (OSError, asyncio.CancelledError) as fault:
                await complete(self._abandon(exchanging))  # its answer may still come, and would pass for another's
                if isinstance(fault, OSError):
                    raise ToolFailed(f"Port {port} of the sandbox cannot be opened: {fault}.") from fault
                raise
        if answer != "ok":
            raise ToolFailed(f"Port {port} of the sandbox: {answer or 'it has ended'}.")
        return sockets

    async def _start_program(self) -> socket.socket:
        host = await in_thread(self._find_host)
        if host is None:
            raise ToolFailed("The sandbox has ended, so no port of it can be opened.")
        orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        orders.settimeout(ANSWER_S)
        self._orders = orders
        with theirs:
            environment = {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}
            words = (sys.executable, "-I", "-S", str(_PROGRAM), str(host))
            self._program = await asyncio.create_subprocess_exec(
                *words, stdin=theirs.fileno(), stdout=asyncio.subprocess.DEVNULL, cwd="/", env=environment
            )
        return orders

    async def _abandon(self, exchanging: "asyncio.Future[tuple[str, list[socket.socket]]]") -> None:
        if self._program is not None:
            with suppress(ProcessLookupError):
                self._program.kill()  # so that whoever waits for its answer does so no longer
        await asyncio.wait([exchanging])
        if not exchanging.cancelled() and exchanging.exception() is None:
            for late in exchanging.result()[1]:
                late.close()
        await self._end_program()

    async def _forward(self, listeners: list[socket.socket], dial: Dial) -> None:
        """Until cancelled."""
        room = asyncio.Semaphore(MAX_CONNECTIONS)
        try:
            async with asyncio.TaskGroup() as group:
                for listener in listeners:
                    listener.setblocking(False)
                    group.create_task(self._accept(listener, dial, room))
        finally:
            for listener in listeners:
                listener.close()

    async def _accept(self, listener: socket.socket, dial: Dial, room: asyncio.Semaphore) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            while True:
                await room.acquire()
                try:
                    client, _ = await loop.sock_accept(listener)
                except OSError:
                    room.release()
                    await self._clock.sleep(PAUSE_S)
                    continue
                group.create_task(self._join(client, dial, room))

    async def _join(self, client: socket.socket, dial: Dial, room: asyncio.Semaphore) -> None:
        try:
            with client:
                client.setblocking(False)
                try:
                    upstream = await dial()
                except (OSError, ToolFailed):
                    return  # the client is closed at once, as if nobody listened
                with upstream:
                    upstream.setblocking(False)
                    await Tunnel(client, upstream, self._clock, Meter()).join(b"")
        finally:
            room.release()


@contextmanager
def _hold_socket(path: Path) -> Generator[str]:
    """A name that leads to this socket whatever happens to its path, on which commands may have put a link meanwhile.
    None is followed."""
    with Root.open(path.anchor) as root:
        descriptor = root.handle(str(path.relative_to(path.anchor)), is_socket=True)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _exchange(orders: socket.socket, order: str) -> tuple[str, list[socket.socket]]:
    orders.send(order.encode())
    answer, descriptors, _, _ = socket.recv_fds(orders, 1 << 10, 2)
    return answer.decode("utf-8", "replace"), [socket.socket(fileno=one) for one in descriptors]


async def _dial(family: socket.AddressFamily, address: tuple[str, int] | str) -> socket.socket:
    made = socket.socket(family)
    made.setblocking(False)
    try:
        async with asyncio.timeout(CONNECT_S):
            await asyncio.get_running_loop().sock_connect(made, address)
    except BaseException:
        made.close()
        raise
    return made
