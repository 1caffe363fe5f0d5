"""A gateway that serves the HTTP API, dies and is started again, and the programs that ask it until they have an
answer."""

import asyncio
import json
import shutil
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import msgspec
from tests.crash.dying_gateways import Zygote, effects_twice, journal_problems, send_signal

from talaria.api.api_tokens import digest_of
from talaria.core.clock import SystemClock
from talaria.core.entries import TurnStarted
from talaria.store.api_ports import ApiToken
from talaria.store.base import Store
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.crash import Moment, World, moments
from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.model_server import ModelServer

LOOK_S = 0.01
TOKEN = "tal_of-a-test"
TOKEN_NAME = "program"
SCOPES = ("chat", "runs", "sessions", "approve")


class Ask(msgspec.Struct, frozen=True):
    """What a program asks, under one key, until it is answered."""

    path: str
    body: Mapping[str, Any]
    key: str
    headers: Mapping[str, str] = {}


class Answered(msgspec.Struct, frozen=True):
    id: str
    text: str
    created: float
    session: str


def chat(text: str, *, key: str, stream: bool = False, name: str = "", history: Sequence[str] = ()) -> Ask:
    said = [{"role": ("user", "assistant")[at % 2], "content": one} for at, one in enumerate((*history, text))]
    named = {"X-Talaria-Session": name} if name else {}
    body = {"model": "talaria", "messages": said, "stream": stream}
    return Ask("/v1/chat/completions", body, key, named)


def response(text: str, *, key: str, background: bool = False) -> Ask:
    return Ask("/v1/responses", {"model": "talaria", "input": text, "background": background}, key)


class ApiHome:
    """In which a gateway has been once, so that all that follow begin alike."""

    def __init__(self, folder: Path, model: ModelServer, zygote: Zygote, port: int) -> None:
        self.folder = folder
        self.zygote = zygote
        self.port = port
        self._model = model
        self._numbers = count()
        self.deaths = 0

    @property
    def used(self) -> Path:
        return self.folder / "used"

    async def prepare(self) -> None:
        first = self.case([])
        async with SqliteStore(first.home, SystemClock()) as store:
            await store.api_tokens.add(ApiToken(name=TOKEN_NAME, digest=digest_of(TOKEN), scopes=SCOPES))
        await first.run()
        first.home.rename(self.used)

    def case(self, asks: Sequence[Ask]) -> "ApiCase":
        return ApiCase(self, self.folder / f"case{next(self._numbers)}", asks)

    def settings(self) -> str:
        """Clients ask often here."""
        api = {"port": self.port, "requests_per_minute": 1_000_000}
        return json.dumps({"model": {"default": "m", "base_url": self._model.base_url}, "api": api})


