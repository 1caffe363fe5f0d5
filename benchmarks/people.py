"""Many people who talk at once over one socket. Each says the next thing when the last is answered; they do not begin
in the same instant.

`python -m benchmarks.people PORT talk FIRST LAST TURNS SPREAD_S` prints turns per second and how long each answer took.
`python -m benchmarks.people PORT queue FIRST LAST MESSAGES` says all of it at once and prints what was answered.
`python -m benchmarks.people PORT strangers FIRST LAST NUMBER`: each says one thing, then the chat LAST asks, as its
message NUMBER, and is answered.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import msgspec

_decode = msgspec.json.Decoder(tuple[str, str]).decode


class People:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._waiting: dict[str, asyncio.Future[str]] = {}

    async def hear(self) -> None:
        while line := await self._reader.readline():
            chat, text = _decode(line)
            self._waiting.pop(chat).set_result(text)

    async def ask(self, chat: str, number: int) -> float:
        """How long the answer took."""
        self._waiting[chat] = answer = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        self._writer.write(_said(chat, number))
        await answer
        return time.perf_counter() - began


def _said(chat: str, number: int) -> bytes:
    return json.dumps([chat, f"{chat}-{number}", f"message-{number} And now?"]).encode() + b"\n"


async def talk(port: int, chats: Sequence[str], turns: int, spread_s: float) -> dict[str, Any]:
    people = People(*await asyncio.open_connection("127.0.0.1", port))
    hearing = asyncio.create_task(people.hear())
    took: list[float] = []

    async def converse(chat: str, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        took.extend([await people.ask(chat, number) for number in range(turns)])

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for place, chat in enumerate(chats):
            group.create_task(converse(chat, spread_s * place / len(chats)))
    seconds = time.perf_counter() - began
    hearing.cancel()
    return {"turns_per_s": len(took) / seconds, "took": took}


async def queue(port: int, chats: Sequence[str], messages: int) -> dict[str, Any]:
    """The answers repeat what they answer: so it is known when all of it is answered, and in which order."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answered: dict[str, list[int]] = {chat: [] for chat in chats}
    began = time.perf_counter()
    for number in range(messages):
        writer.writelines([_said(chat, number) for chat in chats])
    await writer.drain()
    missing = messages * len(chats)
    while missing:
        chat, text = _decode(await reader.readline())
        numbers = [int(word.partition("-")[2]) for word in text.split() if word.startswith("message-")]
        answered[chat] += numbers
        missing -= len(numbers)
    return {"seconds": time.perf_counter() - began, "answered": answered}


async def strangers(port: int, chats: Sequence[str], known: str, number: int) -> dict[str, Any]:
    """What they are told does not count."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began = time.perf_counter()
    writer.writelines([_said(chat, 0) for chat in chats])
    writer.write(_said(known, number))
    while _decode(await reader.readline())[0] != known:
        pass
    return {"seconds": time.perf_counter() - began}


async def _main(port: int, how: str, first: int, last: int, count: int, spread_s: float = 0.0) -> None:
    chats = [str(number) for number in range(first, last)]
    match how:
        case "talk":
            told = await talk(port, chats, count, spread_s)
        case "queue":
            told = await queue(port, chats, count)
        case _:
            told = await strangers(port, chats, str(last), count)
    print(json.dumps(told))


if __name__ == "__main__":
    _, where, what, *numbers = sys.argv
    asyncio.run(_main(int(where), what, *map(int, numbers[:3]), *map(float, numbers[3:])))
