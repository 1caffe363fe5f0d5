"""Every hook that is fired: with which facts, and what comes of the answer."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.contracts.plugins.conftest import NOTES, Install, OpenHarness, asked, heard, module, problems_of, result
from tests.live_sessions import running_turn
from tests.waiting import until

from talaria.core.entries import MessageAdded, TurnStarted
from talaria.core.events import AnswerRestarted, TextDelta, ToolEnded
from talaria.core.ids import TurnId
from talaria.core.messages import Assistant, ToolResult, user
from talaria.core.questions import Answer, Question
from talaria.platforms.base import Address, Arrival, Sender
from talaria.plugins.plugin_hooks import FIRED, VALID_HOOKS
from talaria.runtime.session import LiveSession
from talaria.testing.harness import Harness
from talaria.testing.manual_clock import ManualClock
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Failure, Reply, ReplyUsage, call

LISTENER = (
    NOTES
    + f"""
def register(ctx):
    for name in {sorted(FIRED)!r}:
        ctx.register_hook(name, lambda name=name, **facts: note(name, **facts))
    ctx.register_tool("look", "set", {{"parameters": {{"type": "object"}}}}, lambda args: "seen" if args else 1 / 0)
"""
)
EVERYWHERE = {"telemetry_schema_version", "session_id", "platform"}
IDS = EVERYWHERE | {"task_id", "turn_id", "conversation_id", "gateway_session_key", "model"}
CALL = IDS | {"tool_name", "args", "tool_call_id", "api_request_id", "middleware_trace"}
ENDED = CALL | {"result", "duration_ms", "status", "error_type", "error_message"}
REQUEST = IDS | {"provider", "base_url", "api_mode", "api_call_count"}
TURN = IDS | {"user_message", "conversation_history"}
QUESTION = EVERYWHERE | {"command", "description", "pattern_key", "pattern_keys", "session_key", "surface"}
FACTS: dict[str, set[str]] = {
    "pre_tool_call": CALL,
    "post_tool_call": ENDED,
    "transform_tool_result": ENDED,
    "transform_terminal_output": EVERYWHERE | {"command", "output", "returncode", "task_id", "env_type"},
    "pre_llm_call": TURN | {"is_first_turn", "sender_id"},
    "post_llm_call": TURN | {"assistant_response"},
    "transform_llm_output": EVERYWHERE | {"response_text", "model"},
    "pre_api_request": REQUEST | {"request_messages"},
    "post_api_request": REQUEST | {"api_duration", "usage"},
    "api_request_error": REQUEST | {"error"},
    "on_session_start": EVERYWHERE | {"model"},
    "on_session_end": IDS | {"completed", "interrupted"},
    "on_session_finalize": EVERYWHERE | {"reason"},
    "on_session_reset": EVERYWHERE | {"reason", "old_session_id", "new_session_id"},
    "pre_gateway_dispatch": {"telemetry_schema_version", "event", "gateway", "session_store"},
    "pre_approval_request": QUESTION,
    "post_approval_response": QUESTION | {"choice"},
}


async def lively(here: Harness, server: ModelServer) -> LiveSession:
    """Two turns in which all happens that a hook can hear of, and a third conversation behind them."""
    live = here.session("one")
    server.say(
        Failure(503), Reply(calls=(call("look", at="tea"), call("terminal", id="c2", command="echo hi; exit 3")))
    )
    server.say(Reply("first answer", usage=ReplyUsage(input=7, output=3)))
    await here.ask("first question", live)
    server.say(Reply(calls=(call("look", id="c3"),)), "second answer")
    await here.ask("second question", live)
    await live.leave_for(here.session("two"))
    return live


HELLO = Arrival("1", Address("telegram", "42"), "dm", Sender("42"), "hello")


class Boss:
    """Who gives one answer, or lets the time go by."""

    def __init__(self, answer: Answer | None, clock: ManualClock) -> None:
        self._answer: Answer | None = answer
        self._clock = clock

    def may_approve(self) -> bool:
        return True

    async def allow(self, question: Question) -> Answer:
        if self._answer is None:
            await asyncio.sleep(0)  # until the time limit is set
            self._clock.advance(3600)
        return self._answer or await asyncio.Future()

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:
        return None


async def consulted(here: Harness, server: ModelServer, answer: Answer | None) -> str:
    """A turn in which the person is asked; what the model is told of the call."""
    server.say(Reply(calls=(call("write_file", path=str(here.home.parent / "outside"), content="tea"),)), "done")
    await here.ask(live=here.session("asked", person=Boss(answer, here.clock)))
    return result(server)


def test_the_table_above_has_every_hook_that_is_fired() -> None:
    assert set(FACTS) == FIRED
    assert FIRED < VALID_HOOKS


@pytest.mark.parametrize("hook", sorted(FIRED))
async def test_it_is_fired_with_the_facts_that_plugins_were_promised(
    harness: OpenHarness, install: Install, server: ModelServer, hook: str
) -> None:
    install("listener", LISTENER)
    async with harness("listener", tools=None) as one:
        await lively(one, server)
        await consulted(one, server, "once")
        await one.app.filter_arrival(HELLO)
        told = heard("listener", hook)
        assert told, f"{hook} was not fired"
        assert FACTS[hook] - set(told[0]) == set()
        assert told[0]["telemetry_schema_version"] == 1
        assert [problem for problem in problems_of(one, "listener") if "hook" in problem] == []


async def test_they_are_fired_in_the_order_of_what_happens(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("listener", LISTENER)
    async with harness("listener") as one:
        live = one.session()
        server.say(Reply(calls=(call("look", at="tea"),)), "done")
        await one.ask(live=live)
        await live.close()
        assert heard("listener") == [
            "on_session_start",
            "pre_llm_call",
            "pre_api_request",
            "pre_tool_call",
            "post_tool_call",
            "transform_tool_result",
            "post_api_request",  # of an answer that is on the disk by now
            "pre_api_request",
            "transform_llm_output",
            "post_api_request",
            "post_llm_call",
            "on_session_end",
            "on_session_finalize",
        ]


async def test_what_is_told_is_true(harness: OpenHarness, install: Install, server: ModelServer) -> None:
    install("listener", LISTENER)
    async with harness("listener", tools=None) as one:
        await lively(one, server)

        def told(hook: str, *names: str) -> list[tuple[Any, ...]]:
            return [tuple(facts.get(name) for name in names) for facts in heard("listener", hook)]

        assert told("on_session_start", "session_id", "platform") == [("one", "cli")]
        assert told("pre_llm_call", "user_message", "is_first_turn") == [
            ("first question", True),
            ("second question", False),
        ]
        first, second = told("pre_llm_call", "conversation_history")
        assert (first[0], second[0][-1]["content"]) == ([], "first answer")
        assert told("post_llm_call", "user_message", "assistant_response") == [
            ("first question", "first answer"),
            ("second question", "second answer"),
        ]
        assert told("pre_tool_call", "tool_name", "args", "tool_call_id") == [
            ("look", {"at": "tea"}, "call_1"),
            ("terminal", {"command": "echo hi; exit 3"}, "c2"),
            ("look", {}, "c3"),
        ]
        assert ("look", "seen") in told("post_tool_call", "tool_name", "result")
        ((command, output, code),) = told("transform_terminal_output", "command", "output", "returncode")
        assert (command, code, "hi" in output) == ("echo hi; exit 3", 3, True)
        turns = {facts["turn_id"] for facts in heard("listener", "pre_tool_call")}
        assert len(turns - {""}) == 2
        assert {facts["turn_id"] for facts in heard("listener", "on_session_end")} == turns
        assert told("on_session_end", "completed", "interrupted") == [(True, False), (True, False)]
        (failure,) = heard("listener", "api_request_error")
        assert (failure["provider"], failure["base_url"]) == ("custom", server.base_url)
        assert "503" in failure["error"] or "overloaded" in failure["error"].lower()
        counts = [facts["usage"]["prompt_tokens"] for facts in heard("listener", "post_api_request")]
        assert 7 in counts
        assert told("on_session_finalize", "session_id") == [("one",)]
        assert told("on_session_reset", "old_session_id", "new_session_id", "session_id") == [("one", "two", "two")]


async def test_a_tool_that_failed_is_told_as_failed(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("listener", LISTENER)
    async with harness("listener") as one:
        server.say(Reply(calls=(call("nothing_like_that"), call("look", id="c2"))), "done")
        await one.ask(live=one.session())
        ended = {facts["tool_call_id"]: facts["status"] for facts in heard("listener", "post_tool_call")}
        assert ended["c2"] == "error"


async def test_the_end_of_a_turn_that_failed_or_was_stopped_is_told_as_that(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    source = LISTENER + "    ctx.register_hook('pre_tool_call', lambda **facts: STOP[0]())\nSTOP = []\n"
    install("listener", source)
    async with harness("listener") as one:
        live = one.session()
        server.say(Failure(401))
        await one.ask(live=live)
        module("listener").STOP.append(lambda: running_turn(live).interrupt())
        server.say(Reply(calls=(call("look", at="tea"),)))
        report = await one.ask(live=live)
        assert report.outcome == "interrupted"
        ends = [(facts["completed"], facts["interrupted"]) for facts in heard("listener", "on_session_end")]
        assert ends == [(False, False), (False, True)]
        assert heard("listener", "post_llm_call") == []


async def test_a_callback_gets_no_more_than_it_asks_for(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    """Also one that is async, or the method of an object."""
    source = (
        NOTES
        + """
