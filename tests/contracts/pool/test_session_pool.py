"""The session pool: when a live session is used again, how many are kept, and that none is taken out of a turn."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.contracts.pool.conftest import Closed, House, OpenHouse
from tests.scripted_provider import ScriptedProvider

from talaria.core.events import Event, TextDelta
from talaria.core.ids import SessionId
from talaria.core.messages import user
from talaria.runtime.session_config import SessionConfig
from talaria.runtime.session_pool import CAP, IDLE_S, SessionPool
from talaria.store.chat_ports import Inbound
from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Failure, Faults, Reply
from talaria.tools.function import tool

MODEL: dict[str, Any] = {"provider": "custom", "default": "big", "api_key": "sk-1"}
BASE = "http://127.0.0.1:1/v1"


def system_prompt(server: ModelServer, request: int) -> str:
    return server.requests[request].json["messages"][0]["content"]


@pytest.fixture
async def one(house: OpenHouse) -> AsyncIterator[House]:
    async with house() as opened:
        yield opened


async def setup_with(house: OpenHouse, **config: Any) -> SessionConfig:
    async with house(**config) as opened:
        return opened.setup()


# What a live session is made from.


@pytest.mark.clause("C-01")
async def test_the_same_settings_make_the_same_setup(house: OpenHouse) -> None:
    async with house(model={**MODEL, "base_url": BASE}) as one:
        assert one.setup(instructions="Be brief.") == one.setup(instructions="Be brief.")
        assert one.setup(instructions="Be brief.") != one.setup()
    again = await setup_with(house, model={**MODEL, "base_url": BASE})
    assert again == one.setup()


@pytest.mark.parametrize(
    "model",
    [
        pytest.param({"default": "small"}, marks=pytest.mark.clause("C-02"), id="model"),
        pytest.param({"base_url": "http://127.0.0.1:2/v1"}, marks=pytest.mark.clause("C-04"), id="address"),
        pytest.param({"provider": "anthropic"}, marks=pytest.mark.clause("C-04"), id="provider"),
        pytest.param({"wire": "openai_responses"}, marks=pytest.mark.clause("C-04"), id="wire"),
        pytest.param({"context_length": 9_000}, marks=pytest.mark.clause("C-X2"), id="window"),
    ],
)
async def test_another_model_makes_another_setup(house: OpenHouse, model: dict[str, Any]) -> None:
    plain = {**MODEL, "base_url": BASE}
    assert await setup_with(house, model={**plain, **model}) != await setup_with(house, model=plain)


@pytest.mark.clause("C-03")
async def test_all_of_a_key_counts_and_nothing_of_it_can_be_read(house: OpenHouse) -> None:
    key = "sk-proj-" + "a" * 200
    made = [await setup_with(house, model={**MODEL, "base_url": BASE, "api_key": f"{key}{end}"}) for end in "xyx"]
    assert made[0] == made[2] != made[1]
    assert "sk-proj" not in repr(made)


@tool
async def look() -> str:
    """Look around."""
    return "seen"


@pytest.mark.clause("C-05")
async def test_other_tools_make_another_setup(house: OpenHouse) -> None:
    assert await setup_with(house, brings=(look,)) != await setup_with(house)


@pytest.mark.clause("C-06")
async def test_how_hard_the_model_thinks_is_no_part_of_it(house: OpenHouse) -> None:
    made = [
        await setup_with(house, model={**MODEL, "base_url": BASE, "reasoning_effort": effort})
        for effort in ("low", "high", None)
    ]
    assert made[0] == made[1] == made[2]


@pytest.mark.clause("C-X2")
@pytest.mark.parametrize(
    "config",
    [
        {"compression": {"enabled": False}},
        {"compression": {"threshold": 0.9}},
        {"memory": {"provider": "other"}},
        {"tools": {"disabled": ["terminal"]}},
        {"fallback_providers": [{"provider": "custom", "model": "x", "base_url": BASE}]},
    ],
    ids=lambda config: next(iter(config)),
)
async def test_whatever_else_shapes_a_conversation_is_part_of_it(house: OpenHouse, config: dict[str, Any]) -> None:
    assert await setup_with(house, **config) != await setup_with(house)


@pytest.mark.clause("C-X2")
async def test_who_asks_and_where_is_part_of_it(one: House) -> None:
    made = {
        msgspec.json.encode(one.setup(**given), enc_hook=str)
        for given in ({}, {"person": "telegram:1"}, {"person": "telegram:2"}, {"conversation": "agent:main:x:dm:1"})
    }
    assert len(made) == 4


# Used again, and changed in place.


@pytest.mark.clause("C-07")
async def test_the_second_message_finds_the_same_live_session(one: House, server: ModelServer) -> None:
    server.say("one", "two")
    await one.ask("a")
    live = await one.open("a")
    await one.ask("a")
    assert await one.open("a") is live
    assert (len(one.pool), len(server.requests)) == (1, 2)


@pytest.mark.clause("C-08")
async def test_another_setup_calls_for_another_live_session(one: House, server: ModelServer) -> None:
    server.say("one", "two")
    await one.ask("a", "remember the cat")
    live = await one.open("a")
    another = await one.open("a", one.setup(person="telegram:2"))
    assert another is not live
    assert (live.is_unloaded, another.is_unloaded, one.kept) == (True, False, ["a"])
    await another.ask(user("what animal?"))
    assert "remember the cat" in server.requests[1].body.decode()


@pytest.mark.clause("C-09")
@pytest.mark.clause("C-10")
async def test_what_is_released_is_gone_and_all_others_stay(one: House) -> None:
    lives = {name: await one.open(name) for name in "abc"}
    assert one.pool.evict(SessionId("b"))
    assert one.kept == ["a", "c"]
    assert one.pool.find(SessionId("b")) is None
    assert [name for name, live in lives.items() if live.is_unloaded] == ["b"]
    assert not one.pool.evict(SessionId("b"))


@pytest.mark.clause("C-11")
@pytest.mark.clause("C-12")
async def test_effort_may_change_with_each_message_and_the_prompt_never(one: House, server: ModelServer) -> None:
    (one.app.home / "SOUL.md").write_text("Be kind.")
    server.say("one", "two", "three")
    for effort in ("low", "high"):
        live = await one.open("a")
        await live.ask(user("go"), options=msgspec.structs.replace(one.app.turn_options(), effort=effort))
        (one.app.home / "SOUL.md").write_text("Be rude.")
    assert [request.json["reasoning_effort"] for request in server.requests] == ["low", "high"]
    assert "Be kind." in system_prompt(server, 0)
    assert system_prompt(server, 0) == system_prompt(server, 1)
    one.pool.evict(live.id)
    await one.ask("a")
    assert system_prompt(server, 2) == system_prompt(server, 0)


@pytest.mark.clause("C-13")
async def test_each_message_has_an_observer_of_its_own(one: House, server: ModelServer) -> None:
    server.say("one", "two")
    seen: list[list[Event]] = [[], []]
    live = await one.open("a")
    for shown in seen:
        await one.ask("a", observer=shown.append)
    texts = ["".join(event.text for event in shown if isinstance(event, TextDelta)) for shown in seen]
    assert texts == ["one", "two"]
    assert await one.open("a") is live


# How many are kept.


@pytest.mark.clause("C-14")
async def test_the_least_recently_used_goes_when_there_are_too_many(one: House) -> None:
    for name in "abcde":
        await one.open(name)
    assert one.kept == ["c", "d", "e"]


@pytest.mark.clause("C-15")
@pytest.mark.clause("C-16")
async def test_what_was_used_is_no_longer_the_oldest(one: House) -> None:
    for name in "abc":
        await one.open(name)
    await one.open("a")
    assert one.kept == ["b", "c", "a"]
    one.pool.touch(SessionId("b"))
    assert one.kept == ["c", "a", "b"]
    await one.open("d")
    assert one.kept == ["a", "b", "d"]


@pytest.mark.clause("C-17")
async def test_who_has_to_go_is_released_softly_and_nobody_else_is(one: House) -> None:
    lives = [await one.open(name) for name in "abcd"]
    assert [live.is_unloaded for live in lives] == [True, False, False, False]


@pytest.mark.clause("C-18")
async def test_those_that_rested_too_long_are_released(one: House, server: ModelServer) -> None:
    server.say("one", "two")
    await one.ask("a")
    one.clock.advance(IDLE_S - 10)
    await one.ask("b")
    one.clock.advance(11)
    assert one.pool.sweep() == 1
    assert one.kept == ["b"]
    assert one.pool.sweep() == 0


@pytest.mark.clause("C-19")
async def test_who_never_had_a_turn_does_not_rest(one: House) -> None:
    await one.open("a")
    one.clock.advance(100 * IDLE_S)
    assert one.pool.sweep() == 0
    assert one.kept == ["a"]


@pytest.mark.clause("C-20")
async def test_bounding_never_fails_whatever_there_is(house: OpenHouse) -> None:
    async with house(cap=1) as one:
        names = [f"s{number}" for number in range(200)]
        async with one.busy(*names):
            assert one.pool.sweep() == 0
            assert len(one.pool) == 200
            await one.open("another")
        await one.open("the last")
        assert one.kept == ["the last"]


# Never in the middle of a turn.


@pytest.mark.clause("C-21")
async def test_one_in_a_turn_stays_and_no_younger_one_goes_in_its_place(one: House) -> None:
    async with one.busy("a"):
        lives = [await one.open(name) for name in "bcd"]
        assert one.kept == ["a", "b", "c", "d"]
        assert not any(live.is_unloaded for live in lives)


@pytest.mark.clause("C-22")
async def test_only_the_oldest_beyond_the_cap_may_go(house: OpenHouse) -> None:
    async with house(cap=2) as one, one.busy("a"):
        lives = [await one.open(name) for name in "bcd"]
        assert one.kept == ["a", "c", "d"]
        assert [live.is_unloaded for live in lives] == [True, False, False]


@pytest.mark.clause("C-23")
async def test_it_is_told_once_when_all_that_could_go_are_mid_turn(
    house: OpenHouse, caplog: pytest.LogCaptureFixture
) -> None:
    async with house(cap=2) as one:
        for number in (1, 2):
            async with one.busy("a", "b", "c", "d"):
                assert one.kept == ["a", "b", "c", "d"]
                told = [record for record in caplog.records if "mid-turn" in record.getMessage()]
                assert [record.levelno for record in told] == [logging.WARNING] * number
            for name in "cdab":
                one.pool.evict(SessionId(name))


@pytest.mark.clause("C-24")
async def test_one_that_has_not_begun_its_turn_is_in_nobodys_way(one: House) -> None:
    lives = [await one.open(name) for name in "abc"]
    await one.open("d")
    assert [live.is_unloaded for live in lives] == [True, False, False]


@pytest.mark.clause("C-25")
async def test_one_in_a_turn_does_not_rest_however_long_it_takes(one: House) -> None:
    await one.through(ScriptedProvider()).ask("a")
    async with one.busy("a"):
        one.clock.advance(100 * IDLE_S)
        assert one.pool.sweep() == 0
        assert one.kept == ["a"]


@pytest.mark.clause("C-26")
async def test_a_turn_goes_on_over_its_connection_while_others_are_released(one: House, server: ModelServer) -> None:
    server.say(Reply("slow but sure", faults=Faults(first_byte_delay_s=0.2)), "and again")
    slow = asyncio.create_task(one.ask("a"))
    await asyncio.to_thread(server.wait_for_requests, 1)
    for name in "bcdef":
        await one.open(name)
    assert one.pool.sweep() == 0
    assert (await slow).text == "slow but sure"
    assert (await one.ask("a")).text == "and again"


@pytest.mark.clause("C-27")
async def test_many_at_once_settle_at_the_cap(house: OpenHouse) -> None:
    async with house(cap=16) as one:
        model = Closed()
        through = one.through(model)
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            turns = [group.create_task(through.ask(f"s{number}")) for number in range(160)]
            while len(one.pool) < 160:
                await asyncio.sleep(0)
            model.door.set()
        assert {turn.result().outcome for turn in turns} == {"completed"}
        assert len(one.pool) == 16


@pytest.mark.clause("C-27")
async def test_eight_who_open_twenty_each_settle_at_the_cap(house: OpenHouse) -> None:
    async with house(cap=16) as one:
        through = one.through(ScriptedProvider())

        async def talk(who: int) -> None:
            for number in range(20):
                await through.ask(f"{who}-{number}")

        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            for who in range(8):
                group.create_task(talk(who))
        assert len(one.pool) == 16


@pytest.mark.clause("C-28")
async def test_after_its_release_a_conversation_goes_on_in_a_fresh_one(one: House, server: ModelServer) -> None:
    server.say("one", "two")
    await one.ask("a", "remember the cat")
    stale = await one.open("a")
    one.pool.evict(stale.id)
    fresh = await one.open("a")
    assert (fresh is stale, stale.is_unloaded) == (False, True)
    assert (await one.ask("a")).text == "two"
    assert "remember the cat" in server.requests[1].body.decode()


@pytest.mark.clause("C-28")
async def test_one_that_holds_its_conversation_for_the_next_message_is_not_dropped(house: OpenHouse) -> None:
    """Else nobody could take it up again: whoever holds it is alive."""
    async with house(cap=1) as one:
        through = one.through(ScriptedProvider())
        async with one.busy("a"):
            mail = Inbound("telegram", "bot", "1", "m1", SessionId("a"), "{}")
            await one.app.store.inbox.accept([mail])
        assert not one.pool.evict(SessionId("a"))
        await through.open("b")
        assert one.kept == ["a", "b"]
        another = await through.open("a", through.setup(person="telegram:2"))
        assert (await another.ask(user("and now?"))).outcome == "completed"


@pytest.mark.clause("C-34")
async def test_after_a_turn_on_a_fallback_the_same_live_session_begins_at_the_primary(
    house: OpenHouse, server: ModelServer
) -> None:
    with ModelServer() as other:
        entry = {"provider": "custom", "model": "small", "base_url": other.base_url}
        async with house(fallback_providers=[entry]) as one:
            server.say(Failure(400), "back again")
            other.say("meanwhile")
            assert (await one.ask("a")).text == "meanwhile"
            live = await one.open("a")
            assert (await one.ask("a")).text == "back again"
            assert await one.open("a") is live
    assert [request.json["model"] for request in server.requests] == ["big", "big"]


@pytest.mark.clause("C-X1")
async def test_what_is_usual(one: House) -> None:
    assert (CAP, IDLE_S) == (128, 3600)
    usual = SessionPool(one.clock)
    setup = one.setup()
    for number in range(130):
        id = SessionId(f"s{number}")
        usual.get(id, setup, lambda id=id: one.app.live_session(id, None, setup))
    assert len(usual) == 128
    gateway = one.app.settings.config.gateway
    assert (gateway.max_live_sessions, gateway.live_session_idle_s) == (CAP, IDLE_S)
