"""Kill -9 at every moment between a message and its answer, on each platform, and again while the gateway recovers:
nothing lost, nothing silently twice, all in order."""

import asyncio
import json
import re
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec
import pytest
from tests.crash.dying_gateways import Zygote, answer, effects_twice, ends, journal_problems, respond, send_signal
from tests.rules import chat_problems
from tests.servers.discord_server import DiscordServer
from tests.servers.slack_server import SlackServer

from talaria.core.clock import SystemClock
from talaria.gateway.dispatcher import CUT_OFF
from talaria.gateway.envelope import MARK, read_body
from talaria.store.base import Store
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.crash import Moment, World, moments
from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.chat_service import ChatService
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.telegram_server import TelegramServer

LOOK_S = 0.01
COMMAND = "command"
CONNECTED = "connected"
TORN = "inside what should be one commit"
SHARES = 4
"""Of the matrix, so that its parts can run side by side; on each service one of them, the others in the long run."""
LONG_SHARES = 50
long_share = pytest.mark.parametrize("nth", range(LONG_SHARES))
PlatformName = Literal["telegram", "discord", "slack"]
SERVERS: dict[PlatformName, Any] = {"telegram": TelegramServer, "discord": DiscordServer, "slack": SlackServer}
on_each_platform = pytest.mark.parametrize("platform", SERVERS)


def long_but(quick: PlatformName) -> list[Any]:
    """On each platform, on the others than this one only in the long run."""
    return [pytest.param(name, marks=[] if name == quick else [pytest.mark.long]) for name in SERVERS]


PREFIX = {"slack": "U"}
KEEPS_KEYS = frozenset({"discord"})
"""A message that is sent again there, with the same key and soon, is not there twice."""

QUICK = (["tool1", "long1"], ["plain1", COMMAND, "plain2"])
SLOW = (["long_slow1"], ["plain1"])
"""Slow enough that people see the answer while it is written."""
MUTATIONS: dict[str, tuple[PlatformName, Sequence[Sequence[str]], str]] = {
    "mail is acknowledged before it is on the disk": ("telegram", QUICK, "before accept"),
    "the cursor moves before the mail is on the disk": ("discord", QUICK, TORN),
    "mail is done before its reply is written": ("telegram", QUICK, TORN),
    "start is committed after the wire": ("telegram", QUICK, "after send"),
    "what is sent again is not marked": ("telegram", QUICK, "after send"),
    "a draft has another key than its answer": ("telegram", SLOW, "after begin"),
    "each attempt has a key of its own": ("discord", QUICK, "after send"),
}
"""Where each is noticed."""

_WHOAMI = re.compile(r"[^\n]+ · \S+ · admin")
_users = count(2000)


def _translated(text: str) -> str:
    """How the command was answered, be it that nobody knows, as if the model had said it."""
    return _WHOAMI.sub(answer(COMMAND), text.replace(CUT_OFF, answer(COMMAND)))


async def _is_missed(service: ChatService) -> None:
    """Until the service knows that nobody listens: what is said from then on is not told, it must be asked for."""
    match service:
        case DiscordServer():
            await service.gateway.wait_until(lambda: service.gateway.connections == 0)
        case SlackServer():
            await service.wait_for_lines(0)
        case _:
            pass


class Person:
    """Says one thing after the other, each when the one before is answered; and more in between, unasked."""

    def __init__(self, service: ChatService, world: World, *script: str) -> None:
        self.id = str(next(_users))
        self.said: list[str] = []
        self._service = service
        self._world = world
        self._script = list(script)

    @property
    def texts(self) -> list[str]:
        return [_translated(seen.text) for seen in self._service.list_messages(user=self.id)]

    async def say(self, tag: str) -> None:
        self.said.append(tag)
        await self._service.say("/whoami" if tag == COMMAND else f"please ask-{tag}", user=self.id)

    async def go_on(self) -> bool:
        """True: all is said and answered."""
        given_up = [_translated(line) for line in self._world.lines() if line.startswith("given up")]
        known = "\n".join([*self.texts, *given_up])
        if not all(f"end-{tag}" in known for tag in self.said):
            return False
        if self._script:
            await self.say(self._script.pop(0))
            return False
        return True


