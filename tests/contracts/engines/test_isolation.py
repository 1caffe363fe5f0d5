"""One engine per live session, in the order of E-X2: its own clone, its class's deep copy, `register` again, a plain
deep copy; and if nothing helps, one for all, which is told. Never silently the built-in."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.engines.conftest import OpenHarness

from talaria.testing.harness import Harness
from talaria.testing.servers.model_server import ModelServer

Install = Callable[..., Path]

ENGINE = """
import copy, threading
from agent.context_engine import ContextEngine

class Engine(ContextEngine):
    name = "made"
    made_by = "hand"
    def update_from_response(self, usage): pass
    def should_compress(self, prompt_tokens=None): return False
    def compress(self, messages): return messages
    def get_status(self): return {{"made_by": self.made_by, "sessions": sorted(self.__dict__.setdefault("seen", []))}}
    def on_session_start(self, session_id, **facts): self.__dict__.setdefault("seen", []).append(session_id)
{body}
"""
CLONES = """    def clone_for_agent(self):
        other = Engine()
        other.made_by = "clone_for_agent"
        return other
"""
COPIES = """    def __deepcopy__(self, memo):
        other = Engine()
        other.made_by = "__deepcopy__"
        return other
"""
LOCKED = """    def __init__(self):
        self.lock = threading.Lock()
"""
AGAIN = """
times = 0
def register(ctx):
    global times
    times += 1
    engine = Engine()
    engine.made_by = f"register {times}" if times > 1 else "hand"
    ctx.register_context_engine(engine)
"""
SAME = """
engine = Engine()
def register(ctx):
    ctx.register_context_engine(engine)
"""
BROKEN_CLONE = """    def clone_for_agent(self):
        raise RuntimeError("not today")
"""


@pytest.mark.parametrize(
    ("body", "register", "made_by"),
    [
        (CLONES + COPIES, AGAIN, "clone_for_agent"),
        (COPIES, AGAIN, "__deepcopy__"),
        (BROKEN_CLONE + COPIES, AGAIN, "__deepcopy__"),
        ("", AGAIN, "register 2"),
        (LOCKED, AGAIN, "register 2"),
        ("", SAME, "hand"),
    ],
    ids=["clone", "own deep copy", "broken clone", "register", "register with a lock", "plain deep copy"],
)
async def test_each_session_has_an_engine_of_its_own(
    harness: OpenHarness, install: Install, server: ModelServer, body: str, register: str, made_by: str
) -> None:
    install("made", ENGINE.format(body=body) + register)
    async with harness(enabled=("made",), engine="made") as one:
        first, second = await statuses(one, server)
        assert first["made_by"] == made_by
        assert (first["sessions"], second["sessions"]) == (["left"], ["right"])
        assert one.notices == []


async def test_what_cannot_be_copied_is_shared_and_that_is_told(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("made", ENGINE.format(body=LOCKED) + SAME)
    async with harness(enabled=("made",), engine="made") as one:
        first, second = await statuses(one, server)
        assert first["sessions"] == second["sessions"] == ["left", "right"]
        assert one.notices == ["Context engine made cannot be copied, so all conversations in this process share it."]


async def test_leaving_one_conversation_does_not_end_an_engine_that_others_share(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    ends = "    ended = 0\n    def shutdown(self): self.ended += 1\n"
    status = "    def get_status(self): return {'ended': self.ended}\n"
    install("made", ENGINE.format(body=LOCKED + ends + status) + SAME)
    async with harness(enabled=("made",), engine="made") as one:
        left, right = one.session("left"), one.session("right")
        server.say("a", "b")
        await one.ask(live=left)
        await one.ask(live=right)
        await left.close()
        assert (await right.services.context_status())["ended"] == 0


async def test_hooks_that_an_engine_puts_into_the_table_itself_are_not_doubled(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    register = """
def register(ctx):
    from hermes_cli.plugins import get_plugin_manager
    get_plugin_manager()._hooks.setdefault("post_llm_call", []).append(lambda **facts: None)
    ctx.register_context_engine(Engine())
"""
    install("made", ENGINE.format(body=LOCKED) + register)
    async with harness(enabled=("made",), engine="made") as one:
        await statuses(one, server)
        assert one.app.extensions is not None
        assert len(one.app.extensions.host.hooks.callbacks["post_llm_call"]) == 1


async def test_an_engine_that_is_not_there_is_told_of(harness: OpenHarness, server: ModelServer) -> None:
    async with harness(engine="nowhere") as one:
        assert any("No loaded plugin has the context engine 'nowhere'" in notice for notice in one.app.left_out)
        server.say("hello")
        assert (await one.ask(live=one.session())).text == "hello"


async def statuses(here: Harness, server: ModelServer) -> list[dict[str, Any]]:
    lives = [here.session("left"), here.session("right")]
    server.say("a", "b")
    for live in lives:
        await here.ask(live=live)
    return [await live.services.context_status() for live in lives]
