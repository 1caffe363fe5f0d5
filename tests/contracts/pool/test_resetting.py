"""Conversations that end by themselves: when, who is told, and how to go back."""

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.pool.travelling import TravellingClock
from tests.plugin_sources import write_plugin
from tests.scenarios.gateway.conftest import harness, run_folder
from tests.scenarios.gateway.test_conversing import user_texts

from talaria.config.load import decode
from talaria.gateway.conversations import is_over
from talaria.gateway.gateway_settings import ResetMode, ResetPolicy
from talaria.gateway.service import SWEEP_S
from talaria.testing import Reply, call
from talaria.testing.harness import OWNER, Harness

__all__ = ["harness", "run_folder"]

KEY = f"agent:main:telegram:dm:{OWNER}"
DAY_S = 24 * 3600.0
LISTENER = """
import json
import os

def note(what, **facts):
    with open(os.path.join(os.environ["HERMES_HOME"], "told.jsonl"), "a") as file:
        file.write(json.dumps([what, facts]) + "\\n")

from agent.memory_provider import MemoryProvider

class Memory(MemoryProvider):
    name = "listener"

    def is_available(self):
        return True

    def initialize(self, session_id, **facts):
        self.session = session_id

    def get_tool_schemas(self):
        return []

    def on_session_end(self, messages):
        note("memory", session=self.session, said=[one["content"] for one in messages])

def finalised(session_id, reason, **_):
    note("hook", session=session_id, reason=reason)

def register(ctx):
    ctx.register_memory_provider(Memory())
    ctx.register_hook("on_session_finalize", finalised)
"""


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.clause("C-X9")
@pytest.mark.parametrize(
    ("mode", "last", "now", "over"),
    [
        ("none", "2026-01-01 00:00", "2026-12-31 00:00", False),
        ("idle", "2026-03-01 12:00", "2026-03-02 11:59", False),
        ("idle", "2026-03-01 12:00", "2026-03-02 12:00", True),
        ("daily", "2026-03-01 23:00", "2026-03-02 03:59", False),
        ("daily", "2026-03-01 23:00", "2026-03-02 04:00", True),
        ("daily", "2026-03-02 03:59", "2026-03-02 04:01", True),
        ("daily", "2026-03-02 04:00", "2026-03-02 04:01", False),
        ("daily", "2026-03-02 04:00", "2026-03-03 03:59", False),
        ("daily", "2026-03-01 05:00", "2026-03-04 01:00", True),
        ("both", "2026-03-01 03:00", "2026-03-01 05:00", True),
        ("both", "2026-03-01 05:00", "2026-03-01 23:00", False),
        ("both", "2026-03-01 04:00", "2026-03-02 04:00", True),
    ],
)
def test_when_a_conversation_is_over(mode: ResetMode, last: str, now: str, *, over: bool) -> None:
    assert is_over(ResetPolicy(mode=mode), at(last), at(now)) is over


@pytest.mark.clause("C-X9")
def test_what_is_usual() -> None:
    config = decode({}, Path("config.yaml")).gateway
    assert config.session_reset == ResetPolicy(mode="none", at_hour=4, idle_minutes=1440)
    hour = ResetPolicy(mode="daily", at_hour=12)
    assert is_over(hour, at("2026-03-01 11:00"), at("2026-03-01 12:00"))
    assert is_over(ResetPolicy(mode="idle", idle_minutes=30), 0.0, 1800.0)


