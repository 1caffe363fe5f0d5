"""Where a turn begins, what its switches tell, and what becomes of an answer that was partly shown."""

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.live_sessions import running_turn
from tests.rules import transcript_problems

from talaria.core.entries import MessageAdded, RouteChanged
from talaria.core.errors import Disconnected, KeyRejected, LimitReached
from talaria.core.events import AnswerRestarted, Notice, RouteSwitched, TextDelta, TurnBegan
from talaria.core.messages import user
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Failure, Faults, Reply, call
from talaria.tools.function import tool

if TYPE_CHECKING:
    from tests.contracts.routes.conftest import OpenHarness

    from talaria.testing.harness import Harness

LIMITED = Failure(429)
LATER = Failure(429, headers={"retry-after": "500"})
CUT = Reply("Half an answer", faults=Faults(cut_at=800, chunk_delay_s=0.02))


def route(primary: ModelServer, fallback: ModelServer, **more: Any) -> dict[str, Any]:
    return {
        "model": {"provider": "custom", "default": "big", "base_url": primary.base_url},
        "providers": {"house": {"base_url": fallback.base_url}},
        "fallback_providers": "house:small",
        **more,
    }


async def test_after_an_exhausted_route_the_next_turn_walks_it_again_from_the_primary(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    async with harness(**route(primary, fallback)) as here:
        primary.say(LIMITED, LIMITED, "back again")
        fallback.say(Failure(402), "meanwhile")
        assert (await here.ask()).outcome == "failed"
        assert (await here.ask()).text == "meanwhile"
        assert here.events_of(TurnBegan)[0].model == "custom:big"
        assert (await here.ask()).text == "back again"
        assert here.events_of(RouteSwitched) == []


async def test_when_everybody_named_a_time_the_primary_is_tried_all_the_same(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    async with harness(**route(primary, fallback), agent={"api_max_retries": 1}) as here:
        primary.say(LATER, "back again")
        fallback.say(LATER)
        assert (await here.ask()).outcome == "failed"
        assert (await here.ask()).text == "back again"


async def test_a_primary_that_named_a_time_is_the_last_resort_of_a_turn_that_began_elsewhere(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    async with harness(**route(primary, fallback)) as here:
        primary.say(LATER, "after all")
        fallback.say("meanwhile", Failure(400))
        await here.ask()
        assert (await here.ask()).text == "after all"
        assert [switch.model for switch in here.events_of(RouteSwitched)] == ["house:small", "custom:big"]
        assert here.events_of(RouteSwitched)[0].reason == "custom:big asked not to be called yet."


async def test_a_fallback_that_named_a_time_is_passed_over_until_then(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    with ModelServer() as last:
        settings = route(primary, fallback, fallback_providers=["house:small", "cabin:tiny"])
        settings["providers"]["cabin"] = {"base_url": last.base_url}
        async with harness(**settings) as here:
            primary.say(LIMITED, LIMITED, LIMITED)
            fallback.say(LATER, "awake again")
            last.say("one", "two")
            assert [(await here.ask()).text for _ in range(2)] == ["one", "two"]
            here.clock.advance(501)
            assert (await here.ask()).text == "awake again"


async def test_a_time_that_cannot_be_meant_is_not_waited_for(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    """Some servers write a date as a number of seconds."""
    async with harness(**route(primary, fallback)) as here:
        primary.say(Failure(429, headers={"retry-after": "1800000000"}), "back again")
        fallback.say("meanwhile")
        assert [(await here.ask()).text for _ in range(2)] == ["meanwhile", "back again"]
        assert here.events_of(RouteSwitched) == []


async def test_small_work_within_a_turn_leaves_an_endpoint_alone_that_was_just_limited(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    async with harness(**route(primary, fallback)) as here:
        primary.say(LIMITED, "a minute later")
        fallback.say("meanwhile", "a title")
        await here.ask()

        async def title() -> str:
            return (await here.app.auxiliary("title").ask("Name it.", system="Be short.", session=here.live.id)).text

        assert await title() == "a title"
        here.clock.advance(61)
        assert await title() == "a minute later"


async def test_one_models_limit_does_not_rest_another_model_of_the_provider(
    harness: "OpenHarness", primary: ModelServer
) -> None:
    settings = {"provider": "custom", "default": "big", "base_url": primary.base_url}
    async with harness(model=settings, fallback_providers={"provider": "custom", "model": "small"}) as here:
        primary.say(LIMITED, "from the small one")
        assert (await here.ask()).model == "custom:small"
    assert [request.json["model"] for request in primary.requests] == ["big", "small"]


async def test_when_no_model_answers_one_message_names_them_all(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    async with harness(**route(primary, fallback)) as here:
        primary.say(Failure(400))
        fallback.say(Failure(401))
        report = await here.ask()
        assert isinstance(report.error, KeyRejected)
        assert str(report.error).startswith("No model answered. custom:big refused the request (400")
        assert "house:small did not accept the API key" in str(report.error)
        assert report.error.kind == "auth"


async def test_each_switch_is_told_once_and_kept(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    async with harness(**route(primary, fallback)) as here:
        primary.say(LIMITED)
        fallback.say("meanwhile")
        await here.ask()
        told = [event for event in here.events if isinstance(event, Notice)]
        kept = [entry for entry in await here.entries() if isinstance(entry, RouteChanged)]
        assert (len(here.events_of(RouteSwitched)), told, len(kept)) == (1, [], 1)
        assert here.events_of(RouteSwitched)[0].reason == kept[0].reason


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["again at the primary", "at the fallback"])
async def test_a_partly_shown_answer_is_visibly_begun_anew_and_never_doubled(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer, is_elsewhere: bool
) -> None:
    async with harness(**route(primary, fallback), agent={"api_max_retries": 1 if is_elsewhere else 3}) as here:
        primary.say(CUT, *([CUT] if is_elsewhere else ["The whole answer"]))
        fallback.say("The whole answer")
        report = await here.ask()
        assert report.text == "The whole answer"
        assert shown_at_the_end(here) == "The whole answer"
        assert [entry.message.text for entry in await here.entries() if isinstance(entry, MessageAdded)][1:] == [
            "The whole answer"
        ]


def shown_at_the_end(here: "Harness") -> str:
    shown: list[str] = []
    for event in here.events:
        match event:
            case TextDelta(text):
                shown.append(text)
            case AnswerRestarted():
                shown.clear()
            case _:
                pass
    return "".join(shown)


async def test_a_turn_that_falls_back_between_tool_rounds_does_nothing_twice(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    ran: list[str] = []

    @tool
    async def act(mark: str) -> str:
        """Do something."""
        ran.append(mark)
        return "done"

    async with harness(tools=[act], **route(primary, fallback)) as here:
        primary.say(Reply(calls=(call("act", mark="one"),)), LIMITED)
        fallback.say(Reply(calls=(call("act", id="call_9", mark="two"),)), "all done")
        report = await here.ask()
        assert (report.text, ran) == ("all done", ["one", "two"])
        messages = [entry.message for entry in await here.entries() if isinstance(entry, MessageAdded)]
        assert transcript_problems(messages) == []


async def test_falling_back_in_a_tool_round_to_a_wire_that_wants_its_own_thinking_goes_on_without(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    @tool
    async def act() -> str:
        """Do something."""
        return "done"

    settings = route(primary, fallback)
    settings["model"]["reasoning_effort"] = "high"
    settings["providers"]["house"]["wire"] = "anthropic_messages"
    async with harness(tools=[act], **settings) as here:
        primary.say(Reply(thinking="hm", calls=(call("act"),)), LIMITED)
        fallback.say(Reply(calls=(call("act", id="call_9"),)), "done", Reply("again", thinking="let me see"))
        assert (await here.ask()).text == "done"
        assert [request.json.get("thinking") for request in fallback.requests] == [None, None]
        assert b"hm" not in fallback.requests[0].body
        assert (await here.ask()).text == "again"
        assert fallback.requests[2].json["thinking"]["type"] == "enabled"


async def test_a_wait_can_be_interrupted(harness: "OpenHarness", primary: ModelServer) -> None:
    settings = {"provider": "custom", "default": "big", "base_url": primary.base_url}
    async with harness(model=settings) as here:
        primary.say(Failure(429, headers={"retry-after": "500"}), "never asked for")
        waiting = asyncio.Event()

        def watch(event: object) -> None:
            if isinstance(event, Notice):
                waiting.set()

        asking = asyncio.create_task(here.live.ask(user("go"), watch))
        await waiting.wait()
        assert running_turn(here.live).interrupt()
        report = await asking
        assert report.outcome == "interrupted"
    assert len(primary.requests) == 1


async def test_waits_end_where_the_turns_time_ends(harness: "OpenHarness", primary: ModelServer) -> None:
    settings = {"provider": "custom", "default": "big", "base_url": primary.base_url}
    async with harness(model=settings, limits={"turn": {"seconds": 100}}) as here:
        primary.say(Failure(429, headers={"retry-after": "99"}), Failure(429, headers={"retry-after": "99"}))
        report = await here.ask()
        assert "429" in str(report.error)
        assert here.clock.slept == [99]


async def test_an_answer_that_would_outlast_the_turns_time_is_cut(harness: "OpenHarness", primary: ModelServer) -> None:
    settings = {"provider": "custom", "default": "big", "base_url": primary.base_url}
    async with harness(model=settings, limits={"turn": {"seconds": 100}}) as here:
        primary.say(Reply("endless", faults=Faults(stall_at=100)))
        asking = asyncio.create_task(here.ask())
        await asyncio.to_thread(primary.wait_for_requests, 1)
        here.clock.advance(101)
        report = await asking
        assert isinstance(report.error, LimitReached)
        assert "101 of 100 seconds" in str(report.error)


async def test_all_waits_of_a_turn_together_have_an_end(harness: "OpenHarness", primary: ModelServer) -> None:
    settings = {"provider": "custom", "default": "big", "base_url": primary.base_url}
    agent = {"api_max_retries": 50, "max_wait_s": 300}
    async with harness(model=settings, agent=agent) as here:
        primary.say(*[Failure(503)] * 50)
        assert (await here.ask()).outcome == "failed"
        assert 200 < sum(here.clock.slept) < 300


async def test_a_request_that_can_be_mended_is_and_the_endpoint_is_remembered_for_it(
    harness: "OpenHarness", primary: ModelServer
) -> None:
    settings = {"provider": "custom", "default": "big", "base_url": primary.base_url, "reasoning_effort": "low"}
    refusal = Failure(400, {"error": {"message": "Unsupported parameter: 'reasoning_effort'"}})
    async with harness(model=settings) as here:
        primary.say(refusal, "one", "two")
        assert (await here.ask()).text == "one"
        assert here.clock.slept == []
        assert (await here.ask()).text == "two"
    assert ["reasoning_effort" in request.json for request in primary.requests] == [True, False, False]


async def test_an_effort_that_a_model_does_not_know_is_left_out_and_another_is_tried_all_the_same(
    harness: "OpenHarness", primary: ModelServer
) -> None:
    """Else what one person chose would be remembered against everybody's choice."""
    settings = {"provider": "custom", "default": "big", "base_url": primary.base_url}
    refusal = Failure(400, {"error": {"message": "Unsupported value: 'none' is not supported with the 'big' model."}})
    async with harness(model=settings) as here:
        await here.live.set_effort("none")
        primary.say(refusal, "one", "two")
        assert (await here.ask()).text == "one"
        await here.live.set_effort("high")
        assert (await here.ask()).text == "two"
    assert [request.json.get("reasoning_effort") for request in primary.requests] == ["none", None, "high"]


async def test_a_request_is_mended_once_and_then_refused(harness: "OpenHarness", primary: ModelServer) -> None:
    settings = {"provider": "custom", "default": "big", "base_url": primary.base_url}
    refusal = Failure(400, {"error": {"message": "Unsupported parameter: 'frobnicate'"}})
    async with harness(model=settings) as here:
        primary.say(refusal, refusal, "never asked for")
        assert "frobnicate" in str((await here.ask()).error)
    assert len(primary.requests) == 2


async def test_a_conversation_that_is_too_long_goes_on_where_there_is_room(
    harness: "OpenHarness", primary: ModelServer, fallback: ModelServer
) -> None:
    with ModelServer() as narrow:
        providers = {
            "narrow": {"base_url": narrow.base_url, "models": {"m": {"context_length": 8_000}}},
            "house": {"base_url": fallback.base_url, "models": {"small": {"context_length": 900_000}}},
        }
        settings = {"provider": "custom", "default": "big", "base_url": primary.base_url, "context_length": 100_000}
        async with harness(model=settings, providers=providers, fallback_providers=["narrow:m", "house:small"]) as here:
            primary.say(Failure(400, {"error": {"message": "maximum context length is 100000 tokens"}}))
            fallback.say("there is room here")
            assert (await here.ask()).model == "house:small"
        assert narrow.requests == []


async def test_a_conversation_that_is_too_long_everywhere_is_told_in_one_sentence(
    harness: "OpenHarness", primary: ModelServer
) -> None:
    settings = {"provider": "custom", "default": "big", "base_url": primary.base_url, "context_length": 1_000}
    async with harness(model=settings) as here:
        primary.say(Reply(thinking="so long …", stop="length"))
        report = await here.ask("word " * 900)
        assert "too long for custom:big" in str(report.error)
        assert len(primary.requests) == 1


async def test_what_was_shown_of_an_answer_that_never_ends_stays_with_the_failure(
    harness: "OpenHarness", primary: ModelServer
) -> None:
    settings = {"provider": "custom", "default": "big", "base_url": primary.base_url}
    async with harness(model=settings, agent={"api_max_retries": 1}) as here:
        primary.say(CUT, CUT)
        report = await here.ask()
        assert isinstance(report.error, Disconnected)
        assert report.text
        assert "Half an answer".startswith(report.text)
        assert shown_at_the_end(here) == report.text


async def test_each_round_of_a_turn_has_all_its_attempts(harness: "OpenHarness", primary: ModelServer) -> None:
    @tool
    async def act() -> str:
        """Do something."""
        return "done"

    settings = {"provider": "custom", "default": "big", "base_url": primary.base_url}
    async with harness(tools=[act], model=settings) as here:
        down = Failure(503)
        primary.say(down, down, Reply(calls=(call("act"),)), down, down, "all done")
        assert (await here.ask()).text == "all done"


async def test_what_one_conversation_must_go_without_another_need_not(
    harness: "OpenHarness", primary: ModelServer
) -> None:
    """Unlike a parameter that an endpoint cannot take, a thought that it does not take back is a matter of the day."""
    settings = {"provider": "anthropic", "default": "claude-x", "base_url": primary.base_url, "api_key": "k"}
    refusal = Failure(400, {"error": {"message": "Invalid `signature` in `thinking` block"}})
    async with harness(model=settings) as here:
        primary.say(Reply("one", thinking="hm"), refusal, "two", "three")
        for text in ("one", "two", "three"):
            assert (await here.ask()).text == text
    assert [b"sealed" in r.body or b"hm" in r.body for r in primary.requests] == [False, True, False, True]
