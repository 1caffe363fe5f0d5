"""Kill -9 at every commit between a request and its answer: a program that asks again with the same key gets the same
answer, and what was asked has happened once."""

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from random import Random

import pytest
from tests.crash.api_cases import ApiHome, Ask, chat, response
from tests.crash.dying_gateways import Zygote, answer, ends, respond
from tests.ports import reserved_port
from tests.rules import chat_problems

from talaria.testing.crash import Moment
from talaria.testing.servers.model_server import ModelServer

SHARES = 3
LONG_SHARES = 20
KINDS: dict[str, Sequence[Ask]] = {
    "a conversation by its name": [
        chat("please ask-tool1", key="one", name="room"),
        chat("please ask-tool2", key="two", name="room"),
    ],
    "a history that was sent along": [chat("please ask-tool1", key="one", history=["hello", "hi there"], stream=True)],
    "a response in the background": [response("please ask-tool1", key="one", background=True)],
}
QUICK = "a conversation by its name"
on_each_kind = pytest.mark.parametrize("kind", KINDS)


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
        illegal = [problem for request in model.requests for problem in chat_problems(request.json)]
        assert not illegal


async def killed(home: ApiHome, asks: Sequence[Ask], *fatal: Moment) -> list[str]:
    case = home.case(asks)
    await case.kill(*fatal)
    return [f"killed at {fatal}: {problem}" for problem in await case.problems()]


@on_each_kind
async def test_undisturbed_each_key_has_one_answer(home: ApiHome, kind: str) -> None:
    case = home.case(KINDS[kind])
    await case.run()
    await case.run()
    assert await case.problems() == []
    for one in KINDS[kind]:
        tag = {"one": "tool1", "two": "tool2"}[one.key]
        assert [given.text for given in case.answers[one.key]] == [answer(tag)] * 2


@on_each_kind
@pytest.mark.parametrize("nth", range(SHARES))
async def test_killed_at_each_kind_of_moment_the_answer_is_the_same(home: ApiHome, kind: str, nth: int) -> None:
    asks = KINDS[kind]
    plan = ends(await home.case(asks).run())
    assert len(plan) > 15
    assert [problem for fatal in plan[nth::SHARES] for problem in await killed(home, asks, fatal)] == []
    assert home.deaths > 0.8 * len(plan) / SHARES


async def kill_twice(home: ApiHome, asks: Sequence[Ask], first: Moment, choose: Random, times: int) -> list[str]:
    recovery = await home.case(asks).kill(first)
    seconds = choose.sample(recovery, times)
    return [problem for second in seconds for problem in await killed(home, asks, first, second)]


@pytest.mark.parametrize("kind", [QUICK])
async def test_killed_again_during_recovery_the_answer_is_the_same(home: ApiHome, kind: str) -> None:
    choose = Random(20261205)
    for first in choose.sample(ends(await home.case(KINDS[kind]).run()), 4):
        assert await kill_twice(home, KINDS[kind], first, choose, 2) == []


async def kill_at_random(home: ApiHome, asks: Sequence[Ask], choose: Random) -> None:
    case = home.case(asks)
    for _ in range(choose.randrange(1, 4)):
        await case.run(kill_after_s=choose.uniform(0.02, 0.3))
    await case.run()
    assert await case.problems() == []


@on_each_kind
async def test_killed_at_random_times_the_answer_is_the_same(home: ApiHome, kind: str) -> None:
    choose = Random(7)
    for _ in range(3):
        await kill_at_random(home, KINDS[kind], choose)


@pytest.mark.long
@pytest.mark.parametrize("nth", range(LONG_SHARES))
@on_each_kind
async def test_killed_at_every_moment_and_again_the_answer_is_the_same(home: ApiHome, kind: str, nth: int) -> None:
    choose = Random(nth)
    for first in (await home.case(KINDS[kind]).run())[nth::LONG_SHARES]:
        assert await killed(home, KINDS[kind], first) == []
        assert await kill_twice(home, KINDS[kind], first, choose, 4) == []


@pytest.mark.long
@pytest.mark.parametrize("nth", range(LONG_SHARES))
@on_each_kind
async def test_killed_at_random_times_by_the_hundred_the_answer_is_the_same(home: ApiHome, kind: str, nth: int) -> None:
    choose = Random()
    for _ in range(100 // LONG_SHARES):
        await kill_at_random(home, KINDS[kind], choose)