def few(user_message, session_id): note("few", user_message=user_message, session_id=session_id)
async def later(*, is_first_turn): note("later", is_first_turn=is_first_turn)
class Object:
    def method(self, **facts): note("method", count=len(facts))
def register(ctx):
    for callback in (few, later, Object().method):
        ctx.register_hook("pre_llm_call", callback)
"""
    )
    install("modest", source)
    async with harness("modest") as one:
        server.say("ok")
        await one.ask("hello", one.session("here"))
        assert heard("modest") == ["few", "later", "method"]
        assert heard("modest", "few") == [{"user_message": "hello", "session_id": "here"}]
        assert heard("modest", "later") == [{"is_first_turn": True}]
        assert problems_of(one, "modest") == []


def answering(hook: str, *answers: str) -> str:
    lines = "".join(f"    ctx.register_hook({hook!r}, lambda **facts: {answer})\n" for answer in answers)
    return (
        "RAN = []\ndef look(args):\n    RAN.append(1)\n    return 'seen'\n"
        f"def register(ctx):\n{lines}"
        "    ctx.register_tool('look', 'set', {'parameters': {'type': 'object'}}, look)\n"
    )


async def test_a_call_that_is_blocked_does_not_run_and_the_model_reads_why(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    answers = ("None", "'junk'", "{'action': 'allow'}", "{'action': 'block', 'message': 'not today'}")
    install("strict", answering("pre_tool_call", *answers, "{'action': 'block', 'message': 'too late'}"))
    async with harness("strict") as one:
        server.say(Reply(calls=(call("look"),)), "sorry")
        assert (await one.ask(live=one.session())).text == "sorry"
        assert "not today" in result(server)
        assert "too late" not in result(server)
        assert ran("strict") == 0


class Somebody:
    """Who is asked, and answers."""

    def __init__(self, *, says_yes: bool) -> None:
        self.says_yes = says_yes
        self.doubts: list[str] = []

    def may_approve(self) -> bool:
        return True

    async def allow(self, question: Question) -> Answer:
        self.doubts.append(question.reason)
        return "once" if self.says_yes else "no"

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:
        return None


APPROVE = "{'action': 'approve', 'message': 'is that wise?', 'rule_key': 'r'}"


async def test_a_call_that_wants_approval_does_not_run_where_nobody_is_there(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("careful", answering("pre_tool_call", APPROVE))
    async with harness("careful") as one:
        server.say(Reply(calls=(call("look"),)), "sorry")
        await one.ask(live=one.session())
        assert "nobody is here" in result(server)
        assert ran("careful") == 0


@pytest.mark.parametrize("says_yes", [True, False])
async def test_a_call_that_wants_approval_runs_if_the_person_says_so(
    harness: OpenHarness, install: Install, server: ModelServer, says_yes: bool
) -> None:
    install("careful", answering("pre_tool_call", APPROVE))
    person = Somebody(says_yes=says_yes)
    async with harness("careful") as one:
        server.say(Reply(calls=(call("look"),)), "done")
        await one.ask(live=one.session(person=person))
        assert person.doubts == ["is that wise?"]
        assert ran("careful") == int(says_yes)
        assert ("seen" in result(server)) is says_yes


async def test_the_first_word_on_a_call_counts(harness: OpenHarness, install: Install, server: ModelServer) -> None:
    install("careful", answering("pre_tool_call", APPROVE, "{'action': 'block', 'message': 'no'}"))
    person = Somebody(says_yes=True)
    async with harness("careful") as one:
        server.say(Reply(calls=(call("look"),)), "done")
        await one.ask(live=one.session(person=person))
        assert (person.doubts, ran("careful")) == (["is that wise?"], 1)


async def test_a_result_that_is_transformed_is_what_the_model_the_journal_and_the_person_have(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("rewriter", answering("transform_tool_result", "5", "facts['result'].upper() + '!'", "'never'"))
    async with harness("rewriter") as one:
        live = one.session()
        server.say(Reply(calls=(call("look"),)), "done")
        await one.ask(live=live)
        assert result(server) == "SEEN!"
        assert [message.text for message in await messages(one, live) if isinstance(message, ToolResult)] == ["SEEN!"]
        assert [event.result.text for event in one.events if isinstance(event, ToolEnded)] == ["SEEN!"]


async def test_a_result_that_grows_is_still_cut_to_what_the_model_can_read(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("rewriter", answering("transform_tool_result", "'x' * 1_000_000"))
    async with harness("rewriter") as one:
        live = one.session()
        server.say(Reply(calls=(call("look"),)), "done")
        await one.ask(live=live)
        (kept,) = [message.text for message in await messages(one, live) if isinstance(message, ToolResult)]
        assert len(kept) < 100_000


async def test_output_of_the_terminal_is_transformed_and_other_results_are_not(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("rewriter", answering("transform_terminal_output", "facts['command'] + ' was run'"))
    async with harness("rewriter", tools=None) as one:
        server.say(Reply(calls=(call("terminal", command="true"),)), Reply(calls=(call("look", id="c2"),)), "done")
        await one.ask(live=one.session())
        assert result(server, 1) == "true was run"
        assert result(server, 2) == "seen"


async def test_an_answer_that_is_transformed_is_what_is_shown_kept_and_gone_on_with(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    answers = ("None", "''", "facts['response_text'] + ' (checked)'", "'never'")
    install("rewriter", answering("transform_llm_output", *answers))
    async with harness("rewriter") as one:
        live = one.session()
        server.say("plain answer")
        report = await one.ask(live=live)
        assert report.text == "plain answer (checked)"
        assert (await messages(one, live))[-1].text == "plain answer (checked)"
        restart = next(place for place, event in enumerate(one.events) if isinstance(event, AnswerRestarted))
        shown = [event.text for event in one.events[restart:] if isinstance(event, TextDelta)]
        assert "".join(shown) == "plain answer (checked)"
        server.say("next")
        await one.ask(live=live)
        assert asked(server)[-2]["content"] == "plain answer (checked)"


async def test_only_the_last_answer_of_a_turn_is_transformed(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("rewriter", answering("transform_llm_output", "'REWRITTEN'"))
    async with harness("rewriter") as one:
        live = one.session()
        server.say(Reply("let me look", calls=(call("look"),)), "done")
        await one.ask(live=live)
        said = [message.text for message in await messages(one, live) if isinstance(message, Assistant)]
        assert said == ["let me look", "REWRITTEN"]


async def test_context_goes_into_the_message_of_its_turn_and_no_other(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    answers = ("{'context': 'about ' + facts['user_message']}", "'and this'", "{'context': 5}", "{'other': 'no'}")
    install("helper", answering("pre_llm_call", *answers))
    async with harness("helper") as one:
        live = one.session()
        server.say("a", "b")
        await one.ask("teapots", live)
        await one.ask("kettles", live)
        first, second = (one for one in asked(server) if one["role"] == "user")
        assert [first["content"].count(text) for text in ("about teapots", "about kettles", "and this")] == [1, 0, 1]
        assert [second["content"].count(text) for text in ("about teapots", "about kettles", "and this")] == [0, 1, 1]
        assert second["content"].index("kettles") < second["content"].index("about kettles")
        assert "about" not in str(asked(server)[0])
        assert asked(server)[:2] == asked(server, 0)[:2]  # what was sent before is sent again as it was
        assert [message.text for message in await messages(one, live) if message.text.startswith("tea")] == ["teapots"]


async def test_hooks_of_several_plugins_are_heard_in_the_order_of_their_plugins(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    for name in ("alpha", "beta"):
        install(name, f"def register(ctx): ctx.register_hook('pre_llm_call', lambda **facts: 'from {name}')\n")
    async with harness("beta", "alpha") as one:
        server.say("ok")
        await one.ask(live=one.session())
        content = asked(server)[-1]["content"]
        assert 0 < content.index("from alpha") < content.index("from beta")


async def test_a_turn_that_a_crash_left_open_ends_with_its_hooks_too(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    """The plugin's books are to agree with ours."""
    install("listener", LISTENER)
    async with harness("listener") as one:
        live = one.session("left-open")
        server.say("before")
        await one.ask(live=live)
        epoch = await one.app.store.journal.seize(live.id, one.app.owner)
        opening = (TurnStarted(TurnId("t9"), "terminal"), MessageAdded(user("and then?")))
        await one.app.store.journal.record(live.id, epoch, opening)  # pyright: ignore[reportArgumentType]
        await one.app.store.journal.release(live.id, epoch)  # pyright: ignore[reportArgumentType]
        row = await one.app.store.sessions.get(live.id)
        again = one.app.session(row, cwd=one.project, origin="terminal")
        server.say("after")
        report = await again.resume()
        assert report is not None
        assert report.text == "after"
        assert [facts["turn_id"] for facts in heard("listener", "on_session_end")][-1] == "t9"


