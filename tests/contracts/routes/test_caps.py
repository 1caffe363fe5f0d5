"""Caps on tokens and money: reserved before each call, told in one sentence, never exceeded."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.port_proxies import StoreProxy

from talaria.core.errors import LimitReached, StoreUnavailable
from talaria.core.events import Notice
from talaria.core.ids import HoldId, OwnerId, SessionId
from talaria.core.messages import user
from talaria.runtime.turn_runner import Report
from talaria.store.base import Amount, Spending, Totals
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Failure, Faults, Reply, ReplyUsage, call
from talaria.tools.function import tool

if TYPE_CHECKING:
    from tests.contracts.routes.conftest import OpenHarness

    from talaria.testing.harness import Harness

PRICES = {"input": 10.0, "output": 100.0}


def settings(server: ModelServer, **limits: Any) -> dict[str, Any]:
    provider = {"base_url": server.base_url, "models": {"m": {"prices": PRICES, "max_tokens": 4_000}}}
    return {"model": {"default": "work:m"}, "providers": {"work": provider}, "limits": limits}


def said(output: int, text: str = "fine") -> Reply:
    return Reply(text, usage=ReplyUsage(input=100, output=output))


def asked_output(server: ModelServer) -> list[int]:
    return [request.json["max_tokens"] for request in server.requests]


@pytest.mark.parametrize("scope", ["session", "day", "person"])
async def test_a_cap_on_tokens_holds_over_turns(harness: "OpenHarness", primary: ModelServer, scope: str) -> None:
    async with harness(**settings(primary, **{scope: {"tokens": 5_000}})) as here:
        primary.say(said(3_000), said(900), "never asked for")
        assert (await here.ask()).text == "fine"
        assert (await here.ask()).text == "fine"
        report = await here.ask()
        assert isinstance(report.error, LimitReached)
        assert str(report.error).startswith("Stopped: ")
        assert "4,100 of 5,000 tokens" in str(report.error)
    first, second = asked_output(primary)
    assert first == 4_000
    assert second < 1_900  # what was left


@pytest.mark.parametrize("scope", ["turn", "session", "day", "person"])
async def test_a_cap_on_money_shortens_the_answer_that_it_cannot_pay_whole(
    harness: "OpenHarness", primary: ModelServer, scope: str
) -> None:
    async with harness(**settings(primary, **{scope: {"cost_usd": 0.2}})) as here:
        primary.say(said(1_900))
        assert (await here.ask()).text == "fine"
        report = await here.ask()
        assert scope == "turn" or isinstance(report.error, LimitReached)
    assert 1_500 < asked_output(primary)[0] < 2_000


@pytest.mark.parametrize("max_tokens", [64_000, None])
async def test_no_answer_may_be_longer_than_what_was_set_aside(
    harness: "OpenHarness", primary: ModelServer, max_tokens: int | None
) -> None:
    given = settings(primary, turn={"tokens": 40_000})
    given["providers"]["work"]["models"]["m"] = {"max_tokens": max_tokens} if max_tokens else {}
    async with harness(**given) as here:
        primary.say("fine")
        assert (await here.ask()).text == "fine"
    assert asked_output(primary)[0] < 40_000


async def test_an_answer_that_nobody_counted_is_counted_by_its_length(
    harness: "OpenHarness", primary: ModelServer
) -> None:
    async with harness(**settings(primary)) as here:
        primary.say(Reply("word " * 200, usage=None))
        await here.ask()
        (row,) = await here.app.store.spending.usage("model")
        assert 200 < row.usage.output < 500
        assert row.cost_usd > 0


async def test_what_was_written_before_an_answer_broke_off_is_counted(
    harness: "OpenHarness", primary: ModelServer
) -> None:
    async with harness(**settings(primary)) as here:
        broken = Reply("word " * 200, faults=Faults(cut_before_end=True, chunk_delay_s=0.002))
        primary.say(broken, said(10))
        assert (await here.ask()).text == "fine"
        (row,) = await here.app.store.spending.usage("model")
        assert row.calls == 2
        assert row.usage.output > 50


async def test_the_cost_of_a_turn_adds_up_over_its_rounds(harness: "OpenHarness", primary: ModelServer) -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "nothing"

    async with harness(tools=[look], **settings(primary, turn={"cost_usd": 0.5})) as here:
        rounds = [Reply(calls=(call("look", id=f"c{n}"),), usage=ReplyUsage(input=100, output=1_500)) for n in range(9)]
        primary.say(*rounds)
        report = await here.ask()
        assert isinstance(report.error, LimitReached)
        assert "this turn has cost $0." in str(report.error)
        assert len(primary.requests) <= 4


async def test_what_a_failed_call_had_set_aside_is_free_while_it_waits(
    harness: "OpenHarness", primary: ModelServer
) -> None:
    async with harness(**settings(primary, day={"tokens": 5_000})) as here:
        primary.say(Failure(429, headers={"retry-after": "100"}), said(100), said(100))
        waiting = asyncio.Event()
        here.clock.auto = False
        first = asyncio.create_task(
            here.live.ask(user("go"), lambda event: waiting.set() if isinstance(event, Notice) else None)
        )
        await waiting.wait()
        assert (await elsewhere(here)).text == "fine"
        here.clock.advance(101)
        assert (await first).text == "fine"


async def test_a_call_that_cannot_be_paid_is_not_made(harness: "OpenHarness", primary: ModelServer) -> None:
    async with harness(**settings(primary, turn={"cost_usd": 0.001})) as here:
        report = await here.ask()
        assert isinstance(report.error, LimitReached)
        assert "this turn has cost $0.00 of $0.00" in str(report.error)
    assert primary.requests == []


async def test_the_next_day_is_free_again_but_the_conversation_is_not(
    harness: "OpenHarness", primary: ModelServer
) -> None:
    async with harness(**settings(primary, day={"tokens": 4_500}, session={"tokens": 9_000})) as here:
        primary.say(said(4_000), said(4_000))
        assert (await here.ask()).text == "fine"
        assert "all work today has used" in str((await here.ask()).error)
        here.clock.advance(24 * 3600)
        assert (await here.ask()).text == "fine"
        here.clock.advance(24 * 3600)
        assert "this conversation has used" in str((await here.ask()).error)


async def test_conversations_at_the_same_time_do_not_together_exceed_the_day(harness: "OpenHarness") -> None:
    with ModelServer(respond=lambda request: said(min(3_900, request.json["max_tokens"]))) as server:
        async with harness(**settings(server, day={"tokens": 20_000})) as here:
            reports = await asyncio.gather(*(elsewhere(here) for _ in range(20)))
            spent = sum(report.usage.total for report in reports)
            assert {report.outcome for report in reports} == {"completed", "failed"}
            assert 12_000 <= spent <= 20_000


async def elsewhere(here: "Harness") -> Report:
    live = here.app.session(cwd=here.app.settings.home, origin="terminal")
    return await live.ask(user("go"))


async def test_a_failed_call_gives_back_what_was_set_aside(harness: "OpenHarness", primary: ModelServer) -> None:
    async with harness(**settings(primary, day={"tokens": 6_000})) as here:
        primary.say(Failure(400), Failure(400), said(3_000))
        assert (await here.ask()).outcome == "failed"
        assert (await here.ask()).outcome == "failed"
        assert (await here.ask()).text == "fine"


async def test_answers_that_were_thrown_away_are_paid_for_all_the_same(
    harness: "OpenHarness", primary: ModelServer
) -> None:
    empty = Reply("", usage=ReplyUsage(input=100, output=50))
    async with harness(**settings(primary)) as here:
        primary.say(empty, said(10))
        assert (await here.ask()).text == "fine"
        (row,) = await here.app.store.spending.usage("model")
        assert (row.key, row.calls, row.usage.output, row.unpriced_calls) == ("work:m", 2, 60, 0)
        assert row.cost_usd == pytest.approx((200 * 10 + 60 * 100) / 1e6)


async def test_each_call_is_written_down_under_the_model_that_answered(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    route = settings(primary)
    route["providers"]["house"] = {"base_url": fallback.base_url}
    async with harness(**route, fallback_providers="house:free") as here:
        primary.say(said(10), Failure(429))
        fallback.say(said(20))
        await here.ask()
        await here.ask()
        rows = {row.key: row for row in await here.app.store.spending.usage("model")}
        assert (rows["work:m"].usage.output, rows["work:m"].unpriced_calls) == (10, 0)
        assert (rows["house:free"].usage.output, rows["house:free"].unpriced_calls) == (20, 1)


@pytest.mark.parametrize("usage", [None, ReplyUsage(input=-5, output=-7), ReplyUsage(input=10**15, output=5)])
async def test_wrong_counts_do_not_break_the_next_call(
    harness: "OpenHarness", primary: ModelServer, usage: ReplyUsage | None
) -> None:
    async with harness(**settings(primary)) as here:
        primary.say(Reply("one", usage=usage), Reply("two", usage=usage))
        assert (await here.ask()).text == "one"
        assert (await here.ask()).text == "two"


class Flaky:
    """A ledger that cannot be written to at first."""

    def __init__(self, spending: Spending) -> None:
        self.failures = 3
        self.usage = spending.usage
        self.add = spending.add
        self._spending = spending

    async def hold(self, session: SessionId, person: str, owner: OwnerId, decide: Callable[[Totals], Amount]) -> HoldId:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("The disk is full.")
        return await self._spending.hold(session, person, owner, decide)


async def test_a_ledger_that_is_not_well_is_waited_for(harness: "OpenHarness", primary: ModelServer) -> None:
    async with harness(**settings(primary, day={"tokens": 9_000})) as here:
        store = StoreProxy(here.app.store, here.app.store.journal)
        store.spending = Flaky(here.app.store.spending)
        primary.say("fine")
        live = replace(here.app, store=store).session(cwd=here.app.settings.home, origin="terminal")
        assert (await live.ask(user("go"), here.events.append)).text == "fine"
        assert [event.text for event in here.events if isinstance(event, Notice)] == [
            "The disk is full. Waiting for it."
        ]
