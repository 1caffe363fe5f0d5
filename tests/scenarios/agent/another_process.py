"""A process of its own: `another_process.py HOME ask SESSION TEXT`, `... resume SESSION` or `... watch SESSION`.

The first two print how the turn ended. The last prints what it is told, a line each, until a turn has ended.
"""

import asyncio
import sys
from contextlib import aclosing
from pathlib import Path

import msgspec

from talaria.app.build import Application, open_application
from talaria.app.settings import read_settings
from talaria.core.entries import TurnEnded
from talaria.core.ids import SessionId
from talaria.core.messages import user
from talaria.runtime.watching import Settled


async def main(home: Path, what: str, session: SessionId, text: str = "") -> None:
    async with open_application(read_settings(home), tools=()) as app:
        if what == "watch":
            await watch(app, session)
            return
        row = await app.store.sessions.get(session)
        live = app.session(row, id=session, cwd=home, origin="terminal")
        report = await live.ask(user(text)) if what == "ask" else await live.resume()
        print(report.turn if report else "", report.outcome if report else "", flush=True)


async def watch(app: Application, session: SessionId) -> None:
    async with aclosing(app.links.watching.watch(session)) as told:
        async for one in told:
            print(msgspec.json.encode(one).decode(), flush=True)
            if isinstance(one, Settled) and isinstance(one.recorded.entry, TurnEnded):
                return


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], SessionId(sys.argv[3]), *sys.argv[4:]))
