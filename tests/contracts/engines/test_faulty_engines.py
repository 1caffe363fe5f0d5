"""An engine that raises, hangs or returns nonsense: the person is told, and the built-in one keeps the conversation."""

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.contracts.engines.conftest import OpenHarness
from tests.plugin_sources import engine
from tests.waiting import until

from talaria.core.clock import SystemClock
from talaria.core.entries import Compacted
from talaria.runtime.session import LiveSession
from talaria.testing.harness import Harness
from talaria.testing.manual_clock import ManualClock
from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Failure, Reply, ReplyUsage, call

Install = Callable[..., Path]

BEFORE = """
import json, os, threading

GATE = threading.Event()
CALL = dict(id="new", function=dict(name="look", arguments="[]"))
"""


def odd(methods: str) -> str:
    return BEFORE + engine("odd", methods)


RAISES = {
    "should_compress": "def should_compress(self, prompt_tokens=None): raise ValueError('no idea')",
    "update_from_response": "def update_from_response(self, usage): raise KeyError('prompt')",
    "should_compress_preflight": "def should_compress_preflight(self, messages): raise OSError('disk')",
    "on_session_start": "def on_session_start(self, session_id, **facts): raise RuntimeError('late')",
    "update_model": "def update_model(self, **facts): raise SystemExit(3)",
    "get_tool_schemas": "def get_tool_schemas(self): raise KeyboardInterrupt()",
}


@pytest.mark.parametrize("method", RAISES)
async def test_an_engine_that_raises_is_told_of_and_the_turn_goes_on(
    harness: OpenHarness, install: Install, server: ModelServer, method: str
) -> None:
    install("odd", odd(RAISES[method]))
    async with harness(enabled=("odd",), engine="odd") as one:
        live = one.session()
        server.say("hello")
        report = await one.ask(live=live)
        assert report.text == "hello"
        told = [notice for notice in one.notices if "Context engine odd raised" in notice]
        assert len(told) == 1
        assert told[0].endswith(f"in {method}. Talaria's own takes over for this turn.")


ILLEGAL = {
    "no list": "return None and 1 or 7",
    "strings": "return ['a']",
    "a role of its own": "return [{'role': 'narrator', 'content': 'x'}]",
    "results of no call": "return messages + [{'role': 'tool', 'tool_call_id': 'never', 'content': 'x'}]",
    "calls that nobody made": "return messages[:1] + [dict(role='assistant', tool_calls=[CALL])] + messages[-1:]",
    "calls of no form": "return messages[:1] + [{'role': 'assistant', 'tool_calls': [{}]}] + messages[-1:]",
}


@pytest.mark.parametrize("what", ILLEGAL)
async def test_what_no_endpoint_would_take_is_refused_and_the_built_in_compacts(
    harness: OpenHarness, install: Install, server: ModelServer, what: str
) -> None:
    body = f"""def should_compress(self, prompt_tokens=None): return prompt_tokens > 6000
def compress(self, messages, current_tokens=None): {ILLEGAL[what]}"""
    install("odd", odd(body))
    async with harness(enabled=("odd",), engine="odd", window=8_000) as one:
        live = one.session()
        await full(one, live, server)
        server.say("a summary", "after")
        report = await one.ask("and now?", live)
        assert report.text == "after"
        assert any("odd" in notice and "Talaria's own takes over for this turn" in notice for notice in one.notices)
        made = await compactions(one, live)
        assert [entry.summary_by for entry in made] == ["model"]


CUTS = {
    "a note and a tail": "[messages[0], {'role': 'assistant', 'content': '[so far]'}, *messages[cut:]]",
    "head and tail": "[*messages[:2], *messages[cut:]]",
    "no output": "[m for m in messages if m['role'] != 'tool'][:3] + messages[-1:]",
    "no question": "[{'role': 'user', 'content': '[so far]'}, {'role': 'assistant', 'content': 'yes'}]",
    "a developer's note": "[{'role': 'developer', 'content': '[so far]'}, *messages[-2:]]",
}


@pytest.mark.parametrize("cut", CUTS)
async def test_what_a_cut_leaves_loose_is_mended(
    harness: OpenHarness, install: Install, server: ModelServer, cut: str
) -> None:
    """As engines do that count messages: results come back without the call, and calls without results."""
    body = """def should_compress(self, prompt_tokens=None): return prompt_tokens > 6000
def compress(self, messages, current_tokens=None):
    cut = [i for i, m in enumerate(messages) if m["role"] == "tool"][3]
    return MADE"""
    install("odd", odd(body.replace("MADE", CUTS[cut])))
    async with harness(enabled=("odd",), engine="odd", window=8_000) as one:
        live = one.session()
        await full(one, live, server)
        server.say("after")
        report = await one.ask("and now?", live)
        assert (report.text, one.notices[0][:20]) == ("after", "The conversation was")
        assert "and now?" in json.dumps(json.loads(server.requests[-1].body)["messages"][-1])
        assert [entry.summary_by for entry in await compactions(one, live)] == ["engine"]


