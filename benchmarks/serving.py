"""What both programs that answer people do: listen until their parent closes stdin, then tell how late their loop was
while people talked."""

import asyncio
import json
import sys
import time

from benchmarks.chat_service import Line, listening
from benchmarks.measuring import percentile

_TICK_S = 0.005


async def serve(line: Line, port: int | None = None) -> None:
    """Prints its port first (that of the line, unless it is another) and last by how many milliseconds the latest of a
    hundred ticks was late."""
    orphaned = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), orphaned.set)  # readable means closed
    late: list[float] = []
    ticking = asyncio.create_task(_tick(line, late))
    print(port or await listening(line), flush=True)
    await orphaned.wait()
    ticking.cancel()
    print(json.dumps(percentile(late, 99) * 1000 if len(late) > 1 else 0.0), flush=True)


async def _tick(line: Line, late: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.sleep(_TICK_S)
        if line.is_open:
            late.append(time.perf_counter() - began - _TICK_S)
