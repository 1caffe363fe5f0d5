"""A memory provider of a plugin, chosen by `memory.provider`: what it hears, what it adds, and what its faults cost."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.contracts.plugins.conftest import (
    NOTES,
    Install,
    OpenHarness,
    asked,
    heard,
    module,
    offered,
    problems_of,
    result,
    statuses,
    write_plugin,
)
from tests.waiting import until

from talaria.app.build import open_store
from talaria.testing.manual_clock import ManualClock
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Failure, Reply, ReplyUsage, call

MEMORY = (
    NOTES
    + """
import threading
from agent.memory_provider import MemoryProvider

GATE = threading.Event()

class Memory(MemoryProvider):
    name = "diary"

    def __init__(self):
        self.lines = []

    def is_available(self):
        return True

    def initialize(self, session_id, **facts):
        self.session = session_id
        note("initialize", session=session_id, **facts)

    def get_tool_schemas(self):
        return [{"name": "diary_read", "description": "Reads.", "parameters": {"type": "object"}}]

    def system_prompt_block(self):
        return "You keep a diary."

    def prefetch(self, query, *, session_id=""):
        note("prefetch", query=query, session_id=session_id)
        return f"the diary on {query}" if self.lines else ""

    def queue_prefetch(self, query, *, session_id=""):
        note("queue_prefetch", query=query)

    def sync_turn(self, user, assistant, *, session_id="", messages=None):
        self.lines.append(f"{user} -> {assistant}")
        note("sync_turn", user=user, assistant=assistant, session_id=session_id, messages=messages)

    def handle_tool_call(self, tool_name, args, **facts):
        note("tool", tool=tool_name, args=args, **facts)
        return {"lines": self.lines, "session": self.session}

    def on_turn_start(self, turn_number, message, **facts):
        note("turn", number=turn_number, message=message)

    def on_session_end(self, messages):
        note("end", count=len(messages))

    def on_session_switch(self, new_session_id, **facts):
        note("switch", new=new_session_id, **facts)

    def on_pre_compress(self, messages):
        note("compress")
        return "keep the teapot"

    def shutdown(self):
        note("shutdown")

def register(ctx):
    ctx.register_memory_provider(Memory())
"""
)
CHOSEN = {"provider": "diary"}


def but(body: str) -> str:
    """The diary, with a method of its own."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return MEMORY.replace("\ndef register", f"\n{lines}\ndef register")


async def test_it_adds_to_the_prompt_and_brings_its_tools(
    harness: OpenHarness, install: Install, server: ModelServer, home: Path
) -> None:
    install("diary", MEMORY)
    async with harness("diary", memory=CHOSEN) as one:
        live = one.session("here")
        server.say(Reply(calls=(call("diary_read", day=1),)), "done")
        await one.ask("hello", live)
        assert "You keep a diary." in asked(server)[0]["content"]
        assert offered(server) == {"diary_read"}
        assert json.loads(result(server)) == {"lines": [], "session": "here"}
        (facts,) = heard("diary", "initialize")
        assert (facts["session"], facts["hermes_home"], facts["platform"]) == ("here", str(home / "hermes"), "cli")
        (tool,) = heard("diary", "tool")
        assert (tool["tool"], tool["args"], tool["session_id"]) == ("diary_read", {"day": 1}, "here")
        assert (one.notices, problems_of(one, "diary")) == ([], [])


