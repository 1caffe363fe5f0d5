"""Hooks of plugins in the gateway: a plugin looks at a message before it is let in, and hears of questions."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.plugin_sources import write_plugin

from talaria.testing import Reply, call
from talaria.testing.harness import Harness

POLICY = """
HEARD = []

def first(event, gateway, session_store, **facts):
    HEARD.append(event)
    if event.text == "break":
        raise ValueError("no")
    if event.text == "drop this":
        return {"action": "skip", "reason": "policy"}
    if event.text == "leave this":
        return {"action": "allow"}
    if event.text.startswith("shout "):
        return {"action": "rewrite", "text": event.text.upper()}

def second(event, **facts):
    return {"action": "rewrite", "text": f"{event.text}, please"}

def register(ctx):
    ctx.register_hook("pre_gateway_dispatch", first)
    ctx.register_hook("pre_gateway_dispatch", second)
"""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def asked(harness: Harness) -> list[str]:
    """What the model was asked in the conversation, without the note about the day."""
    messages = harness.model.requests[-1].json["messages"]
    return [one["content"].rsplit("\n", 1)[-1] for one in messages if one["role"] == "user"]


async def test_a_plugin_drops_rewrites_and_allows_messages_before_they_are_let_in(harness: Harness) -> None:
    write_plugin(harness.home / "plugins" / "policy", POLICY)
    harness.config["plugins"] = {"enabled": ["policy"]}
    harness.model.say("One.", "Two.", "Three.")
    async with harness.serve() as gateway_app:
        for number, text in enumerate(("shout hello", "leave this", "break"), 1):
            await harness.telegram.say("drop this")
            await harness.telegram.say(text)
            await harness.wait_for_messages(number)
        heard: list[Any] = import_module("hermes_plugins.policy").HEARD
        source = heard[0].source
        assert (source.platform.value, source.chat_id, source.chat_type, source.user_id) == (
            "telegram",
            "1001",
            "dm",
            "1001",
        )
        extensions = gateway_app.app.extensions
        assert extensions is not None
        assert ("policy", "hook pre_gateway_dispatch raised ValueError: no") in extensions.problems()
    assert asked(harness) == ["SHOUT HELLO", "leave this", "break, please"]


async def test_a_plugin_cannot_let_a_stranger_in(harness: Harness) -> None:
    write_plugin(harness.home / "plugins" / "policy", POLICY)
    harness.config["plugins"] = {"enabled": ["policy"]}
    async with harness.serve():
        await harness.telegram.say("leave this", user="666")
        (offered,) = await harness.wait_for_messages(1, user="666")
        assert "talaria pairing approve telegram" in offered.text
        await harness.telegram.say("drop this", user="666")
        await harness.until(lambda: len(import_module("hermes_plugins.policy").HEARD) == 2)
        await harness.until(lambda: harness.telegram.updates.waiting == 0)
    assert harness.model.requests == []
    assert len(harness.telegram.list_messages(user="666")) == 1


WITNESS = """
HEARD = []

def register(ctx):
    for name in ("pre_approval_request", "post_approval_response"):
        ctx.register_hook(name, lambda name=name, **facts: HEARD.append((name, facts)))
"""


async def test_a_plugin_hears_of_a_question_in_a_chat_and_of_its_answer(harness: Harness, tmp_path: Path) -> None:
    write_plugin(harness.home / "plugins" / "witness", WITNESS)
    harness.config["plugins"] = {"enabled": ["witness"]}
    harness.model.say(Reply(calls=(call("write_file", path=str(tmp_path / "far" / "x"), content="x"),)), "As you wish.")
    async with harness.serve():
        await harness.telegram.say("go")
        await harness.wait_for_messages(1)
        heard: list[tuple[str, dict[str, Any]]] = import_module("hermes_plugins.witness").HEARD
        assert [name for name, _ in heard] == ["pre_approval_request"]
        await harness.telegram.say("/deny")
        await harness.until(lambda: "As you wish." in [one.text for one in harness.telegram.list_messages()])
    (_, before), (_, after) = heard
    assert before["session_key"] == "agent:main:telegram:dm:1001"
    assert (before["surface"], before["pattern_key"], before["pattern_keys"]) == (
        "gateway",
        "write_file",
        ["write_file"],
    )
    assert "far/x" in before["command"]
    assert after == {**before, "choice": "deny"}
