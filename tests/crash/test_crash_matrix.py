"""Kill -9 at every moment of a conversation, and again while it recovers: nothing lost, nothing twice, all legal."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Self

import msgspec
import pytest
from tests.rules import chat_problems, transcript_problems

from talaria.core.clock import SystemClock
from talaria.core.entries import MessageAdded, TurnEnded, TurnStarted
from talaria.core.ids import SessionId
from talaria.core.messages import Assistant, Message, ToolResult, User
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.crash import Moment, World, moments
from talaria.testing.servers.model_server import ModelServer, RecordedRequest
from talaria.testing.servers.scripted_replies import Reply, call

ROOT = Path(__file__).parents[2]
SESSION = SessionId("crash-session")
MESSAGES = ["turn 1", "turn 2"]
NEVER = Moment("never")
SHARES = 4
share = pytest.mark.parametrize("nth", range(SHARES))
"""Of the matrix, so that its parts can run side by side."""
MUTATIONS = [
    "start is committed after the effect",
    "intents are a transaction of their own",
    "the turn's end is a transaction of its own",
    "the person's message is committed after the answer",
    "tools run before their intents are committed",
    "a tool with side effects says that it may be repeated",
]


def respond(request: RecordedRequest) -> Reply:
    """The same answers again after any crash: told from the conversation alone."""
    messages: Sequence[dict[str, Any]] = request.json["messages"]
    last_question = max(place for place, message in enumerate(messages) if message["role"] == "user")
    turn = str(messages[last_question]["content"]).rsplit(" ", 1)[-1]
    rounds = sum(1 for message in messages[last_question:] if message.get("tool_calls"))
    match rounds:
        case 0:
            return Reply(
                calls=(
                    call("effect", id=f"a{turn}", mark=f"a{turn}"),
                    call("look", id=f"b{turn}", mark=f"b{turn}"),
                    call("effect", id=f"c{turn}", mark=f"c{turn}"),
                    call("keyed", id=f"k{turn}", mark=f"k{turn}"),
                )
            )
        case 1:
            return Reply(
                text="more",
                calls=(
                    call("side_effect", id=f"d{turn}", mark=f"d{turn}"),
                    call("side_effect", id=f"e{turn}", mark=f"e{turn}"),
                ),
            )
        case _:
            return Reply(text=f"done {turn}")


class Zygote:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.zygote"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, job: dict[str, object]) -> int:
        """The child's wait status: 9 when it was killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


class Rig:
    """One conversation with its store and its outside world, run by children that may be told to die."""

    def __init__(self, folder: Path, server: ModelServer, zygote: Zygote, mutation: str = "") -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        (self.home / "config.yaml").write_text(f"model: {{default: m, base_url: '{server.base_url}'}}\n")
        self.world = World(folder / "world")
        self._folder = folder
        self._zygote = zygote
        self._mutation = mutation
        self._runs = 0

    def run(self, fatal: Moment | None = None, kill_after_s: float | None = None) -> list[Moment]:
        """The moments that the child reached."""
        self._runs += 1
        trace = self._folder / f"trace{self._runs}"
        status = self._zygote.run(
            {
                "home": str(self.home),
                "world": str(self._folder / "world"),
                "trace": str(trace),
                "messages": MESSAGES,
                "fatal": msgspec.to_builtins(fatal),
                "mutation": self._mutation,
                "kill_after_s": kill_after_s,
            }
        )
        if fatal is None and kill_after_s is None:
            assert status == 0, self.world.lines()[-1:]
        return moments(World(trace).lines())

    async def problems(self) -> list[str]:
        async with SqliteStore(self.home, SystemClock()) as store:
            entries = [recorded.entry for recorded in await store.journal.entries(SESSION)]
        messages = [entry.message for entry in entries if isinstance(entry, MessageAdded)]
        world = self.world.lines()
        return [
            *transcript_problems(messages),
            *_twice(world),
            *_dishonest(world, messages),
            *_lost(messages),
            *_unanswered([entry for entry in entries if isinstance(entry, TurnStarted | TurnEnded)]),
            *(line for line in world if line.startswith("BROKE")),
        ]


def _twice(world: Sequence[str]) -> list[str]:
    done = Counter(line for line in world if line.startswith("effect "))
    return [f"{line} happened {count} times" for line, count in done.items() if count > 1]


