"""A slash command of a context engine reaches the engine of the conversation in which it is given, however that engine
was made and however its handler holds it; and in the table of commands stands the handler that was registered."""

import asyncio
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from tests.contracts.engines.conftest import HarnessChat, OpenHarness

from talaria.core.errors import TalariaError
from talaria.testing.servers.model_server import ModelServer

Install = Callable[..., Path]

ENGINE = """
import copy, functools, threading
from agent.context_engine import ContextEngine

class Engine(ContextEngine):
    name = "made"
    session = "nobody"
    def update_from_response(self, usage): pass
    def should_compress(self, prompt_tokens=None): return False
    def compress(self, messages): return messages
    def on_session_start(self, session_id, **facts): self.session = session_id
    def tell(self, args): return f"{self.session} heard {args}"
# BODY
def told(engine, args):
    return engine.tell(args)

def passed_on(handler):
    def handle(args):
        return handler(args)
    return handle

def add(ctx, engine):
    async def later(args):
        return engine.tell(args)
    ctx.register_context_engine(engine)
    ctx.register_command("method", engine.tell)
    ctx.register_command("closure", lambda args: told(engine, args))
    ctx.register_command("partial", functools.partial(told, engine))
    ctx.register_command("default", lambda args, engine=engine: told(engine, args))
    ctx.register_command("nested", passed_on(engine.tell))
    ctx.register_command("later", later)
    ctx.register_command("plain", lambda args: f"plain heard {args}")
"""
HANDLERS = ("method", "closure", "partial", "default", "nested", "later")
CLONES = "    def clone_for_agent(self): return Engine()\n"
COPIES = "    def __deepcopy__(self, memo): return Engine()\n"
LOCKED = "    def __init__(self): self.lock = threading.Lock()\n"
AGAIN = "\ndef register(ctx): add(ctx, Engine())\n"
SAME = "\nengine = Engine()\ndef register(ctx): add(ctx, engine)\n"


def plugin(body: str, register: str) -> str:
    return ENGINE.replace("# BODY\n", body) + register


@pytest.mark.parametrize(
    ("body", "register"),
    [("", AGAIN), (LOCKED, AGAIN), (CLONES, AGAIN), (COPIES, AGAIN), ("", SAME)],
    ids=["register", "register with a lock", "clone", "own deep copy", "plain deep copy"],
)
async def test_a_command_reaches_the_engine_of_its_own_conversation(
    harness: OpenHarness, install: Install, server: ModelServer, body: str, register: str
) -> None:
    install("made", plugin(body, register))
    async with harness(enabled=("made",), engine="made") as one:
        left, right = (HarnessChat(one, one.session(name)) for name in ("left", "right"))
        server.say("hello")
        await one.ask(live=left.live)
        for name in HANDLERS:  # nothing was said on the right yet
            assert await left.say(f"/{name} tea") == "left heard tea", name
            assert await right.say(f"/{name} tea") == "right heard tea", name
        assert await left.say("/plain tea") == "plain heard tea"
        server.say("hello")
        await one.ask(live=right.live)
        assert await right.say("/method tea") == "right heard tea"
        assert one.notices == []


async def test_one_engine_for_all_conversations_answers_as_the_one_that_began_last(
    harness: OpenHarness, install: Install
) -> None:
    install("made", plugin(LOCKED, SAME))
    async with harness(enabled=("made",), engine="made") as one:
        left, right = (HarnessChat(one, one.session(name)) for name in ("left", "right"))
        assert await left.say("/closure tea") == "left heard tea"
        assert await right.say("/closure tea") == "right heard tea"


