"""A process that talks in many conversations at once, all of which another one talks in, too: `talker.py HOME NAME`."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from tests.scripted_provider import ScriptedProvider

from talaria.app.build import open_application
from talaria.app.settings import read_settings
from talaria.core.errors import SessionBusy
from talaria.core.ids import SessionId
from talaria.core.messages import user
from talaria.providers.upstream import Upstream
from talaria.runtime.session_pool import SessionPool

CAP, TALKERS, EACH = 16, 8, 20


async def main(home: Path, name: str) -> None:
    async with open_application(read_settings(home), tools=()) as opened:
        provider = ScriptedProvider()
        app = replace(opened, upstream=Upstream(lambda _: provider, opened.clock))
        pool, setup = SessionPool(app.clock, cap=CAP), app.session_config(cwd=home, origin="platform")

        async def ask(session: SessionId) -> None:
            row = await app.store.sessions.get(session)
            live = pool.get(session, setup, lambda: app.live_session(session, row, setup))
            await live.ask(user(f"from {name}"))
            pool.touch(session)

        async def talk(who: int) -> None:
            for number in range(EACH):
                while True:
                    try:
                        await ask(SessionId(f"{who}-{number}"))
                    except SessionBusy:
                        await asyncio.sleep(0.002)
                    else:
                        break

        print("ready", flush=True)
        sys.stdin.readline()
        async with asyncio.TaskGroup() as group:
            for who in range(TALKERS):
                group.create_task(talk(who))
        print(len(pool), flush=True)


asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
