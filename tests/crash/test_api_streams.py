"""Kill -9 while programs watch: they come back with the last number that they have seen, and miss nothing and see
nothing twice."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest
from tests.crash.api_cases import LOOK_S, ApiCase, ApiHome, response
from tests.crash.dying_gateways import Zygote, effects_twice
from tests.event_streams import SseEvent, events_of
from tests.ports import reserved_port
from tests.waiting import until

from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.model_server import ModelServer, RecordedRequest
from talaria.testing.servers.scripted_replies import Faults, Reply, call

TEXTS = (
    "First I look at this:\n\n- one\n- two\n",
    "```\nMEDIA:/not/a/file.txt\n```\nThen I do two things.",
    "That is all that I have done. " * 4 + "\nIt is over.",
)
CALLS = (("a",), ("b", "c"), ())
SHARES = 2
LONG_SHARES = 10


def respond(request: RecordedRequest) -> Reply:
    """The same again after any crash: told from the conversation alone."""
    messages: Sequence[dict[str, Any]] = request.json["messages"]
    number = sum(bool(one.get("tool_calls")) for one in messages)
    calls = tuple(call("effect", id=f"call-{mark}", mark=mark) for mark in CALLS[number])
    return Reply(TEXTS[number], calls=calls, chunk_chars=5, faults=Faults(chunk_delay_s=0.004))


class Watcher:
    """Comes back until it has seen the end."""

    def __init__(self, path: str) -> None:
        self.events: list[SseEvent] = []
        self.path = path

    @property
    def is_done(self) -> bool:
        raise NotImplementedError

    def where(self) -> tuple[str, Mapping[str, str]]:
        """The path and headers to go on from where it is."""
        raise NotImplementedError

    async def watch(self, client: httpx2.AsyncClient) -> None:
        while not self.is_done:
            try:
                async for event in events_of(client, *self.where()):
                    self.events.append(event)
            except httpx2.TransportError:
                await asyncio.sleep(LOOK_S)


class ResponseWatcher(Watcher):
    @property
    def is_done(self) -> bool:
        return bool(self.events) and self.events[-1].name == "response.completed"

    def where(self) -> tuple[str, Mapping[str, str]]:
        after = f"&starting_after={self.numbers[-1]}" if self.events else ""
        return f"{self.path}?stream=true{after}", {}

    @property
    def numbers(self) -> list[int]:
        return [event.data["sequence_number"] for event in self.events]

    @property
    def texts(self) -> list[str]:
        """Those of its messages, as they came in pieces."""
        texts: dict[int, str] = {}
        for event in self.events:
            if event.name == "response.output_text.delta":
                index = event.data["output_index"]
                texts[index] = texts.get(index, "") + event.data["delta"]
        return list(texts.values())

    @property
    def marks(self) -> list[tuple[int, str]]:
        """All events that say when something begins or ends, which are the same however the text comes in pieces."""
        return [(event.data["sequence_number"], event.name) for event in self.events if "delta" not in event.name]


class RunWatcher(Watcher):
    @property
    def is_done(self) -> bool:
        return bool(self.events) and self.events[-1].data.get("entry", {}).get("type") == "turn_ended"

    def where(self) -> tuple[str, Mapping[str, str]]:
        return self.path, {"Last-Event-ID": self.events[-1].id} if self.events else {}

    @property
    def settled(self) -> list[tuple[int, Mapping[str, Any]]]:
        return [(event.data["seq"], event.data["entry"]) for event in self.events if event.name == "settled"]

    @property
    def live_texts(self) -> list[str]:
        """What was told live of each text that was settled then, if that was told from its beginning."""
        found, text = list[str](), ""
        for event in self.events:
            live = event.data.get("event", {})
            if event.name == "restarted" or live.get("type") == "restarted":
                text = ""
            elif live.get("type") == "text":
                text += live["text"]
            elif event.data.get("entry", {}).get("message", {}).get("type") == "assistant":
                found.append(text)
                text = ""
        return found


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as zygote:
        yield zygote


@pytest.fixture
async def home(tmp_path: Path, zygote: Zygote) -> AsyncIterator[ApiHome]:
    with reserved_port() as port, ModelServer(respond=respond) as model:
        made = ApiHome(tmp_path, model, zygote, port)
        await made.prepare()
        yield made


class Case:
    """A response that two programs watch, by different doors, while its gateway is killed."""

    def __init__(self, case: ApiCase, id: str) -> None:
        self.case = case
        self.response = ResponseWatcher(f"/v1/responses/{id}")
        self.run = RunWatcher(f"/v1/runs/{id.replace('resp_', 'run_')}/events")
        self.cuts = 0
        """How often the stream was cut off in the middle."""

    async def follow(self, kills: Sequence[int]) -> None:
        """Killed each time that this many more events of the response have been seen; then left alone."""
        async with self.case.client() as client:
            watching = [asyncio.create_task(one.watch(client)) for one in (self.response, self.run)]
            try:
                for wanted in accumulate(kills):
                    async with self.case.gateway() as gateway:
                        await self._wait_for(wanted, watching)
                        self.cuts += not self.response.is_done
                        await gateway.kill()
                async with self.case.gateway(), asyncio.timeout(PATIENCE_S):
                    await asyncio.gather(*watching)
                    await self._check(client)
            finally:
                for task in watching:
                    task.cancel()
                await asyncio.wait(watching)

    async def _wait_for(self, events: int, watching: Sequence["asyncio.Task[None]"]) -> None:
        await until(lambda: len(self.response.events) >= events or all(one.done() for one in watching))

    async def _check(self, client: httpx2.AsyncClient) -> None:
        numbers = self.response.numbers
        assert all(first < second for first, second in pairwise(numbers))
        assert self.response.texts == list(TEXTS)
        later, later_run = ResponseWatcher(self.response.path), RunWatcher(self.run.path)
        await later.watch(client)
        await later_run.watch(client)
        assert later.texts == self.response.texts
        assert later.marks == self.response.marks, "an event has the same number for everybody"
        assert later.events[-1].data == self.response.events[-1].data
        assert self.run.settled == later_run.settled
        positions = [seq for seq, _ in self.run.settled]
        assert positions == list(range(positions[0], positions[0] + len(positions)))
        assert all(live in ("", text) for live, text in zip(self.run.live_texts, TEXTS, strict=True))
        async with asyncio.timeout(PATIENCE_S):
            path, headers = self.run.where()
            assert [event async for event in events_of(client, path, headers)] == [], "it is over"
        assert effects_twice(self.case.world.lines()) == []


async def begin(case: ApiCase) -> Case:
    async with case.gateway() as gateway, case.client() as client:
        id = await begun(client)
        await gateway.kill()
    return Case(case, id)


async def begun(client: httpx2.AsyncClient) -> str:
    ask = response("please go", key="one", background=True)
    while True:
        try:
            got = await client.post(ask.path, json=ask.body, headers={"Idempotency-Key": ask.key})
        except httpx2.TransportError:
            await asyncio.sleep(LOOK_S)
            continue
        assert got.status_code == 200, got.text
        return got.json()["id"]


async def test_undisturbed_a_watcher_sees_everything_once(home: ApiHome) -> None:
    case = await begin(home.case([]))
    await case.follow([])
    assert case.run.live_texts == list(TEXTS)
    assert len(case.response.events) > 60


@pytest.mark.parametrize("nth", range(SHARES))
async def test_killed_after_each_event_nothing_is_missed_or_seen_twice(home: ApiHome, nth: int) -> None:
    cuts = 0
    for wanted in range(2 + nth, 90, 5 * SHARES):
        case = await begin(home.case([]))
        await case.follow([wanted])
        cuts += case.cuts
    assert cuts > 5


async def test_killed_again_and_again_nothing_is_missed_or_seen_twice(home: ApiHome) -> None:
    choose = Random(3)
    for _ in range(3):
        await (await begin(home.case([]))).follow([choose.randrange(1, 40) for _ in range(4)])


@pytest.mark.long
@pytest.mark.parametrize("nth", range(LONG_SHARES))
async def test_killed_after_every_event_and_again_nothing_is_missed_or_seen_twice(home: ApiHome, nth: int) -> None:
    choose = Random()
    for wanted in range(nth, 120, LONG_SHARES):
        await (await begin(home.case([]))).follow([wanted])
        await (await begin(home.case([]))).follow([wanted, *(choose.randrange(1, 40) for _ in range(3))])