async def test_what_it_knows_goes_into_the_message_and_what_was_said_comes_to_it_afterwards(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("diary", MEMORY)
    async with harness("diary", memory=CHOSEN) as one:
        live = one.session("here")
        server.say("tea is fine")
        await one.ask("tea?", live)
        assert "the diary on" not in json.dumps(asked(server))
        server.say("coffee, too")
        await one.ask("coffee?", live)
        assert "the diary on coffee?" in asked(server)[-1]["content"]
        assert "the diary on" not in json.dumps(asked(server)[:-1])
        turn = ["turn", "prefetch", "sync_turn", "queue_prefetch"]
        assert heard("diary") == ["initialize", *turn, *turn]
        first, second = heard("diary", "sync_turn")
        assert (first["user"], first["assistant"], first["session_id"]) == ("tea?", "tea is fine", "here")
        assert [one["role"] for one in second["messages"]] == ["user", "assistant"] * 2
        assert [facts["number"] for facts in heard("diary", "turn")] == [1, 2]


async def test_a_turn_without_an_answer_is_not_kept(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("diary", MEMORY)
    async with harness("diary", memory=CHOSEN) as one:
        server.say(Failure(401))
        report = await one.ask(live=one.session())
        assert report.outcome == "failed"
        assert heard("diary", "sync_turn") == []


BODIES = {"as it is": "", "with what cannot be copied": "lock = threading.Lock()\n__reduce_ex__ = None"}


@pytest.mark.parametrize("what", BODIES)
async def test_each_conversation_has_one_of_its_own(
    harness: OpenHarness, install: Install, server: ModelServer, what: str
) -> None:
    install("diary", but(BODIES[what]))
    async with harness("diary", memory=CHOSEN) as one:
        for name in ("left", "right"):
            server.say(f"hello {name}", Reply(calls=(call("diary_read"),)), "done")
            live = one.session(name)
            await one.ask(f"I am {name}", live)
            await one.ask("what do you know?", live)
            known = json.loads(result(server))
            assert known == {"lines": [f"I am {name} -> hello {name}"], "session": name}


async def test_conversations_that_must_share_one_are_told_so(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    source = but("def __deepcopy__(self, memo): raise TypeError('not me')")
    source += "ONLY = Memory()\n"
    install("diary", source.replace("(Memory())", "(ONLY)"))
    async with harness("diary", memory=CHOSEN) as one:
        server.say("a")
        await one.ask(live=one.session("left"))
        assert "Memory provider diary cannot be copied, so all conversations in this process share it." in one.notices


async def test_it_is_told_when_the_conversation_is_left(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("diary", MEMORY)
    async with harness("diary", memory=CHOSEN) as one:
        live = one.session("one")
        server.say("hello")
        await one.ask(live=live)
        await live.close()
        assert heard("diary")[-2:] == ["end", "shutdown"]
        assert heard("diary", "end") == [{"count": 2}]


async def test_it_is_told_where_the_conversation_goes_on(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("diary", MEMORY)
    async with harness("diary", memory=CHOSEN) as one:
        live, following = one.session("one"), one.session("two")
        server.say("hello", "again")
        await one.ask(live=live)
        await live.leave_for(following)
        (switch,) = heard("diary", "switch")
        assert (switch["new"], switch["parent_session_id"], switch["reset"]) == ("two", "one", True)
        await one.ask(live=following)
        assert [facts["session"] for facts in heard("diary", "initialize")] == ["one", "two"]


async def test_nothing_is_heard_of_a_conversation_that_never_began(harness: OpenHarness, install: Install) -> None:
    install("diary", MEMORY)
    async with harness("diary", memory=CHOSEN) as one:
        await one.session().close()
        assert heard("diary") == []


async def test_a_summary_keeps_what_it_asks_for(harness: OpenHarness, install: Install, server: ModelServer) -> None:
    install("diary", MEMORY)
    async with harness("diary", memory=CHOSEN, window=8_000) as one:
        live = one.session()
        for turn in range(6):
            server.say(Reply("look", calls=(call("nothing", id=f"c{turn}"),)))
            server.say(Reply(f"answer {turn} " + "word " * 200, usage=ReplyUsage(input=5000 if turn < 5 else 7000)))
            await one.ask(f"question {turn} " + "why " * 100, live)
        server.say("the gist", "after")
        assert (await one.ask("and now?", live)).text == "after"
        assert heard("diary", "compress")
        assert "keep the teapot" in server.requests[-2].body.decode()


async def test_one_that_is_not_chosen_is_not_loaded(harness: OpenHarness, install: Install, home: Path) -> None:
    install("diary", f"open({str(home / 'ran')!r}, 'w').close()\n{MEMORY}")
    async with harness("diary") as one:
        assert statuses(one) == {"diary": "not chosen"}
    assert not (home / "ran").exists()


async def test_one_that_is_chosen_and_not_enabled_is_not_loaded_and_told_of(
    harness: OpenHarness, install: Install, home: Path
) -> None:
    install("diary", f"open({str(home / 'ran')!r}, 'w').close()\n{MEMORY}")
    async with harness(memory=CHOSEN) as one:
        assert statuses(one) == {"diary": "available"}
        assert any("'diary'" in sentence for sentence in list(one.app.left_out))
    assert not (home / "ran").exists()


async def test_one_is_chosen_by_the_name_of_its_folder_whatever_it_calls_itself(
    harness: OpenHarness, home: Path, server: ModelServer
) -> None:
    source = MEMORY.replace('name = "diary"', 'name = "The Diary"')
    write_plugin(home / "plugins" / "memory" / "journal", source, name="a-diary")
    async with harness("memory/journal", memory={"provider": "journal"}) as one:
        assert statuses(one) == {"memory/journal": "loaded"}
        server.say("hello")
        await one.ask(live=one.session())
        assert "You keep a diary." in asked(server)[0]["content"]


RAISING = {
    "is_available": "def is_available(self): raise OSError('no disk')",
    "initialize": "def initialize(self, session_id, **facts): raise SystemExit(2)",
    "get_tool_schemas": "def get_tool_schemas(self): raise KeyError('x')",
    "system_prompt_block": "def system_prompt_block(self): raise ValueError('mute')",
    "prefetch": "def prefetch(self, query, **facts): raise ValueError('forgotten')",
    "sync_turn": "def sync_turn(self, *args, **facts): raise KeyboardInterrupt",
    "on_turn_start": "def on_turn_start(self, *args, **facts): raise ValueError('late')",
}


@pytest.mark.parametrize("method", RAISING)
async def test_one_that_raises_is_told_of_and_the_turn_goes_on(
    harness: OpenHarness, install: Install, server: ModelServer, method: str
) -> None:
    install("diary", but(RAISING[method]))
    async with harness("diary", memory=CHOSEN) as one:
        server.say("hello")
        assert (await one.ask(live=one.session())).text == "hello"
        told = [notice for notice in one.notices if notice.startswith("Memory provider diary raised ")]
        assert len(told) == 1
        assert f"in {method}" in told[0]


async def test_one_that_could_not_begin_is_not_asked_further(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("diary", but(RAISING["initialize"]))
    async with harness("diary", memory=CHOSEN) as one:
        server.say("hello")
        await one.ask(live=one.session())
        assert heard("diary") == []
        assert offered(server) == set()


async def test_one_that_is_not_available_is_told_of_and_left_out(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("diary", but("def is_available(self): return False"))
    async with harness("diary", memory=CHOSEN) as one:
        server.say("hello")
        assert (await one.ask(live=one.session())).text == "hello"
        assert one.notices == ["Memory provider diary says that it is not available."]
        assert (heard("diary"), offered(server)) == ([], set())


JUNK = {
    "a prompt that is a number": "def system_prompt_block(self): return 5",
    "a prompt that is half a letter": "def system_prompt_block(self): return '\\ud800'",
    "knowledge that cannot be said": "def prefetch(self, query, **facts): return Odd()",
    "knowledge that is half a letter": "def prefetch(self, query, **facts): return '\\ud800'",
    "tools that are no list": "def get_tool_schemas(self): return {'name': 'x'}",
    "tools of no form": "def get_tool_schemas(self): return [5, None, {'name': 'a b'}, {}]",
    "a tool within itself": "def get_tool_schemas(self, a={'name': 'x'}):\n    a['parameters'] = a\n    return [a]",
    "an availability that cannot decide": "def is_available(self): return Odd()",
}
ODD = (
    "class Odd:\n    def __str__(self): raise ValueError('unsayable')\n    def __bool__(self): raise ValueError('?')\n"
)


@pytest.mark.parametrize("what", JUNK)
async def test_one_that_returns_junk_does_not_end_the_turn(
    harness: OpenHarness, install: Install, server: ModelServer, what: str
) -> None:
    install("diary", ODD + but(JUNK[what]))
    async with harness("diary", memory=CHOSEN, store=open_store) as one:
        server.say("hello")
        assert (await one.ask(live=one.session())).text == "hello"


@pytest.mark.parametrize("method", ["prefetch", "sync_turn", "initialize"])
async def test_one_that_hangs_is_told_of_and_not_asked_again(
    harness: OpenHarness, install: Install, server: ModelServer, method: str
) -> None:
    install("diary", but(f"def {method}(self, *args, **facts):\n    note('hangs')\n    GATE.wait(60)"))
    clock = ManualClock()
    async with harness("diary", memory=CHOSEN, clock=clock) as one:
        live = one.session()
        server.say("hello", "again")
        asking = asyncio.create_task(one.ask(live=live))
        await until(lambda: "hangs" in heard("diary"))
        clock.advance(31)
        assert (await asking).text == "hello"
        assert any("did not return within" in notice and method in notice for notice in one.notices)
        count = len(heard("diary"))
        assert (await one.ask(live=live)).text == "again"
        assert len(heard("diary")) == count
        module("diary").GATE.set()


async def test_one_that_derives_from_nothing_is_one_too(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    source = """
class Diary:
    name = "diary"
    def is_available(self): return True
    def initialize(self, session_id, **facts): pass
    def get_tool_schemas(self): return []
    def system_prompt_block(self): return "You keep a diary."
def register(ctx):
    ctx.register_memory_provider(Diary())
"""
    install("diary", source)
    async with harness("diary", memory=CHOSEN) as one:
        server.say("hello")
        await one.ask(live=one.session())
        assert "You keep a diary." in asked(server)[0]["content"]
        assert one.notices == []


async def test_a_tool_of_it_that_breaks_is_an_error_for_the_model(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("diary", but("def handle_tool_call(self, name, args, **facts): raise ValueError('torn out')"))
    async with harness("diary", memory=CHOSEN) as one:
        server.say(Reply(calls=(call("diary_read"),)), "done")
        assert (await one.ask(live=one.session())).text == "done"
        assert json.loads(result(server)) == {"error": "diary_read raised ValueError: torn out"}


async def test_older_ones_with_fewer_parameters_work(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    body = "def sync_turn(self, user, assistant): note('kept')\ndef prefetch(self, query): return 'old knowledge'"
    install("diary", but(body))
    async with harness("diary", memory=CHOSEN) as one:
        server.say("hello")
        await one.ask(live=one.session())
        assert "old knowledge" in asked(server)[-1]["content"]
        assert ("kept" in heard("diary"), one.notices) == (True, [])
