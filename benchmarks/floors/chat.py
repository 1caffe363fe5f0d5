"""A chat service answered with nothing around it: receive, commit, ask, commit, send.

`python -m benchmarks.floors.chat ADDRESS FOLDER WHO`: WHO may speak is `everybody` or the name of one chat.
"""

# pyright: reportUnknownMemberType=false
# (apsw does not type what it binds)

import asyncio
import queue
import sys
import threading
from pathlib import Path

import aiohttp
import msgspec

from benchmarks.chat_service import Line, Said
from benchmarks.floors.bare import commit, database
from benchmarks.serving import serve

_MOST = 30
"""Messages that are answered together."""
_SYSTEM = "x" * 14_000
"""About as much as ours sends besides the talk."""
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Writer:
    """Group commit: all that has gathered is one transaction."""

    def __init__(self, path: Path) -> None:
        self._jobs: queue.SimpleQueue[tuple[list[str], asyncio.Future[None]]] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._connection = database(path)
        threading.Thread(target=self._serve, daemon=True).start()

    async def write(self, *bodies: str) -> None:
        done = self._loop.create_future()
        self._jobs.put((list(bodies), done))
        await done

    def _serve(self) -> None:
        while True:
            group = [self._jobs.get()]
            while not self._jobs.empty():
                group.append(self._jobs.get())
            commit(self._connection, [body for bodies, _ in group for body in bodies])
            self._loop.call_soon_threadsafe(_settle, [done for _, done in group])


def _settle(group: list["asyncio.Future[None]"]) -> None:
    for done in group:
        done.set_result(None)


class Chat:
    """One conversation: what waits is answered in order, what waits together in one."""

    def __init__(self, name: str, floor: "Floor") -> None:
        self._name = name
        self._floor = floor
        self._history: list[bytes] = []
        self._waiting: list[str] = []
        self._task: asyncio.Task[None] | None = None

    def add(self, text: str) -> None:
        self._waiting.append(text)
        if self._task is None:
            self._task = asyncio.create_task(self._answer())

    async def _answer(self) -> None:
        while self._waiting:
            said, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
            self._history.append(_encode({"role": "user", "content": "\n".join(said)}))
            answer = await self._floor.ask(self._history)
            self._history.append(_encode({"role": "assistant", "content": answer}))
            await self._floor.writer.write(answer)
            self._floor.line.say(self._name, answer)
        self._task = None


class Floor:
    def __init__(self, url: str, folder: Path, who: str, session: aiohttp.ClientSession) -> None:
        self.line = Line(self.hear)
        self.writer = Writer(folder / "floor.db")
        self._url = f"{url}/chat/completions"
        self._who = who
        self._prefix = b'{"model":"test","stream":true,"system":"%b","messages":[' % _SYSTEM.encode()
        self._session = session
        self._chats: dict[str, Chat] = {}
        self._taking: set[asyncio.Task[None]] = set()

    def hear(self, batch: list[Said]) -> None:
        batch = [said for said in batch if self._who in ("everybody", said[0])]
        task = asyncio.create_task(self._take(batch))
        self._taking.add(task)
        task.add_done_callback(self._taking.discard)

    async def _take(self, batch: list[Said]) -> None:
        await self.writer.write(*(_encode(said).decode() for said in batch))
        for chat, _, text in batch:
            if chat not in self._chats:
                self._chats[chat] = Chat(chat, self)
            self._chats[chat].add(text)

    async def ask(self, history: list[bytes]) -> str:
        body = self._prefix + b",".join(history) + b"]}"
        pieces: list[str] = []
        async with self._session.post(self._url, data=body) as response:
            async for line in response.content:
                if line.startswith(b"data: {"):
                    pieces += [choice["delta"].get("content", "") for choice in _decode(line[6:])["choices"]]
        return "".join(pieces)


async def main(url: str, folder: Path, who: str) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await serve(Floor(url, folder, who, session).line)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
