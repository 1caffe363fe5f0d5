"""Conversations with aiohttp and apsw alone; prints the resident bytes after the first and after further ones.

`python -m benchmarks.floors.conversations ADDRESS FOLDER COUNT ...`
"""

import asyncio
import json
import sys
from pathlib import Path

from benchmarks.floors.bare import Bare
from benchmarks.resident import resident_bytes


async def converse(url: str, folder: Path, counts: list[int]) -> list[int]:
    sizes: list[int] = []
    kept: list[list[dict[str, str]]] = []
    async with Bare(folder, url) as bare:
        for count in counts:
            for _ in range(count):
                question = {"role": "user", "content": f"And now, {len(kept)}?"}
                answer = await bare.post(json.dumps({"messages": [question], "stream": True}).encode())
                bare.commit()
                kept.append([question, {"role": "assistant", "content": answer.decode()}])
            sizes.append(resident_bytes())
    return sizes


if __name__ == "__main__":
    _, address, home, *given = sys.argv
    print(json.dumps(asyncio.run(converse(address, Path(home), [int(count) for count in given]))))
