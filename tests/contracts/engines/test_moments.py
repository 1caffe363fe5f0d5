"""What the host tells an engine, when, and what it makes of the answer."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.contracts.engines.conftest import OpenHarness
from tests.contracts.engines.test_engine_host import calls, grown, names, recorder
from tests.contracts.engines.test_faulty_engines import compactions, full, odd, release, too_long
from tests.plugin_sources import memory, source
from tests.waiting import until

from talaria.core.errors import SessionBusy
from talaria.core.messages import Image, Text, User, user
from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Failure, Reply, call

Install = Callable[..., Path]


def changed(*changes: tuple[str, str]) -> str:
    plugin = source("recorder")
    for before, after in changes:
        assert before in plugin
        plugin = plugin.replace(before, after)
    return plugin


async def test_a_wish_of_the_person_reaches_the_engine_with_its_force_and_focus(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("recorder", recorder())
    async with harness(enabled=("recorder",), engine="recorder") as one:
        live = one.session()
        await grown(one, live, server)
        assert await live.compact(focus="tea")
        assert calls(one.home, "compress")[0][2] == {"focus_topic": "tea", "force": True}


async def test_an_engine_that_has_nothing_to_leave_out_is_not_asked_to(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    guard = "def has_content_to_compress(self, messages): return False\n\n    def update_model"
    install("recorder", changed(("def update_model", guard)))
    async with harness(enabled=("recorder",), engine="recorder") as one:
        live = one.session()
        await grown(one, live, server)
        assert not await live.compact()
        assert names(one.home, "compress") == []


async def test_keeping_the_last_exchanges_is_done_by_the_built_in_and_told(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("recorder", recorder())
    async with harness(enabled=("recorder",), engine="recorder") as one:
        live = one.session()
        await grown(one, live, server)
        server.say("a summary")
        assert await live.compact(one.events.append, keep_last=1)
        assert names(one.home, "compress") == []
        assert "cannot choose what to keep" in one.notices[0]


async def test_an_estimate_is_no_reason_where_the_engine_waits_for_a_count(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    defers = "def should_defer_preflight_to_real_usage(self, rough_tokens): return True\n\n    def update_model"
    install("recorder", changed(("def update_model", defers)))
    async with harness(enabled=("recorder",), engine="recorder") as one:
        live = one.session()
        server.say(Reply(calls=(call("nothing"),)), "done")
        await one.ask(live=live)
        assert len(calls(one.home, "preflight")) == 1
        assert len(calls(one.home, "should")) == 1  # before the second request, and not before the first


async def test_after_a_compaction_the_engine_waits_for_a_count_and_an_answer_without_one_is_told(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    status = "def get_status(self): return {'last': self.last_prompt_tokens}\n\n    def update_model"
    install("recorder", changed(("def update_model", status)))
    async with harness(enabled=("recorder",), engine="recorder") as one:
        live = one.session()
        await grown(one, live, server)
        assert await live.compact()
        assert (await live.services.context_status())["last"] == -1
        (one.home / "hermes" / "calls.jsonl").unlink()
        server.say(Reply("a", usage=None), Reply("b", usage=None))
        await one.ask(live=live)
        await one.ask(live=live)
        assert [facts for _, _, facts in calls(one.home, "usage")] == [{}]


async def test_a_completed_compaction_is_told_to_those_who_want_to_know(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    wants = "def record_completed_compaction(self, used_fallback=False): self._note('done', used_fallback)"
    install("recorder", changed(("def update_model", f"{wants}\n\n    def update_model")))
    async with harness(enabled=("recorder",), engine="recorder") as one:
        live = one.session()
        await grown(one, live, server)
        assert await live.compact()
        assert calls(one.home, "done") == [("done", [False], {})]


async def test_the_model_in_use_is_told_also_when_it_changes(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("recorder", recorder())
    other = {"house": {"base_url": server.base_url, "models": {"big": {"context_length": 64_000}}}}
    async with harness(
        enabled=("recorder",), engine="recorder", providers=other, fallback_providers=["house:big"]
    ) as one:
        live = one.session()
        server.say(Failure(402, {"error": {"message": "Insufficient credits", "code": 402}}), "from the other")
        report = await one.ask(live=live)
        assert report.text == "from the other"
        assert [args for _, args, _ in calls(one.home, "model")] == [["test-model", 32_000], ["big", 64_000]]
        assert {facts["api_key"] for _, _, facts in calls(one.home, "model")} == {""}


@pytest.mark.clause("R-08")
async def test_after_a_turn_on_a_fallback_the_engine_is_told_of_the_primary_again(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    """Whatever it made of its window meanwhile, it has the primary's when it is asked whether to compact."""
    install(
        "recorder",
        changed(
            (
                "context_length, api_key=api_key)",
                "context_length, api_key=api_key)\n        super().update_model(model, context_length)",
            ),
            ("**usage)", "**usage)\n        self.context_length = self.threshold_tokens = 1"),
            ('"should", prompt_tokens)', '"should", self.context_length, self.threshold_tokens)'),
        ),
    )
    with ModelServer() as other:
        house = {"house": {"base_url": other.base_url, "models": {"big": {"context_length": 64_000}}}}
        async with harness(
            enabled=("recorder",), engine="recorder", providers=house, fallback_providers=["house:big"]
        ) as one:
            live = one.session()
            server.say(Failure(429), "from the primary")
            other.say("from the fallback")
            assert (await one.ask(live=live)).text == "from the fallback"
            assert (await one.ask(live=live)).text == "from the primary"
            told = [args for _, args, _ in calls(one.home, "model")]
            assert told == [["test-model", 32_000], ["big", 64_000], ["test-model", 32_000]]
            assert [args for _, args, _ in calls(one.home, "should")][-1] == [32_000, 24_000]