class Town:
    """A chat service, and a home in which a gateway has been once."""

    def __init__(
        self, folder: Path, platform: PlatformName, service: ChatService, model: ModelServer, zygote: Zygote
    ) -> None:
        self.folder = folder
        self.platform: PlatformName = platform
        self.service = service
        self.zygote = zygote
        self._model = model
        self._numbers = count()
        self.deaths = 0

    def case(self, *scripts: Sequence[str], mutation: str = "") -> "Case":
        return Case(self, self.folder / f"case{self.next_number()}", scripts, mutation)

    @property
    def used_home(self) -> Path:
        return self.folder / "used"

    def next_number(self) -> int:
        """Of a case."""
        return next(self._numbers)

    def settings(self, folder: Path, people: Sequence[Person], more: Mapping[str, Any] | None = None) -> str:
        prefix = PREFIX.get(self.platform, "")
        settings = {**self.service.settings, "allowed_users": [f"{prefix}{one.id}" for one in people], **(more or {})}
        gateway = {"workspace": str(folder / "people"), "platforms": {self.platform: settings}}
        return json.dumps({"model": {"default": "m", "base_url": self._model.base_url}, "gateway": gateway})


class Case:
    """Two chats and the gateway between them and the model, run by children that may be told to die."""

    def __init__(self, town: Town, folder: Path, scripts: Sequence[Sequence[str]], mutation: str) -> None:
        self._town = town
        self._folder = folder
        self._mutation = mutation
        self.world = World(folder / "world")
        self.people = [Person(town.service, self.world, *script) for script in scripts]
        self.patience_s = 2.0 if mutation else PATIENCE_S
        self._deaths = 0
        self._runs = 0
        folder.mkdir(parents=True)
        if town.used_home.exists():
            shutil.copytree(town.used_home, self.home)
        self.home.mkdir(exist_ok=True)
        (self.home / "config.yaml").write_text(town.settings(folder, self.people))

    @property
    def home(self) -> Path:
        return self._folder / "home"

    async def run(self, fatal: Moment | None = None, kill_after_s: float | None = None) -> list[Moment]:
        """Until it is dead, or all is said and answered and nothing left to do. The moments that the child reached."""
        self._runs += 1
        file = self._folder / f"trace{self._runs}"
        trace = World(file)
        job = {"home": self.home, "world": self._folder / "world", "trace": file, "runtime": self._folder}
        more = {"fatal": msgspec.to_builtins(fatal), "mutation": self._mutation}
        pid = await self._town.zygote.start({**{name: str(path) for name, path in job.items()}, **more})
        ended = asyncio.ensure_future(self._town.zygote.told())
        try:
            async with asyncio.timeout(self.patience_s if kill_after_s is None else kill_after_s):
                await self._converse(ended, trace)
                if kill_after_s is None:
                    send_signal(pid, signal.SIGTERM)
                await asyncio.wait([ended])
        except TimeoutError:
            send_signal(pid, signal.SIGKILL)
            if kill_after_s is None:
                self.world.add(f"BROKE it took more than {self.patience_s} s")
        if await ended != 0:
            self._deaths += 1
            self._town.deaths += 1
            assert fatal or kill_after_s or self._mutation, self.world.lines()[-1:]
        return moments(trace.lines())

    async def _converse(self, ended: "asyncio.Future[int]", trace: World) -> None:
        """Whom nobody has heard of yet is not asked about later: the first word is said when somebody listens."""
        while not ended.done() and not self._town.used_home.exists() and CONNECTED not in trace.lines():
            await asyncio.wait([ended], timeout=LOOK_S)
        while not ended.done() and not all([await person.go_on() for person in self.people]):
            await asyncio.wait([ended], timeout=LOOK_S)

    async def kill(self, *moments: Moment) -> list[Moment]:
        """At each of them in turn. Meanwhile people talk. What it does in the end, when it is left alone."""
        for nth, fatal in enumerate(moments):
            await self.run(fatal)
            if nth == 0:
                await _is_missed(self._town.service)
            await self.people[0].say(f"late{nth}")
        return await self.run()

    async def problems(self) -> list[str]:
        async with SqliteStore(self.home, SystemClock()) as store:
            kept = [problem async for problem in self._kept_wrong(store)]
            given_up = [_translated(read_body(row.body).text) for row in await store.outbox.list(["failed"])]
        return [
            *kept,
            *(f"given up: {text[:80]}" for text in given_up if not self._may_give_up),
            *(problem for person in self.people for problem in self._seen_wrong(person, given_up)),
            *effects_twice(self.world.lines()),
            *(line for line in self.world.lines() if line.startswith("BROKE")),
        ]

    @property
    def _may_give_up(self) -> bool:
        """Who is killed both times when something is under way does not know whether it arrived."""
        return self._deaths > 1 and self._town.platform not in KEEPS_KEYS

    async def _kept_wrong(self, store: Store) -> AsyncIterator[str]:
        for session in await store.inbox.list_sessions():
            yield f"mail of {session} is not done"
        for row in await store.outbox.list(["pending", "started", "expired"]):
            yield f"reply {row.key} is {row.state}"
        asked: list[str] = []
        async for problem in journal_problems(store, self.world.lines(), asked):
            yield problem
        for tag in (tag for person in self.people for tag in person.said):
            if asked.count(tag) != 1 and tag != COMMAND:
                yield f"{tag} was asked {asked.count(tag)} times"

    def _seen_wrong(self, person: Person, given_up: Sequence[str]) -> Iterator[str]:
        texts = person.texts
        marked = Counter(text for text in texts if MARK in text)
        if marked and self._town.platform in KEEPS_KEYS:
            yield f"marked: {sorted(marked)}"
        yield from (f"marked {times} times: {text[:80]}" for text, times in marked.items() if times > 1)
        wanted = " ".join(answer(tag) for tag in person.said)
        shown = _without_told_doubles(texts)
        for text in (text for text in given_up if text not in shown):
            wanted = wanted.replace(" ".join(text.split()), "", 1)
            shown = [one for one in shown if not _is_draft(one, text)]
        if " ".join(shown).split() != wanted.split():
            yield f"{person.said} was answered {[f'{text[:40]} ... {text[-40:]}' for text in texts]}"


