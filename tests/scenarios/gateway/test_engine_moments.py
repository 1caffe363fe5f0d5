"""What a context engine is told of a chat: through real messages, under the key that the gateway makes."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.plugin_sources import copy_plugin

from talaria.testing.harness import Harness

KEY = "agent:main:telegram:dm:1001"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def recorded(harness: Harness) -> Harness:
    """With an engine that writes down what it is called with."""
    copy_plugin("recorder", harness.home)
    harness.config["plugins"] = {"enabled": ["recorder"]}
    harness.config["context"] = {"engine": "recorder"}
    return harness


def moments(harness: Harness) -> list[tuple[str, list[Any], dict[str, Any]]]:
    """Beginnings and ends, in order."""
    file = harness.home / "hermes" / "calls.jsonl"
    lines = file.read_text().splitlines() if file.exists() else ()
    calls = [json.loads(line)[:3] for line in lines]
    return [(what, args, facts) for what, args, facts in calls if what in ("start", "end", "reset", "carry")]


async def said(harness: Harness, *texts: str) -> None:
    """One after the other, each when the one before is answered."""
    for text in texts:
        before = len(harness.telegram.list_messages())
        await harness.telegram.say(text)
        await harness.wait_for_messages(before + 1)


@pytest.mark.clause("E-01")
@pytest.mark.clause("E-02")
async def test_a_branch_ends_resets_starts_and_carries_over_in_a_chat(recorded: Harness) -> None:
    recorded.model.say("Hello.")
    async with recorded.serve():
        await said(recorded, "hi")
        old = await recorded.session_of(KEY)
        (recorded.home / "hermes" / "calls.jsonl").unlink()
        await said(recorded, "/branch")
        new = await recorded.session_of(KEY)
        after = moments(recorded)
    assert old != new
    assert [what for what, _, _ in after] == ["end", "reset", "start", "carry"]
    assert after[0][1:] == ([old], {"messages": 2})
    _, args, facts = after[2]
    assert args == [new]
    assert (facts["conversation_id"], facts["old_session_id"], facts["platform"]) == (KEY, old, "telegram")
    assert after[3][1] == [old, new]


@pytest.mark.clause("E-02")
@pytest.mark.clause("E-04")
async def test_a_new_conversation_in_a_chat_carries_nothing_over_and_has_the_same_key(recorded: Harness) -> None:
    recorded.model.say("Hello.")
    async with recorded.serve():
        await said(recorded, "hi")
        old = await recorded.session_of(KEY)
        (recorded.home / "hermes" / "calls.jsonl").unlink()
        await said(recorded, "/new")
        after = moments(recorded)
    assert [what for what, _, _ in after] == ["end", "reset", "start"]
    assert (after[2][2]["conversation_id"], after[2][2]["old_session_id"]) == (KEY, old)


@pytest.mark.clause("E-11")
async def test_an_engine_begins_with_the_key_of_the_chat_and_keeps_it_at_a_compaction(recorded: Harness) -> None:
    recorded.model.say(*(f"Answer {number}. " + "x" * 500 for number in range(3)))
    async with recorded.serve():
        await said(recorded, "one", "two", "three")
        session = await recorded.session_of(KEY)
        ((what, args, facts),) = moments(recorded)
        assert (what, args, facts["conversation_id"], facts["platform"]) == ("start", [session], KEY, "telegram")
        (recorded.home / "hermes" / "calls.jsonl").unlink()
        await recorded.telegram.say("/compress")
        await recorded.until(lambda: any(what == "start" for what, _, _ in moments(recorded)))
        again = next(facts for what, _, facts in moments(recorded) if what == "start")
    assert (again["boundary_reason"], again["conversation_id"]) == ("compression", KEY)
