"""A process of its own: `another_process.py HOME ask SESSION TEXT`, `... resume SESSION`, `... watch SESSION`,
`... queue SESSION TEXT` or `... ask-queued SESSION`.

The first two print how the turn ended. `watch` prints what it is told, a line each, until a turn has ended. `queue`
prints the key of the line and stays. `ask-queued` answers the oldest line as soon as the session is free.
"""

import asyncio
import sys
from contextlib import aclosing
from pathlib import Path

import msgspec

from talaria.app.build import Application, open_application
from talaria.app.settings import read_settings
from talaria.core.entries import TurnEnded
from talaria.core.errors import SessionBusy
from talaria.core.ids import SessionId
from talaria.core.messages import user
from talaria.runtime.session import LiveSession
from talaria.runtime.turn_runner import Report
from talaria.runtime.turn_signals import SignalSender
from talaria.runtime.watching import Settled


async def main(home: Path, what: str, session: SessionId, text: str = "") -> None:
    async with open_application(read_settings(home), tools=()) as app:
        if what == "watch":
            await watch(app, session)
            return
        if what == "queue":
            sender = SignalSender(app.store, app.links.changes, app.links.folder, by="local", surface="test")
            print((await sender.queue(session, text)).key, flush=True)
            await asyncio.Event().wait()
        row = await app.store.sessions.get(session)
        live = app.session(row, id=session, cwd=home, origin="terminal")
        if what == "ask-queued":
            report = await ask_queued(app, live)
        else:
            report = await live.ask(user(text)) if what == "ask" else await live.resume()
        print(report.turn if report else "", report.outcome if report else "", flush=True)


async def ask_queued(app: Application, live: LiveSession) -> Report | None:
    (line, *_) = await app.store.signals.list_new([live.id])
    while True:
        try:
            return await live.ask_queued(line, user(line.text))
        except SessionBusy:
            await asyncio.sleep(0.01)


async def watch(app: Application, session: SessionId) -> None:
    async with aclosing(app.links.watching.watch(session)) as told:
        async for one in told:
            print(msgspec.json.encode(one).decode(), flush=True)
            if isinstance(one, Settled) and isinstance(one.recorded.entry, TurnEnded):
                return


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], SessionId(sys.argv[3]), *sys.argv[4:]))
