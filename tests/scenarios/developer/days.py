"""Spends one day in a process of its own: `python -m tests.scenarios.developer.days NAME LEVEL FOLDER`.

Prints why it could not; nothing: it did.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from tests.scenarios.developer import git_day, go_day, node_day, python_day
from tests.scenarios.developer.day import Day, Missing, a_day

from talaria.tools.sandbox import bubblewrap, landlocked
from talaria.tools.sandbox.sandbox_settings import Backend

DAYS: Mapping[str, Callable[[Day], Awaitable[None]]] = {
    "python": python_day.spend,
    "node": node_day.spend,
    "go": go_day.spend,
    "git": git_day.spend,
}


async def main(name: str, level: Backend, folder: Path) -> None:
    reason = bubblewrap.fault() if level == "bubblewrap" else landlocked.fault()
    if reason is not None:
        print(f"commands in {level}: {reason}")
        return
    try:
        async with a_day(folder, level) as day:
            await DAYS[name](day)
    except Missing as missing:
        print(missing)


if __name__ == "__main__":
    _, name, level, folder = sys.argv
    asyncio.run(main(name, "landlock" if level == "landlock" else "bubblewrap", Path(folder).resolve()))