async def test_an_engine_that_hangs_is_left_behind_and_another_is_built(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    body = """count = 0
def __init__(self):
    Engine.count += 1
    self.number = Engine.count
def should_compress(self, prompt_tokens=None):
    if self.number == 2:
        open(os.environ["HERMES_HOME"] + "/hangs", "w").close()
        GATE.wait(60)
    return False
def get_tool_schemas(self): return [{"name": "which", "description": "", "parameters": {"type": "object"}}]
def handle_tool_call(self, name, args, **facts): return json.dumps({"number": self.number})"""
    install("odd", odd(body))
    clock = ManualClock()
    async with harness(enabled=("odd",), engine="odd", clock=clock) as one:
        live = one.session()
        server.say("hello")
        asking = asyncio.create_task(one.ask(live=live))
        await until((one.home / "hermes" / "hangs").exists)
        clock.advance(31)
        report = await asking
        assert report.text == "hello"
        assert "did not return within 30 seconds in should_compress" in one.notices[0]
        server.say(Reply(calls=(call("which"),)), "done")
        await one.ask(live=live)
        assert one.notices == []
        assert '{"number": 3}' in server.requests[-1].body.decode().replace('\\"', '"')
        release()


async def test_an_overflow_that_the_engine_does_not_heal_is_healed_by_the_built_in(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("odd", odd(""))
    async with harness(enabled=("odd",), engine="odd", window=8_000) as one:
        live = one.session()
        await full(one, live, server)
        server.say(too_long(), "a summary", "after")
        report = await one.ask("and now?", live)
        assert report.text == "after"
        assert any("did not shorten a conversation" in notice for notice in one.notices)


async def test_a_tool_that_breaks_is_a_result_for_the_model(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    body = """def get_tool_schemas(self): return [{"name": "look", "description": "", "parameters": {"type": "object"}}]
def handle_tool_call(self, name, args, **facts): raise ValueError("no such page")"""
    install("odd", odd(body))
    async with harness(enabled=("odd",), engine="odd") as one:
        server.say(Reply(calls=(call("look"),)), "sorry")
        report = await one.ask(live=one.session())
        assert report.text == "sorry"
        sent = json.loads(server.requests[-1].body)["messages"][-1]
        assert json.loads(sent["content"]) == {"error": "look raised ValueError: no such page"}


async def test_a_call_back_into_the_model_starves_nobody(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    """Many sessions at once, each in an engine that waits for the model: no pool of threads runs dry."""
    body = """def should_compress_preflight(self, messages):
    from agent.auxiliary_client import call_llm
    self.said = call_llm(task="compression", messages=[{"role": "user", "content": "hm"}]).choices[0].message.content
    return False
def update_from_response(self, usage):
    assert self.said == "aside" """
    install("odd", odd(body))
    async with harness(enabled=("odd",), engine="odd", clock=SystemClock()) as one:
        server.say(*["aside"] * 80)
        lives = [one.session(f"s{number}") for number in range(40)]
        reports = await asyncio.wait_for(asyncio.gather(*(one.ask(live=live) for live in lives)), PATIENCE_S)
        assert {report.text for report in reports} == {"aside"}
        assert len(server.requests) == 80
        assert one.notices == []


async def test_small_calls_beside_the_conversation_do_not_reach_the_engine(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    body = """seen = 0
def update_from_response(self, usage): self.seen += 1
def get_status(self): return {"last_prompt_tokens": self.seen}"""
    install("odd", odd(body))
    async with harness(enabled=("odd",), engine="odd") as one:
        live = one.session()
        server.say("hello")
        await one.ask(live=live)
        server.say("a title")
        await one.app.auxiliary("title").ask("name it", system="", session=live.id)
        assert (await live.services.context_status())["last_prompt_tokens"] == 1


async def full(here: Harness, live: LiveSession, server: ModelServer) -> None:
    """A conversation with calls whose prompt the model counts as 7,000 tokens."""
    for turn in range(6):
        server.say(Reply("look", calls=(call("nothing", id=f"c{turn}"),)))
        server.say(Reply(f"answer {turn} " + "word " * 200, usage=ReplyUsage(input=5000 if turn < 5 else 7000)))
        await here.ask(f"question {turn} " + "why " * 100, live)


def too_long() -> Failure:
    said = "This model's maximum context length is 8000 tokens. However, your messages resulted in 9000 tokens."
    return Failure(400, {"error": {"message": said, "code": "context_length_exceeded"}})


async def compactions(here: Harness, live: LiveSession) -> list[Compacted]:
    entries = [recorded.entry for recorded in await here.app.store.journal.entries(live.id)]
    return [entry for entry in entries if isinstance(entry, Compacted)]


def release() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("hermes_plugins.") and isinstance(getattr(module, "GATE", None), threading.Event):
            module.GATE.set()