def ran(plugin: str) -> int:
    return len(module(plugin).RAN)


async def messages(here: Harness, live: LiveSession) -> Sequence[Any]:
    entries = await here.app.store.journal.entries(live.id)
    return [one.entry.message for one in entries if isinstance(one.entry, MessageAdded)]


@pytest.mark.parametrize(
    ("answer", "choice"),
    [("once", "once"), ("session", "session"), ("always", "always"), ("no", "deny"), (None, "timeout")],
)
async def test_a_question_is_told_before_and_with_its_answer_after(
    harness: OpenHarness, install: Install, server: ModelServer, answer: Answer | None, choice: str
) -> None:
    install("listener", LISTENER)
    async with harness("listener", tools=None) as one:
        told = await consulted(one, server, answer)
        assert (one.home.parent / "outside").exists() is (choice in ("once", "session", "always")), told
        (before,), (after,) = (heard("listener", name) for name in ("pre_approval_request", "post_approval_response"))
        assert after == {**before, "choice": choice}
        assert (before["session_key"], before["surface"], before["tool_name"]) == ("asked", "cli", "write_file")
        assert "outside" in before["command"]
        assert before["description"]


async def test_whoever_listens_to_questions_decides_nothing(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    source = """
def register(ctx):
    ctx.register_hook("pre_approval_request", lambda **facts: {"action": "allow", "choice": "always"})
    ctx.register_hook("pre_approval_request", lambda **facts: 1 / 0)
    ctx.register_hook("post_approval_response", lambda **facts: {"choice": "always"})
"""
    install("meddler", source)
    async with harness("meddler", tools=None) as one:
        assert "said no" in await consulted(one, server, "no")
        assert not (one.home.parent / "outside").exists()
        assert problems_of(one, "meddler") == ["hook pre_approval_request raised ZeroDivisionError: division by zero"]


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        (["{'action': 'skip'}", "{'action': 'allow'}"], None),
        (["{'action': 'allow'}", "{'action': 'skip'}"], "hello"),
        (["{'action': 'rewrite', 'text': 'bye'}", "{'action': 'skip'}"], "bye"),
        (["{'action': 'rewrite'}", "{'action': 'teapot'}", "'skip'", "None"], "hello"),
        (["1 / 0", "{'action': 'rewrite', 'text': 'bye'}"], "bye"),
    ],
    ids=["skip", "allow stops the scan", "rewrite stops the scan", "nonsense", "one raises"],
)
async def test_the_first_answer_says_what_becomes_of_a_message_and_a_failure_says_nothing(
    harness: OpenHarness, install: Install, answers: list[str], text: str | None
) -> None:
    hooks = "".join(f"    ctx.register_hook('pre_gateway_dispatch', lambda **facts: {one})\n" for one in answers)
    install("policy", f"def register(ctx):\n{hooks}")
    async with harness("policy") as one:
        arrival = await one.app.filter_arrival(HELLO)
        assert (arrival.text if arrival else None) == text
        failures = [problem for problem in problems_of(one, "policy") if "hook pre_gateway_dispatch" in problem]
        assert len(failures) == sum("/" in one for one in answers)


