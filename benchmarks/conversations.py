"""Live sessions of one process, kept; prints the resident bytes after the first and after further ones.

`python -m benchmarks.conversations ADDRESS FOLDER COUNT ...`
"""

import asyncio
import json
import sys
from pathlib import Path

from benchmarks.application import application, session
from benchmarks.resident import resident_bytes
from talaria.core.messages import user
from talaria.runtime.session import LiveSession


async def converse(url: str, folder: Path, counts: list[int]) -> list[int]:
    sizes: list[int] = []
    kept: list[LiveSession] = []
    async with application(folder, url) as app:
        for count in counts:
            for _ in range(count):
                live = session(app)
                await live.ask(user(f"And now, {len(kept)}?"))
                kept.append(live)
            sizes.append(resident_bytes())
    return sizes


if __name__ == "__main__":
    _, address, home, *given = sys.argv
    print(json.dumps(asyncio.run(converse(address, Path(home), [int(count) for count in given]))))
