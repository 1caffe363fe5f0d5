"""What a command prints, shown while it runs: its last lines, a few times per second, and only when something came."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from talaria.tools.base import Live
from talaria.tools.output import Output
from talaria.tools.sandbox.running_command import OutputSink

PAUSE_S = 0.125
"""Between two looks: a command that prints without end costs no more than one that prints a line."""
LIVE_TAIL_BYTES = 4_000


class _Heard:
    """Passes on what a command prints, and notes that something came. Also a command's `OutputSink`."""

    def __init__(self, sink: OutputSink) -> None:
        self._sink = sink
        self.news = asyncio.Event()

    def add(self, chunk: bytes) -> None:
        self._sink.add(chunk)
        self.news.set()

    def skip(self, size_bytes: int) -> None:
        self._sink.skip(size_bytes)
        self.news.set()


@asynccontextmanager
async def shown_live(sink: OutputSink, output: Output, live: Live | None) -> AsyncGenerator[OutputSink]:
    """The sink for a command whose output ends up in `output`. Nothing is shown after the end of the block."""
    if live is None:
        yield sink
        return
    heard = _Heard(sink)
    showing = asyncio.create_task(_show(heard.news, output, live), name="live output")
    try:
        yield heard
    finally:
        showing.cancel()


async def _show(news: asyncio.Event, output: Output, live: Live) -> None:
    while True:
        await news.wait()
        news.clear()
        if tail := _tail(output):
            live.show(tail)
        await live.clock.sleep(PAUSE_S)


def _tail(output: Output) -> str:
    """The last lines, the first of them whole if there is more than one."""
    start = max(0, output.size_bytes - LIVE_TAIL_BYTES)
    text = output.since(start).decode("utf-8", "replace")
    return text.partition("\n")[2] or text if start else text