def _without_told_doubles(texts: Sequence[str]) -> list[str]:
    """What carries the mark may be there already, as it is or as far as it was written then."""
    shown: list[str] = []
    for text in texts:
        plain = text.replace(MARK, "").strip()
        if plain != text and shown and _is_draft(shown[-1], plain):
            shown.pop()
        shown.append(plain)
    return shown


def _is_draft(shown: str, text: str) -> bool:
    return shown.startswith("⚙") or text.startswith(shown.removesuffix(" …"))


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as zygote:
        yield zygote


@pytest.fixture
async def new_town(tmp_path: Path, platform: PlatformName, zygote: Zygote) -> AsyncIterator[Town]:
    """In which no gateway has been yet."""
    async with AsyncExitStack() as stack:
        model = stack.enter_context(ModelServer(respond=respond))
        service = await stack.enter_async_context(SERVERS[platform]())
        yield Town(tmp_path, platform, service, model, zygote)
        illegal = [problem for request in model.requests for problem in chat_problems(request.json)]
        assert not illegal


@pytest.fixture
async def town(new_town: Town) -> Town:
    first = new_town.case(["first"])
    await first.run()
    first.home.rename(new_town.used_home)
    return new_town


_ON_THE_WIRE = frozenset(f"after {what}" for what in ("begin", "start due", "send", "edit", "mark sent"))


def while_written(plan: Sequence[Moment]) -> list[Moment]:
    """Around the wire, from when people begin to see the answer."""
    names = [moment.name for moment in plan]
    shown = plan[names.index("before begin") :]
    return [moment for moment in shown if moment.name == "before edit" or moment.name in _ON_THE_WIRE]


async def killed(town: Town, scripts: Sequence[Sequence[str]], *fatal: Moment) -> list[str]:
    case = town.case(*scripts)
    await case.kill(*fatal)
    return [f"killed at {fatal}: {problem}" for problem in await case.problems()]


@on_each_platform
async def test_undisturbed_all_is_answered(town: Town) -> None:
    for scripts in (QUICK, SLOW):
        case = town.case(*scripts)
        await case.run()
        assert await case.problems() == []
        assert not any(MARK in text for person in case.people for text in person.texts)


