"""The loop, driven through a live session: strict calls, limits, steering, interruption, budgets."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.live_sessions import running_turn, steer
from tests.port_proxies import JournalProxy
from tests.rules import transcript_problems

from talaria.agent.budget import Cap, Limits
from talaria.core.entries import TurnEnded
from talaria.core.errors import (
    Disconnected,
    KeyRejected,
    LimitReached,
    Overloaded,
    RateLimited,
    SessionBusy,
    StoreUnavailable,
)
from talaria.core.events import AnswerRestarted, Event, Notice, TextDelta, TurnDone
from talaria.core.ids import CallId, Epoch, SessionId
from talaria.core.messages import Assistant, Context, StopReason, Text, ToolCall, ToolResult, Usage, User, user
from talaria.store.base import CallIntended, Write
from talaria.testing.manual_clock import ManualClock
from talaria.testing.patience import PATIENCE_S
from talaria.tools.base import EXCLUSIVE, INDEPENDENT, READS, Effect, Invocation, OpenGate, Run, Scope
from talaria.tools.function import FunctionTool, tool

if TYPE_CHECKING:
    from tests.scenarios.agent.conftest import Scene

CLEARLY_MORE_THAN_ENOUGH = 50


def calls(*made: tuple[str, str, str], stop: StopReason = "calls", text: str = "") -> Assistant:
    """An answer with calls given as (id, name, arguments)."""
    words = (Text(text),) if text else ()
    return Assistant((*words, *(ToolCall(CallId(id), name, arguments) for id, name, arguments in made)), stop)


def echo(ran: list[str], effect: Effect = EXCLUSIVE) -> FunctionTool:
    @tool(effect=effect)
    async def echo(text: str) -> str:
        """Say it again."""
        ran.append(text)
        return text

    return echo


async def results(scene: "Scene") -> list[ToolResult]:
    return [message for message in await scene.messages() if isinstance(message, ToolResult)]


@pytest.mark.parametrize(
    "arguments",
    ['{"text": "a', "", "null", "[]", '"text"', '{"text": 1}', '{"txt": "a"}', "{} trailing", "{'text': 1}"],
)
async def test_arguments_that_are_not_right_never_run(scene: "Scene", arguments: str) -> None:
    ran: list[str] = []
    scene.provider.say(calls(("c1", "echo", arguments)))
    report = await (await scene.session(echo(ran))).ask(user("go"))
    assert report.outcome == "completed"
    assert ran == []
    (result,) = await results(scene)
    assert result.is_error
    assert result.disposition == "none"
    assert transcript_problems(await scene.messages()) == []


async def test_calls_of_an_answer_that_was_cut_off_never_run_even_if_they_parse(scene: "Scene") -> None:
    ran: list[str] = []
    scene.provider.say(calls(("c1", "echo", '{"text": "a"}'), ("c2", "echo", '{"text": "b'), stop="length"))
    await (await scene.session(echo(ran))).ask(user("go"))
    assert ran == []
    assert [result.disposition for result in await results(scene)] == ["none", "none"]


async def test_an_unknown_tool_gets_an_error_result_and_its_neighbours_still_run(scene: "Scene") -> None:
    ran: list[str] = []
    scene.provider.say(calls(("c1", "nope", "{}"), ("c2", "echo", '{"text": "b"}')))
    await (await scene.session(echo(ran))).ask(user("go"))
    assert ran == ["b"]
    unknown, fine = await results(scene)
    assert "no tool called 'nope'" in unknown.text
    assert fine.text == "b"


async def test_calls_with_missing_or_repeated_ids_get_ids_of_their_own(scene: "Scene") -> None:
    ran: list[str] = []
    twice = calls(("same", "echo", '{"text": "1"}'), ("same", "echo", '{"text": "2"}'), ("", "echo", '{"text": "3"}'))
    scene.provider.say(twice, twice)
    await (await scene.session(echo(ran))).ask(user("go"))
    assert ran == ["1", "2", "3"] * 2
    assert len({result.call_id for result in await results(scene)}) == 6
    assert transcript_problems(await scene.messages()) == []


async def test_independent_calls_run_at_the_same_time(scene: "Scene") -> None:
    everyone = asyncio.Barrier(5)

    @tool(effect=INDEPENDENT)
    async def meet() -> str:
        """Wait for the others."""
        async with asyncio.timeout(PATIENCE_S):
            await everyone.wait()
        return "met"

    scene.provider.say(calls(*((f"c{n}", "meet", "{}") for n in range(5))))
    await (await scene.session(meet)).ask(user("go"))
    assert [result.text for result in await results(scene)] == ["met"] * 5


async def test_calls_that_clash_wait_for_each_other(scene: "Scene") -> None:
    at_once = 0
    most = 0

    async def busy() -> str:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return "ok"

    alone = tool(busy, name="alone", effect=EXCLUSIVE)
    scene.provider.say(calls(*((f"c{n}", "alone", "{}") for n in range(4))))
    await (await scene.session(alone)).ask(user("go"))
    assert most == 1


async def test_out_of_rounds_the_model_sums_up_without_tools(scene: "Scene") -> None:
    ran: list[str] = []
    scene.provider.say(*(calls(("", "echo", f'{{"text": "{n}"}}')) for n in range(2)), "summary")
    report = await (await scene.session(echo(ran), limits=Limits(max_rounds=2))).ask(user("go"))
    assert report.text == "summary"
    assert ran == ["0", "1"]
    assert [asked.may_call for asked in scene.provider.asked] == [True, True, False]
    assert transcript_problems(await scene.messages()) == []


async def test_a_closing_answer_that_calls_tools_all_the_same_leaves_no_open_call(scene: "Scene") -> None:
    ran: list[str] = []
    scene.provider.say(*(calls(("", "echo", f'{{"text": "{n}"}}')) for n in range(2)))
    report = await (await scene.session(echo(ran), limits=Limits(max_rounds=1))).ask(user("go"))
    assert report.outcome == "completed"
    assert ran == ["0"]
    assert transcript_problems(await scene.messages()) == []


async def test_a_model_that_repeats_a_failing_call_is_advised_and_then_stopped(scene: "Scene") -> None:
    scene.provider.say(*(calls(("", "nope", "{}")) for _ in range(CLEARLY_MORE_THAN_ENOUGH)))

    @tool
    async def nope() -> str:
        """Fail."""
        raise ValueError("always")

    report = await (await scene.session(nope)).ask(user("go"))
    assert report.outcome == "completed"
    texts = [result.text for result in await results(scene)]
    assert len(texts) == 5
    assert "Do something else" not in texts[1]
    assert "Do something else" in texts[2]
    assert transcript_problems(await scene.messages()) == []


async def test_a_steering_note_stands_before_the_model_in_the_next_round(scene: "Scene") -> None:
    scene.provider.say(calls(("c1", "nudge", "{}")), "done")

    @tool
    async def nudge() -> str:
        """Have the person speak up."""
        assert steer(live, "look left")
        return "ok"

    live = await scene.session(nudge)
    await live.ask(user("go"))
    note = (await scene.messages())[-2]
    assert isinstance(note, User)
    assert (note.text, note.author) == ("look left", "steering")
    assert b"look left" in scene.provider.asked[1].bodies["openai_chat"]
    assert not steer(live, "too late")


async def test_a_steering_note_that_comes_with_the_last_answer_is_still_answered(scene: "Scene") -> None:
    live = await scene.session()
    scene.provider.say("first", "second")

    def speak_up(event: Event) -> None:
        if isinstance(event, TextDelta) and event.text == "first":
            steer(live, "wait")

    report = await live.ask(user("go"), speak_up)
    assert report.text == "second"


async def test_interrupted_while_the_model_speaks_what_was_shown_is_kept(scene: "Scene") -> None:
    live = await scene.session()

    def stop(event: Event) -> None:
        if isinstance(event, TextDelta):
            running_turn(live).interrupt()

    scene.provider.say("half an ans")
    report = await live.ask(user("go"), stop)
    assert (report.outcome, report.text) == ("interrupted", "half an ans")
    last = (await scene.messages())[-1]
    assert isinstance(last, Assistant)
    assert last.text.startswith("half an ans")
    assert last.stop == "interrupted"
    assert transcript_problems(await scene.messages()) == []
    assert (await live.ask(user("again"))).outcome == "completed"


async def test_interrupted_during_a_batch_every_call_still_gets_its_one_result(scene: "Scene") -> None:
    @tool(effect=EXCLUSIVE)
    async def quick() -> str:
        """Return."""
        return "done"

    @tool(effect=EXCLUSIVE)
    async def endless() -> str:
        """Never return."""
        running_turn(live).interrupt()
        await asyncio.Event().wait()
        return "never"

    scene.provider.say(calls(("c1", "quick", "{}"), ("c2", "endless", "{}"), ("c3", "quick", "{}")))
    live = await scene.session(quick, endless)
    report = await live.ask(user("go"))
    assert report.outcome == "interrupted"
    assert [result.disposition for result in await results(scene)] == ["done", "unknown", "none"]
    assert transcript_problems(await scene.messages()) == []
    assert await scene.ends() == ["interrupted"]


async def test_interrupted_twice_the_report_says_what_the_journal_says(scene: "Scene") -> None:
    @tool
    async def endless() -> str:
        """Never return."""
        running_turn(live).interrupt()
        await asyncio.Event().wait()
        return "never"

    def again(event: Event) -> None:
        scene.events.append(event)
        running_turn(live).interrupt()

    scene.provider.say(calls(("c1", "endless", "{}")))
    live = await scene.session(endless)
    report = await live.ask(user("go"), again)
    assert [report.outcome] == await scene.ends() == ["interrupted"]


async def test_a_steering_note_in_the_last_round_is_read_before_the_summary(scene: "Scene") -> None:
    @tool
    async def nudge() -> str:
        """Have the person speak up."""
        assert steer(live, "mention the cat")
        return "ok"

    scene.provider.say(calls(("c1", "nudge", "{}")), "summary with cat")
    live = await scene.session(nudge, limits=Limits(max_rounds=1))
    await live.ask(user("go"))
    assert b"mention the cat" in scene.provider.asked[-1].bodies["openai_chat"]


async def test_a_steering_note_after_the_last_word_is_refused(scene: "Scene") -> None:
    taken: list[bool] = []

    def late(event: Event) -> None:
        if isinstance(event, TurnDone):
            taken.append(steer(live, "too late"))

    live = await scene.session()
    await live.ask(user("go"), late)
    assert taken == [False]


@pytest.mark.parametrize(("stop", "says"), [("refused", "refused to answer"), ("length", "raise model.max_tokens")])
async def test_an_answer_of_nothing_with_a_reason_is_told_and_not_asked_for_again(
    scene: "Scene", stop: StopReason, says: str
) -> None:
    scene.provider.say(Assistant((), stop, Usage(output=7)))
    report = await (await scene.session()).ask(user("go"))
    assert says in str(report.error)
    assert len(scene.provider.asked) == 1
    assert report.usage == Usage(output=7)


async def test_an_answer_cut_off_at_its_limit_is_told(scene: "Scene") -> None:
    scene.provider.say(Assistant((Text("so lo"),), "length"))
    report = await (await scene.session()).ask(user("go"), scene.events.append)
    assert report.text == "so lo"
    assert any(isinstance(event, Notice) and "cut off" in event.text for event in scene.events)


async def test_an_answer_that_repeats_itself_is_stopped_and_what_was_written_stays(scene: "Scene") -> None:
    again = "and so on, " * 2_000
    scene.provider.say(again, "never asked for")
    report = await (await scene.session()).ask(user("go"))
    assert (report.outcome, report.text, type(report.error)) == ("failed", again, LimitReached)
    assert "Stopped: scripted:scripted repeats itself: the last 20,000 characters" in str(report.error)
    assert (await scene.messages())[-1].text.startswith(again)
    assert (len(scene.provider.asked), await scene.ends()) == (1, ["failed"])
    assert report.usage.output > 2_000


async def test_an_answer_without_end_is_stopped(scene: "Scene") -> None:
    scene.provider.endpoint = msgspec.structs.replace(scene.provider.endpoint, max_output=1_000)
    scene.provider.say(" ".join(map(str, range(40_000))))
    report = await (await scene.session()).ask(user("go"))
    assert "has written 228,889 characters, which is more than it should be able to." in str(report.error)


async def test_a_cancelled_caller_leaves_a_legal_transcript_too(scene: "Scene") -> None:
    has_begun = asyncio.Event()

    @tool(effect=READS)
    async def endless() -> str:
        """Never return."""
        has_begun.set()
        await asyncio.Event().wait()
        return "never"

    scene.provider.say(calls(("c1", "endless", "{}"), ("c2", "endless", "{}")))
    live = await scene.session(endless)
    asking = asyncio.create_task(live.ask(user("go")))
    await has_begun.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert transcript_problems(await scene.messages()) == []
    assert await scene.ends() == ["interrupted"]


async def test_a_second_message_while_a_turn_runs_is_refused_and_not_taken(scene: "Scene") -> None:
    refused: list[str] = []

    @tool
    async def again() -> str:
        """Ask while asking."""
        try:
            await live.ask(user("me too"))
        except SessionBusy as busy:
            refused.append(str(busy))
        return "ok"

    scene.provider.say(calls(("c1", "again", "{}")))
    live = await scene.session(again)
    await live.ask(user("go"))
    assert len(refused) == 1
    assert [message.text for message in await scene.messages() if isinstance(message, User)] == ["go"]


@pytest.mark.parametrize("failure", [RateLimited("slow", retry_after_s=7), Overloaded("hot"), Disconnected("gone")])
async def test_a_failure_that_may_pass_is_waited_out(scene: "Scene", failure: Disconnected) -> None:
    scene.provider.say(failure, "fine")
    report = await (await scene.session()).ask(user("go"), scene.events.append)
    assert report.text == "fine"
    assert len(scene.clock.slept) == 1
    assert any(isinstance(event, Notice) for event in scene.events)
    assert any(isinstance(event, AnswerRestarted) for event in scene.events)


async def test_a_failure_that_does_not_pass_ends_the_turn_with_its_sentence(scene: "Scene") -> None:
    scene.provider.say(*(Overloaded("The model is hot.") for _ in range(CLEARLY_MORE_THAN_ENOUGH)))
    report = await (await scene.session()).ask(user("go"))
    assert report.outcome == "failed"
    assert str(report.error) == "The model is hot."
    assert transcript_problems(await scene.messages()) == []
    assert len(scene.provider.asked) == 3


async def test_a_rejected_key_is_not_tried_again(scene: "Scene") -> None:
    scene.provider.say(KeyRejected("Wrong key."))
    report = await (await scene.session()).ask(user("go"))
    assert isinstance(report.error, KeyRejected)
    assert len(scene.provider.asked) == 1


async def test_an_empty_answer_is_asked_for_again(scene: "Scene") -> None:
    scene.provider.say(Assistant(()), "fine")
    assert (await (await scene.session()).ask(user("go"))).text == "fine"


@pytest.mark.parametrize(
    ("limits", "word"),
    [
        (Limits(turn=Cap(tokens=10_000)), "tokens"),
        (Limits(max_seconds=10), "seconds"),
    ],
)
async def test_a_spent_budget_stops_the_turn_before_the_next_call(scene: "Scene", limits: Limits, word: str) -> None:
    @tool
    async def slow() -> str:
        """Take a while."""
        scene.clock.advance(60)
        return "ok"

    costly = Assistant((ToolCall(CallId("c1"), "slow", "{}"),), "calls", Usage(input=9_000, output=900))
    scene.provider.say(costly)
    report = await (await scene.session(slow, limits=limits)).ask(user("go"))
    assert isinstance(report.error, LimitReached)
    assert word in str(report.error)
    assert len(scene.provider.asked) == 1
    assert transcript_problems(await scene.messages()) == []


async def test_the_prompt_and_the_tools_of_a_session_never_change(scene: "Scene", tmp_path: "object") -> None:
    ran: list[str] = []
    await (await scene.session(echo(ran))).ask(user("one"))

    @tool
    async def newcomer() -> str:
        """A tool that came with an update."""
        return "hi"

    await (await scene.session(echo(ran), newcomer)).ask(user("two"))
    first, second = scene.provider.asked
    assert first.system == second.system
    assert first.tools == second.tools


async def test_the_date_rides_in_front_of_the_message_once_a_day(scene: "Scene") -> None:
    live = await scene.session()
    await live.ask(user("one"))
    await live.ask(user("two"))
    scene.clock.advance(86_400)
    await live.ask(user("three"))
    dated = [
        any(isinstance(part, Context) for part in message.parts)
        for message in await scene.messages()
        if isinstance(message, User)
    ]
    assert dated == [True, False, True]


async def test_a_gate_that_says_no_leaves_the_tool_alone(scene: "Scene") -> None:
    from talaria.core.errors import Denied

    ran: list[str] = []

    class Closed(OpenGate):
        async def admit(self, call: ToolCall, invocation: Invocation, scope: Scope) -> None:
            raise Denied("Not today.")

    scene.provider.say(calls(("c1", "echo", '{"text": "a"}')))
    await (await scene.session(echo(ran), gate=Closed())).ask(user("go"))
    (result,) = await results(scene)
    assert (ran, result.text, result.disposition) == ([], "Error: Not today.", "none")


async def test_a_tool_knows_its_run(scene: "Scene") -> None:
    keys: list[str] = []

    @tool
    async def keyed(run: Run) -> str:
        """Tell the key."""
        keys.append(run.key)
        return "ok"

    scene.provider.say(calls(("c1", "keyed", "{}")))
    await (await scene.session(keyed)).ask(user("go"))
    assert keys == ["scenario:c1"]


async def test_an_interruption_does_not_wait_for_a_store_that_is_not_well(scene: "Scene") -> None:
    waiting = asyncio.Event()

    class Full(JournalProxy):
        async def record(self, session: SessionId, epoch: Epoch, writes: Sequence[Write]) -> bool:
            if any(isinstance(write, CallIntended | TurnEnded) for write in writes):
                waiting.set()
                raise StoreUnavailable("The disk is full.")
            return await super().record(session, epoch, writes)

    scene.provider.say(calls(("c1", "echo", '{"text": "a"}')))
    ran: list[str] = []
    live = await scene.session(echo(ran), journal=Full(scene.store.journal), clock=ManualClock())
    asking = asyncio.create_task(live.ask(user("go")))
    await waiting.wait()
    running_turn(live).interrupt()
    async with asyncio.timeout(PATIENCE_S):
        report = await asking
    assert isinstance(report.error, StoreUnavailable)
    assert ran == []
    assert await scene.store.journal.list_interrupted() == ["scenario"]
    assert (await (await scene.session(echo(ran))).resume()) is not None
    assert transcript_problems(await scene.messages()) == []


async def test_what_a_turn_used_before_a_crash_counts_against_its_limits(scene: "Scene") -> None:
    class Crash(BaseException):
        pass

    @tool
    async def die() -> str:
        """End the process."""
        raise Crash

    costly = Assistant((ToolCall(CallId("c1"), "die", "{}"),), "calls", Usage(input=9_000, output=900))
    scene.provider.say(costly)
    with pytest.raises(Crash):
        await (await scene.session(die, limits=Limits(turn=Cap(tokens=10_000)))).ask(user("go"))
    report = await (await scene.session(die, limits=Limits(turn=Cap(tokens=10_000)))).resume()
    assert report is not None
    assert isinstance(report.error, LimitReached)
    assert report.usage == Usage(input=9_000, output=900)


async def test_two_questions_at_once_one_is_taken_and_one_refused(scene: "Scene") -> None:
    live = await scene.session()
    outcomes = await asyncio.gather(live.ask(user("one")), live.ask(user("two")), return_exceptions=True)
    assert [type(outcome).__name__ for outcome in outcomes] == ["Report", "SessionBusy"]


@pytest.mark.parametrize("stop", ["length", "refused"])
async def test_calls_of_an_answer_that_did_not_come_to_its_end_never_run(scene: "Scene", stop: StopReason) -> None:
    ran: list[str] = []
    scene.provider.say(calls(("c1", "echo", '{"text": "a"}'), stop=stop))
    await (await scene.session(echo(ran))).ask(user("go"))
    assert ran == []


@pytest.mark.parametrize("nth", range(1, 7))
async def test_a_host_that_cancels_every_task_leaves_a_legal_transcript(scene: "Scene", nth: int) -> None:
    """As `asyncio.run` does at its end: also the tasks that wait for a commit are cancelled."""
    reached = asyncio.Event()

    class Slow(JournalProxy):
        records = 0

        async def record(self, session: SessionId, epoch: Epoch, writes: Sequence[Write]) -> bool:
            is_released = await super().record(session, epoch, writes)
            self.records += 1
            if self.records == nth:
                reached.set()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            return is_released

    ran: list[str] = []
    scene.provider.say(calls(("c1", "echo", '{"text": "a"}'), ("c2", "echo", '{"text": "b"}')))
    live = await scene.session(echo(ran), journal=Slow(scene.store.journal))
    asking = asyncio.create_task(live.ask(user("go")))
    await reached.wait()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.wait([asking])
    await (await scene.session(echo(ran))).resume()
    assert transcript_problems(await scene.messages()) == []


async def test_a_call_that_had_started_is_never_said_not_to_have(scene: "Scene") -> None:
    class Crash(BaseException):
        pass

    @tool(after_crash="keyed", name="keyed")
    async def dies(before: str = "") -> str:
        """Do it, then die."""
        raise Crash

    @tool(after_crash="keyed", name="keyed")
    async def renamed(after: int) -> str:
        """The same tool after an update."""
        return "ok"

    scene.provider.say(calls(("c1", "keyed", "{}")))
    with pytest.raises(Crash):
        await (await scene.session(dies)).ask(user("go"))
    await (await scene.session(renamed)).resume()
    (result,) = await results(scene)
    assert result.disposition == "unknown"


async def test_two_who_begin_the_same_conversation_share_it(scene: "Scene") -> None:
    first, second = await scene.session(), await scene.session()
    await scene.store.owners.join("both are there")
    assert (await first.ask(user("one"))).outcome == "completed"
    assert (await second.ask(user("two"))).outcome == "completed"
    assert [message.text for message in await scene.messages() if isinstance(message, User)] == ["one", "two"]