class Timed:
    """A gateway whose conversations end after a day, with somebody who keeps something of them."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.clock = TravellingClock()
        harness.gateway_clock = self.clock
        harness.config["gateway"]["session_reset"] = {"mode": "idle"}
        harness.config["plugins"] = {"enabled": ["listener"]}
        harness.config["memory"] = {"provider": "listener"}
        write_plugin(harness.home / "plugins" / "listener", LISTENER)

    def told(self, what: str) -> list[dict[str, Any]]:
        file = self.harness.home / "hermes" / "told.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [facts for kind, facts in lines if kind == what]

    async def until(self, holds: Callable[[], bool]) -> None:
        """From sweep to sweep."""

        def look() -> bool:
            self.clock.advance(SWEEP_S)
            return holds()

        await self.harness.until(look)

    async def say(self, text: str, count: int) -> list[str]:
        """What the person reads, once there is so much of it."""
        await self.harness.telegram.say(text)
        return [one.text for one in await self.harness.wait_for_messages(count)]


@pytest.fixture
def timed(harness: Harness) -> Timed:
    return Timed(harness)


@pytest.mark.clause("C-X9")
async def test_the_next_message_begins_a_new_conversation_and_says_how_to_go_back(timed: Timed) -> None:
    harness = timed.harness
    harness.model.say("One.", "Two.", "Three.")
    async with harness.serve():
        await timed.say("the cat is white", 1)
        old = await harness.session_of(KEY)
        timed.clock.advance(DAY_S)
        said = await timed.say("good morning", 3)
        assert said[1:] == [said[1], "Two."]
        assert "\n" not in said[1]
        assert said[1].startswith("(A new conversation begins")
        assert said[1].endswith(f"Go back: /resume {old})")
        assert len(user_texts(harness.model)) == 1
        new = await harness.session_of(KEY)
        assert new != old
        assert timed.told("hook") == [{"session": old, "reason": "session_expired"}]
        (kept,) = timed.told("memory")
        assert kept["session"] == old
        assert kept["said"][-1] == "One."
        await timed.say(f"/resume {old}", 4)
        await timed.say("what colour?", 5)
        assert await harness.session_of(KEY) == old
        assert "the cat is white" in harness.model.requests[-1].body.decode()


@pytest.mark.clause("C-X7")
@pytest.mark.clause("C-X9")
async def test_one_that_nobody_speaks_in_is_ended_by_the_sweep_once_and_for_good(timed: Timed) -> None:
    harness = timed.harness
    harness.model.say(Reply(calls=(call("terminal", command="export COLOUR=green"),)), "One.", "Two.")
    async with harness.serve() as gateway_app:
        await timed.say("the cat is white", 1)
        old = await harness.session_of(KEY)
        assert gateway_app.app.builtin is not None
        await timed.until(lambda: len(gateway_app.gateway.pool) == 0)  # it rested, and its end is to come
        assert timed.told("memory") == []
        assert gateway_app.app.builtin.has_shell(old)
        timed.clock.advance(DAY_S / 2)
        await timed.until(lambda: bool(timed.told("memory")))
        assert timed.told("memory")[0]["said"][-1] == "One."
        has_shell = gateway_app.app.builtin.has_shell
        await harness.until(lambda: not has_shell(old))
        assert len(harness.telegram.list_messages()) == 1
        timed.clock.advance(DAY_S)
        said = await timed.say("good morning", 3)
        assert said[2] == "Two."
        assert f"/resume {old}" in said[1]
        assert timed.told("hook") == [{"session": old, "reason": "session_expired"}]
        assert len(timed.told("memory")) == 1


@pytest.mark.clause("C-X9")
async def test_it_is_found_to_be_over_after_a_restart_too(timed: Timed) -> None:
    harness = timed.harness
    harness.model.say("One.", "Two.")
    async with harness.serve():
        await timed.say("the cat is white", 1)
        old = await harness.session_of(KEY)
    timed.clock.advance(DAY_S)
    async with harness.serve():
        said = await timed.say("good morning", 3)
        assert f"/resume {old}" in said[1]
        assert len(user_texts(harness.model)) == 1
        assert timed.told("memory")[0]["said"][-1] == "One."


@pytest.mark.clause("C-X9")
async def test_who_cannot_hear_of_the_end_does_not_hold_up_the_next_message(timed: Timed) -> None:
    (timed.harness.home / "plugins" / "listener" / "__init__.py").write_text(
        LISTENER.replace('note("memory", session', 'raise OSError("no disk") or note("memory", session')
    )
    harness = timed.harness
    harness.model.say("One.", "Two.")
    async with harness.serve():
        await timed.say("the cat is white", 1)
        timed.clock.advance(DAY_S)
        assert (await timed.say("good morning", 3))[-1] == "Two."


async def test_a_conversation_that_goes_on_is_not_over(timed: Timed) -> None:
    harness = timed.harness
    harness.model.say("One.", "Two.", "Three.")
    async with harness.serve():
        for number, text in enumerate(("one", "two", "three"), 1):
            await timed.say(text, number)
            timed.clock.advance(DAY_S - 60)
        assert len(user_texts(harness.model)) == 3
        assert timed.told("hook") == []