async def test_leaving_a_conversation_ends_it_for_the_engine_and_coming_back_begins_anew(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("recorder", recorder())
    async with harness(enabled=("recorder",), engine="recorder") as one:
        live = one.session()
        server.say("a", "b")
        await one.ask(live=live)
        await live.close()
        assert names(one.home)[-1] == "end"
        (one.home / "hermes" / "calls.jsonl").unlink()
        await one.ask(live=live)
        assert names(one.home, "start", "preflight") == ["start", "preflight"]


async def test_a_conversation_is_not_left_in_the_middle_of_a_turn(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("recorder", recorder())
    async with harness(enabled=("recorder",), engine="recorder") as one:
        live, refused = one.session(), list[Exception]()

        async def leave(event: object) -> None:
            with pytest.raises(SessionBusy):
                await live.leave_for(one.session("two"))
            with pytest.raises(SessionBusy):
                await live.close()
            refused.append(SessionBusy())

        server.say("hello")
        tasks: list[asyncio.Task[None]] = []
        await live.ask(user("go"), lambda event: tasks.append(asyncio.create_task(leave(event))))
        await asyncio.gather(*tasks[:1])
        for late in tasks[1:]:
            late.cancel()
        assert refused


async def test_an_engine_that_could_not_end_one_conversation_still_begins_the_next(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    body = """def on_session_end(self, session_id, messages): raise RuntimeError("no")
def on_session_start(self, session_id, **facts): self.bound = session_id
def get_status(self): return {"bound": self.bound}"""
    install("odd", odd(body))
    async with harness(enabled=("odd",), engine="odd") as one:
        first, second = one.session("one"), one.session("two")
        server.say("a", "b")
        await one.ask(live=first)
        await first.leave_for(second)
        await one.ask(live=second)
        assert (await second.services.context_status())["bound"] == "two"
        assert one.notices == ["Context engine odd raised RuntimeError: no in on_session_end."]


async def test_an_engine_that_could_not_begin_is_built_anew(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    body = """count, bound = 0, None
def on_session_start(self, session_id, **facts):
    Engine.count += 1
    if Engine.count == 1: raise RuntimeError("busy")
    self.bound = session_id
def get_status(self): return {"bound": self.bound}"""
    install("odd", odd(body))
    async with harness(enabled=("odd",), engine="odd") as one:
        live = one.session()
        server.say("a", "b")
        await one.ask(live=live)
        assert "raised RuntimeError: busy in on_session_start" in one.notices[0]
        await one.ask(live=live)
        assert (await live.services.context_status())["bound"] == live.id
        assert one.notices == []


async def test_an_engine_that_returns_its_input_is_asked_once_in_a_turn(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    body = """asked = 0
def should_compress(self, prompt_tokens=None): return True
def compress(self, messages, current_tokens=None):
    self.asked += 1
    return messages
def get_status(self): return {"asked": self.asked}"""
    install("odd", odd(body))
    async with harness(enabled=("odd",), engine="odd") as one:
        live = one.session()
        server.say(*(Reply(calls=(call("nothing", id=f"c{n}"),)) for n in range(3)), "done")
        await one.ask(live=live)
        assert (await live.services.context_status())["asked"] == 1


async def test_of_equal_messages_the_last_is_kept(harness: OpenHarness, install: Install, server: ModelServer) -> None:
    body = """def compress(self, messages, current_tokens=None):
    return [{"role": "user", "content": "[so far]"}, {"role": "assistant", "content": "yes"}, *messages[-2:]]"""
    install("odd", odd(body))
    async with harness(enabled=("odd",), engine="odd") as one:
        live = one.session()
        for data in ("Zmlyc3Q=", "bGFzdA=="):
            server.say("a picture " + "x" * 300)
            await live.ask(User((Text("look"), Image("image/png", data))))
        assert await live.compact()
        server.say("ok")
        await one.ask("and?", live)
        sent = server.requests[-1].body.decode()
        assert ("bGFzdA==" in sent, "Zmlyc3Q=" in sent) == (True, False)


async def test_where_the_built_in_stands_in_the_engine_hears_of_the_boundary(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("recorder", changed(('return [{"role": "user", "content": "[SUMMARY]"}, *kept]', 'raise ValueError("x")')))
    async with harness(enabled=("recorder",), engine="recorder", window=8_000) as one:
        live = one.session()
        await full(one, live, server)
        (one.home / "hermes" / "calls.jsonl").unlink()
        server.say(too_long(), "a summary", "after")
        assert (await one.ask("and now?", live)).text == "after"
        assert names(one.home, "compress", "end", "start") == ["compress", "end", "start"]
        assert [entry.summary_by for entry in await compactions(one, live)] == ["model"]


async def test_summaries_are_booked_to_the_conversation_that_they_are_of(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    async with harness(window=8_000) as one:
        first, second = one.session("first"), one.session("second")
        server.say("hello")
        await one.ask(live=first)
        await first.leave_for(second)
        await full(one, second, server)
        server.say("a summary", "after")
        await one.ask("and now?", second)
        assert await compactions(one, second)
        booked = {row.key: row.calls for row in await one.app.store.spending.usage("session")}
        assert booked["first"] == 1


JUNK = {
    "calls that are a number": "return messages[:1] + [{'role': 'assistant', 'tool_calls': 5}] + messages[-1:]",
    "content within itself": "d = {}; d['a'] = d; return [{'role': 'user', 'content': d}]",
    "keys of all kinds": "return [{'role': 'user', 'content': {1: 'a', 'b': 2}}, {}]",
    "no length": "return 7",
}


@pytest.mark.parametrize("what", JUNK)
async def test_junk_does_not_end_the_turn(
    harness: OpenHarness, install: Install, server: ModelServer, what: str
) -> None:
    body = f"""def should_compress(self, prompt_tokens=None): return prompt_tokens > 6000
def compress(self, messages, current_tokens=None): {JUNK[what]}"""
    install("odd", odd(body))
    async with harness(enabled=("odd",), engine="odd", window=8_000) as one:
        live = one.session()
        await full(one, live, server)
        server.say("a summary", "after", "after")
        assert (await one.ask("and now?", live)).outcome == "completed"


async def test_ctrl_c_while_an_engine_opens_leaves_at_once(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    body = """def on_session_start(self, session_id, **facts):
    open(os.environ["HERMES_HOME"] + "/opens", "w").close()
    GATE.wait(60)"""
    install("odd", odd(body))
    async with harness(enabled=("odd",), engine="odd") as one:
        asking = asyncio.create_task(one.ask(live=one.session()))
        await until((one.home / "hermes" / "opens").exists)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asking, PATIENCE_S)
        release()


async def test_what_the_memory_wants_to_be_kept_reaches_the_engine(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    noted = 'self._note("compress", focus_topic=focus_topic, force=force)'
    install("recorder", changed((noted, 'self._note("compress", memory_context)')))
    install("elephant", memory("elephant", "def on_pre_compress(self, messages): return 'Rex is a beagle'"))
    async with harness(enabled=("recorder", "elephant"), engine="recorder", memory={"provider": "elephant"}) as one:
        live = one.session()
        await grown(one, live, server)
        assert await live.compact()
        assert calls(one.home, "compress")[0][1] == ["Rex is a beagle"]


async def test_an_engine_that_is_cooling_down_is_left_alone(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    body = """def get_active_compression_failure_cooldown(self): return 60
def should_compress(self, prompt_tokens=None): return True
def compress(self, messages, current_tokens=None): raise AssertionError("asked")"""
    install("odd", odd(body))
    async with harness(enabled=("odd",), engine="odd") as one:
        live = one.session()
        await grown(one, live, server)
        assert one.notices == []


async def test_an_engine_that_says_that_it_is_not_available_is_not_used(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("odd", odd("def is_available(self): return False"))
    async with harness(enabled=("odd",), engine="odd") as one:
        server.say("hello")
        assert (await one.ask(live=one.session())).text == "hello"
        assert one.notices == [
            "Context engine odd says that it is not available. Talaria's own takes over for this turn."
        ]