async def test_a_message_is_not_lost_by_a_hook_that_hangs(harness: OpenHarness, install: Install) -> None:
    source = """
import threading
GATE, IS_CALLED = threading.Event(), threading.Event()
def hang(**facts):
    IS_CALLED.set()
    GATE.wait(60)
def register(ctx): ctx.register_hook("pre_gateway_dispatch", hang)
"""
    install("stuck", source)
    clock = ManualClock()
    async with harness("stuck", clock=clock) as one:
        asking = asyncio.create_task(one.app.filter_arrival(HELLO))
        await until(module("stuck").IS_CALLED.is_set)
        clock.advance(11)
        assert await asking == HELLO
        assert await one.app.filter_arrival(HELLO) == HELLO  # and it is not waited for again
        assert problems_of(one, "stuck") == ["hook pre_gateway_dispatch did not return within 10 seconds"]
        module("stuck").GATE.set()


async def test_hooks_that_are_never_called_are_a_problem_of_their_plugin(
    harness: OpenHarness, install: Install
) -> None:
    never = [*sorted(VALID_HOOKS - FIRED), "on_teapot"]
    assert "pre_verify" in never
    source = (
        f"def register(ctx):\n    for name in {[*never, *never, *FIRED]!r}:\n        ctx.register_hook(name, print)\n"
    )
    install("listener", source)
    async with harness("listener") as one:
        assert problems_of(one, "listener") == [
            f"registers the hook {name}, which Talaria never calls" for name in never
        ]