async def test_commands_that_share_a_variable_still_share_it_when_they_reach_another_engine(
    harness: OpenHarness, install: Install
) -> None:
    source = """
def register(ctx):
    engine, count = Engine(), 0
    def more(args):
        nonlocal count
        count += 1
        return f"{engine.session} {count}"
    def less(args):
        nonlocal count
        count -= 1
        return f"{engine.session} {count}"
    ctx.register_context_engine(engine)
    ctx.register_command("more", more)
    ctx.register_command("less", less)
"""
    install("made", plugin(CLONES, source))
    async with harness(enabled=("made",), engine="made") as one:
        chat = HarnessChat(one, one.session("left"))
        assert [await chat.say(line) for line in ("/more", "/more", "/less")] == ["left 1", "left 2", "left 1"]


@pytest.mark.clause("E-09")
async def test_the_table_of_commands_has_the_handler_that_was_registered(
    harness: OpenHarness, install: Install
) -> None:
    install("made", plugin("", SAME))
    async with harness(enabled=("made",), engine="made") as one:
        await HarnessChat(one, one.session("left")).say("/method tea")
        table = import_module("hermes_cli.plugins").get_plugin_commands()
        assert table["method"]["handler"].__self__ is import_module("hermes_plugins.made").engine


async def test_a_command_of_an_engine_that_is_not_chosen_uses_the_one_that_was_registered(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("made", plugin("", AGAIN))
    async with harness(enabled=("made",)) as one:
        chat = HarnessChat(one, one.session("left"))
        server.say("hello")
        await one.ask(live=chat.live)
        assert await chat.say("/closure tea") == "nobody heard tea"


async def test_a_command_is_not_taken_for_one_of_the_same_name_of_the_engine_that_is_chosen(
    harness: OpenHarness, install: Install
) -> None:
    install("first", plugin("", AGAIN).replace('"made"', '"other"'))
    install("made", plugin("", AGAIN))
    async with harness(enabled=("first", "made"), engine="made") as one:
        chat = HarnessChat(one, one.session("left"))
        assert await chat.say("/closure tea") == "nobody heard tea"


async def test_a_command_waits_until_the_engine_has_returned_from_another_call(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    body = """
    gate, inside, most = threading.Event(), 0, 0
    def slow(self):
        type(self).inside += 1
        type(self).most = max(self.most, self.inside)
        self.gate.wait(10)
        type(self).inside -= 1
    def get_status(self): self.slow(); return {}
    def tell(self, args): self.slow(); return "told"
"""
    install("made", plugin(body, AGAIN))
    async with harness(enabled=("made",), engine="made") as one:
        chat = HarnessChat(one, one.session("left"))
        server.say("hello")
        await one.ask(live=chat.live)
        kind = import_module("hermes_plugins.made").Engine
        status = asyncio.create_task(chat.live.services.context_status())
        while not kind.inside:
            await asyncio.sleep(0.001)
        command = asyncio.create_task(chat.say("/method tea"))
        for _ in range(20):  # time enough for a command that does not wait
            await asyncio.to_thread(int)
        kind.gate.set()
        assert (await status, await command)[1] == "told"
        assert kind.most == 1


async def test_an_engine_that_cannot_be_built_is_named_and_the_next_turn_tries_again(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    body = "    def is_available(self): return not getattr(Engine, 'is_away', False)\n"
    install("made", plugin(body, AGAIN))
    async with harness(enabled=("made",), engine="made") as one:
        chat = HarnessChat(one, one.session("left"))
        kind = import_module("hermes_plugins.made").Engine
        kind.is_away = True
        with pytest.raises(
            TalariaError, match=r"^/method needs the context engine, which says that it is not available\.$"
        ):
            await chat.say("/method tea")
        kind.is_away = False
        server.say("hello")
        await one.ask(live=chat.live)
        assert one.notices == []
        assert await chat.say("/method tea") == "left heard tea"


async def test_a_command_of_an_engine_that_raises_is_told_in_one_sentence(
    harness: OpenHarness, install: Install
) -> None:
    install("made", plugin("    def tell(self, args): raise ValueError('no tea')\n", AGAIN))
    async with harness(enabled=("made",), engine="made") as one:
        with pytest.raises(TalariaError, match=r"^/method raised ValueError: no tea\.$"):
            await HarnessChat(one, one.session("left")).say("/method tea")