def _dishonest(world: Sequence[str], messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        if isinstance(message, ToolResult) and message.name in ("effect", "side_effect"):
            happened = f"effect {message.call_id}" in world
            if message.disposition == "none" and happened:
                yield f"{message.call_id} happened, but the model was told that it did not start"
            if message.disposition == "done" and not happened:
                yield f"{message.call_id} did not happen, but the model was told that it did"


def _lost(messages: Sequence[Message]) -> list[str]:
    asked = [message.text for message in messages if isinstance(message, User) and message.author == "person"]
    answers = [message.text for message in messages if isinstance(message, Assistant) and not message.calls]
    wanted = ["done 1", "done 2"]
    return [
        *([f"asked {asked}"] if asked != MESSAGES else []),
        *([f"answers {answers}"] if answers != wanted else []),
    ]


def _unanswered(turns: Sequence[TurnStarted | TurnEnded]) -> list[str]:
    shape = [(type(turn).__name__, turn.turn) for turn in turns]
    ids = list(dict.fromkeys(turn.turn for turn in turns))
    wanted = [(name, turn) for turn in ids for name in ("TurnStarted", "TurnEnded")]
    return [] if shape == wanted and len(ids) == len(MESSAGES) else [f"turns {shape}"]


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer(respond=respond) as server:
        yield server
    illegal = [problem for request in server.requests for problem in chat_problems(request.json)]
    assert not illegal


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as zygote:
        yield zygote


async def test_an_undisturbed_conversation_has_no_problems(tmp_path: Path, server: ModelServer, zygote: Zygote) -> None:
    rig = Rig(tmp_path / "rig", server, zygote)
    rig.run()
    assert await rig.problems() == []
    effects = sorted(line for line in rig.world.lines() if line.startswith("effect"))
    assert effects == sorted(f"effect {mark}{turn}" for turn in "12" for mark in "acde")


@share
async def test_killed_at_every_moment_the_conversation_is_finished_whole(
    tmp_path: Path, server: ModelServer, zygote: Zygote, nth: int
) -> None:
    plan = Rig(tmp_path / "plan", server, zygote).run()
    assert len(plan) > 60
    found: dict[Moment, list[str]] = {}
    for fatal in plan[nth::SHARES]:
        rig = Rig(tmp_path / "rig", server, zygote)
        rig.run(fatal)
        rig.run()
        found[fatal] = await rig.problems()
    assert {moment: problems for moment, problems in found.items() if problems} == {}


async def kill_twice(rig: Rig, first: Moment, choose: Random | None) -> dict[tuple[Moment, Moment], list[str]]:
    """Kill at `first`, then during recovery: at one moment of it, or (without `choose`) at each."""
    rig.run(first)
    snapshot = rig.home.with_name("snapshot")
    shutil.copytree(rig.home, snapshot, ignore=shutil.ignore_patterns("*.sock"))
    before = rig.world.lines()
    recovery = rig.run()
    found: dict[tuple[Moment, Moment], list[str]] = {}
    for second in [choose.choice(recovery)] if choose else recovery:
        shutil.rmtree(rig.home)
        shutil.copytree(snapshot, rig.home)
        rig.home.with_name("world").write_text("".join(f"{line}\n" for line in before))
        rig.run(second)
        rig.run()
        problems = await rig.problems()
        if problems:
            found[first, second] = problems
    return found


@pytest.mark.parametrize("nth", [0, *(pytest.param(nth, marks=pytest.mark.long) for nth in range(1, SHARES))])
async def test_killed_again_during_recovery_the_conversation_is_finished_whole(
    tmp_path: Path, server: ModelServer, zygote: Zygote, nth: int
) -> None:
    choose = Random(20261115 + nth)
    for place, first in enumerate(Rig(tmp_path / "plan", server, zygote).run()[nth::SHARES]):
        rig = Rig(tmp_path / f"rig{place}", server, zygote)
        assert await kill_twice(rig, first, choose) == {}


@pytest.mark.long
async def test_killed_at_every_pair_of_moments_the_conversation_is_finished_whole(
    tmp_path: Path, server: ModelServer, zygote: Zygote
) -> None:
    for place, first in enumerate(Rig(tmp_path / "plan", server, zygote).run()):
        rig = Rig(tmp_path / f"rig{place}", server, zygote)
        assert await kill_twice(rig, first, None) == {}
        shutil.rmtree(tmp_path / f"rig{place}")


async def kill_at_random(rig: Rig, choose: Random) -> None:
    for _ in range(choose.randrange(1, 6)):
        rig.run(kill_after_s=choose.uniform(0.0, 0.25))
    rig.run()
    assert await rig.problems() == []


async def test_killed_at_random_times_the_conversation_is_finished_whole(
    tmp_path: Path, server: ModelServer, zygote: Zygote
) -> None:
    choose = Random(42)
    for _ in range(15):
        await kill_at_random(Rig(tmp_path / "rig", server, zygote), choose)


@pytest.mark.long
async def test_killed_at_random_times_by_the_thousand_the_conversation_is_finished_whole(
    tmp_path: Path, server: ModelServer, zygote: Zygote
) -> None:
    choose = Random()
    for _ in range(1_000):
        await kill_at_random(Rig(tmp_path / "rig", server, zygote), choose)


@pytest.mark.parametrize("mutation", MUTATIONS)
async def test_the_matrix_goes_red_when(mutation: str, tmp_path: Path, zygote: Zygote) -> None:
    with ModelServer(respond=respond) as server:
        plan = Rig(tmp_path / "plan", server, zygote, mutation).run()
        for fatal in Random(7).sample(plan, len(plan)):
            rig = Rig(tmp_path / "rig", server, zygote, mutation)
            rig.run(fatal)
            rig.run(NEVER)
            if await rig.problems():
                return
    pytest.fail(f"nobody noticed that {mutation}")