@pytest.mark.parametrize(
    ("platform", "nth"),
    [
        pytest.param(name, nth, marks=[] if nth == place else [pytest.mark.long])
        for place, name in enumerate(SERVERS)
        for nth in range(SHARES)
    ],
)
async def test_killed_at_each_kind_of_moment_all_is_answered(town: Town, nth: int) -> None:
    plan = ends(await town.case(*QUICK).run())
    assert len(plan) > 36
    assert [problem for fatal in plan[nth::SHARES] for problem in await killed(town, QUICK, fatal)] == []
    assert town.deaths > 0.5 * len(plan) / SHARES


@pytest.mark.parametrize("platform", long_but("discord"))
async def test_killed_while_the_answer_is_written_all_is_answered(town: Town) -> None:
    plan = ends(while_written(await town.case(*SLOW).run()))
    assert {"before edit", *_ON_THE_WIRE} == {moment.name for moment in plan}
    assert [problem for fatal in plan for problem in await killed(town, SLOW, fatal)] == []
    assert town.deaths > 0.5 * len(plan)


async def kill_twice(town: Town, first: Moment, choose: Random, times: int) -> list[str]:
    recovery = await town.case(*QUICK).kill(first)
    seconds = choose.sample(recovery, times)
    return [problem for second in seconds for problem in await killed(town, QUICK, first, second)]


@pytest.mark.parametrize("platform", long_but("telegram"))
async def test_killed_again_during_recovery_all_is_answered(town: Town) -> None:
    choose = Random(20261205)
    for first in choose.sample(ends(await town.case(*QUICK).run()), 3):
        assert await kill_twice(town, first, choose, 1) == []


@on_each_platform
async def test_killed_each_time_that_something_is_sent_nothing_is_repeated_without_end(town: Town) -> None:
    for name in ("before send", "after send"):
        assert await killed(town, QUICK, *[Moment(name)] * 3) == []


async def kill_at_random(case: Case, choose: Random) -> None:
    for nth in range(choose.randrange(1, 4)):
        await case.run(kill_after_s=choose.uniform(0.02, 0.3))
        await case.people[0].say(f"late{nth}")
    await case.run()
    assert await case.problems() == []


@on_each_platform
async def test_killed_at_random_times_all_is_answered(town: Town) -> None:
    choose = Random(42)
    for _ in range(2):
        await kill_at_random(town.case(*QUICK), choose)


@long_share
@on_each_platform
@pytest.mark.long
async def test_killed_at_every_moment_and_again_all_is_answered(town: Town, nth: int) -> None:
    choose = Random(nth)
    for scripts in (QUICK, SLOW):
        for first in (await town.case(*scripts).run())[nth::LONG_SHARES]:
            assert await killed(town, scripts, first) == []
            assert await kill_twice(town, first, choose, 6) == []


@long_share
@on_each_platform
@pytest.mark.long
async def test_killed_at_random_times_by_the_hundred_all_is_answered(town: Town, nth: int) -> None:
    choose = Random()
    for at in range(100 // LONG_SHARES):
        await kill_at_random(town.case(*(SLOW if (nth + at) % 5 == 0 else QUICK)), choose)


@pytest.mark.parametrize("platform", ["discord", "slack"])
async def test_what_is_said_while_a_gateway_is_away_that_nobody_had_spoken_to_is_answered(new_town: Town) -> None:
    case = new_town.case([])
    await case.run(Moment("after acknowledge"), kill_after_s=PATIENCE_S)
    await _is_missed(new_town.service)
    await case.people[0].say("first")
    await case.run()
    assert await case.problems() == []


@pytest.mark.parametrize(("platform", "mutation"), [(MUTATIONS[name][0], name) for name in MUTATIONS])
async def test_the_matrix_goes_red_when(town: Town, mutation: str) -> None:
    _, scripts, name = MUTATIONS[mutation]
    for occurrence in range(1, 4):
        case = town.case(*scripts, mutation=mutation)
        await case.kill(Moment(name, occurrence))
        if await case.problems():
            return
    pytest.fail(f"nobody noticed that {mutation}")