class ApiCase:
    """One home of its own: gateways that may be told to die, one after the other, and who asks them."""

    def __init__(self, town: ApiHome, folder: Path, asks: Sequence[Ask]) -> None:
        self._town = town
        self._folder = folder
        self._asks = asks
        self.world = World(folder / "world")
        self.answers: dict[str, list[Answered]] = {one.key: [] for one in asks}
        self.runs: list[str] = []
        """Those that the API knows of."""
        self._runs = 0
        self.home = folder / "home"
        folder.mkdir(parents=True)
        if town.used.exists():
            shutil.copytree(town.used, self.home)
        self.home.mkdir(exist_ok=True, mode=0o700)
        (self.home / "config.yaml").write_text(town.settings())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._town.port}"

    @asynccontextmanager
    async def gateway(self, fatal: Moment | None = None) -> AsyncGenerator["DyingGateway"]:
        """At the end it finishes what it has to do, unless it is dead."""
        self._runs += 1
        trace = World(self._folder / f"trace{self._runs}")
        job = {"home": self.home, "world": self._folder / "world", "runtime": self._folder}
        more = {"fatal": msgspec.to_builtins(fatal), "is_api_only": True}
        files = {name: str(path) for name, path in job.items()}
        zygote = self._town.zygote
        pid = await zygote.start({**files, "trace": str(self._folder / f"trace{self._runs}"), **more})
        gateway = DyingGateway(pid, asyncio.ensure_future(zygote.told()), trace)
        try:
            yield gateway
            send_signal(pid, signal.SIGTERM)
            await asyncio.wait([gateway.ended], timeout=PATIENCE_S)
            if not gateway.ended.done():
                self.world.add(f"BROKE it took more than {PATIENCE_S} s to end")
        finally:
            if not gateway.ended.done():
                send_signal(pid, signal.SIGKILL)
            if await gateway.ended != 0:
                self._town.deaths += 1

    async def run(self, fatal: Moment | None = None, kill_after_s: float | None = None) -> list[Moment]:
        """Until it is dead, or all is answered and nothing left to do. The moments that the gateway reached."""
        async with self.gateway(fatal) as gateway:
            asking = asyncio.create_task(self._ask_all())
            wait_s = PATIENCE_S if kill_after_s is None else kill_after_s
            await asyncio.wait([gateway.ended, asking], timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                await asking
            elif kill_after_s is not None:
                await gateway.kill()
            elif not gateway.ended.done():
                self.world.add(f"BROKE no answer within {PATIENCE_S} s")
                await gateway.kill()
            asking.cancel()
            await asyncio.wait([asking])
        if fatal is None and kill_after_s is None:
            assert await gateway.ended == 0, self.world.lines()[-1:]
        return moments(gateway.trace.lines())

    async def kill(self, *moments: Moment) -> list[Moment]:
        """At each of them in turn. What it does in the end, when it is left alone."""
        for fatal in moments:
            await self.run(fatal)
        return await self.run()

    async def _ask_all(self) -> None:
        """Each when the one before is answered."""
        async with self.client() as client:
            for one in self._asks:
                self.answers[one.key].append(await answered(client, one))
            self.runs = await listed_runs(client)

    def client(self) -> httpx2.AsyncClient:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return httpx2.AsyncClient(base_url=self.url, headers=headers, timeout=PATIENCE_S, trust_env=False)

    async def problems(self) -> list[str]:
        async with SqliteStore(self.home, SystemClock()) as store:
            kept = [problem async for problem in self._kept_wrong(store)]
        return [
            *kept,
            *(f"{key} was answered {given}" for key, given in self.answers.items() if len(set(given)) != 1),
            *effects_twice(self.world.lines()),
            *(line for line in self.world.lines() if line.startswith("BROKE")),
        ]

    async def _kept_wrong(self, store: Store) -> AsyncIterator[str]:
        for session in await store.inbox.list_sessions():
            yield f"mail of {session} is not done"
        asked: list[str] = []
        async for problem in journal_problems(store, self.world.lines(), asked):
            yield problem
        if len(asked) != len(self._asks) or len(set(asked)) != len(asked):
            yield f"{asked} were asked"
        turns = [
            recorded.entry.turn
            for session in await store.sessions.list()
            for recorded in await store.journal.entries(session.id)
            if isinstance(recorded.entry, TurnStarted) and recorded.entry.turn.startswith("turn_")
        ]
        if sorted(turns) != sorted(f"turn_{run.removeprefix('run_')}" for run in self.runs):
            yield f"turns {turns} for {self.runs}"
        if len(self.runs) != len(self._asks):
            yield f"{len(self.runs)} messages were accepted for {len(self._asks)} requests"
        known = {one.session for given in self.answers.values() for one in given}
        if others := {session.id for session in await store.sessions.list()} - known:
            yield f"conversations that nobody asked for: {others}"


class DyingGateway:
    def __init__(self, pid: int, ended: "asyncio.Future[int]", trace: World) -> None:
        self.trace = trace
        self.ended = ended
        """Its exit status."""
        self._pid = pid

    async def kill(self) -> None:
        send_signal(self._pid, signal.SIGKILL)
        await asyncio.wait([self.ended])


async def listed_runs(client: httpx2.AsyncClient) -> list[str]:
    while True:
        with suppress(httpx2.TransportError):
            if (got := await client.get("/v1/runs")).status_code == 200:
                return [one["id"] for one in got.json()["data"]]
        await asyncio.sleep(LOOK_S)


async def answered(client: httpx2.AsyncClient, ask: Ask) -> Answered:
    """Asks with the same key until there is an answer. Nothing but a broken connection and a 503 is a reason to."""
    while True:
        try:
            found = await _ask_once(client, ask)
        except httpx2.TransportError:
            found = None
        if found is not None:
            return found
        await asyncio.sleep(LOOK_S)


async def _ask_once(client: httpx2.AsyncClient, ask: Ask) -> Answered | None:
    headers = {"Idempotency-Key": ask.key, **ask.headers}
    if ask.body.get("stream"):
        async with client.stream("POST", ask.path, json=ask.body, headers=headers) as streamed:
            lines = [line.removeprefix("data: ") async for line in streamed.aiter_lines() if line.startswith("data: ")]
        if streamed.status_code != 503:
            assert streamed.status_code == 200, lines
            return _of_chunks(lines, streamed.headers["x-talaria-session"])
        return None
    got = await client.post(ask.path, json=ask.body, headers=headers)
    while got.status_code == 200 and got.json().get("status") in ("queued", "in_progress"):
        await asyncio.sleep(LOOK_S)
        got = await client.get(f"/v1/responses/{got.json()['id']}")
    if got.status_code == 503:
        return None
    assert got.status_code == 200, got.text
    given, session = got.json(), got.headers["x-talaria-session"]
    if given["object"] == "response":
        assert given["status"] == "completed", given
        texts = [one["content"][0]["text"] for one in given["output"] if one["type"] == "message"]
        return Answered(given["id"], "\n\n".join(texts), given["created_at"], session)
    return Answered(given["id"], given["choices"][0]["message"]["content"], given["created"], session)


def _of_chunks(lines: Sequence[str], session: str) -> Answered | None:
    """None: the stream was cut off."""
    if lines[-1:] != ["[DONE]"]:
        return None
    chunks = [json.loads(line) for line in lines[:-1]]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    text = "".join(one.get("content", "") for one in deltas)
    return Answered(chunks[0]["id"], text, chunks[0]["created"], session)
