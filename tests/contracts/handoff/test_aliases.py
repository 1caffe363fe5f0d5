"""Handoff, under the names that plugins for Hermes know."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import FrozenInstanceError
from importlib import import_module
from typing import Any

import pytest
from tests.contracts.plugins.conftest import Install, OpenHarness, harness, home, install, server

from talaria.app.build import open_store
from talaria.testing.harness import Harness
from talaria.testing.servers.model_server import ModelServer

__all__ = ["harness", "home", "install", "server"]


@pytest.fixture
async def one(harness: OpenHarness, install: Install) -> AsyncIterator[Harness]:
    install("plain", "def register(ctx): ...")
    async with harness("plain", store=open_store) as opened:
        yield opened


@pytest.fixture
def commands(one: Harness) -> Any:
    assert one.app.extensions is not None
    return import_module("hermes_cli.commands")


@pytest.mark.clause("H-12")
@pytest.mark.clause("H-13")
@pytest.mark.clause("H-X8")
def test_the_command_is_found_and_is_none_of_the_gateways(commands: Any) -> None:
    for word in ("handoff", "/handoff", "/HandOff"):
        found = commands.resolve_command(word)
        assert (found.name, found.category, found.cli_only) == ("handoff", "Session", True)
    assert "handoff" not in commands.GATEWAY_KNOWN_COMMANDS
    assert not commands.is_gateway_known_command("handoff")
    assert {"new", "reset", "status", "help"} <= set(commands.GATEWAY_KNOWN_COMMANDS)
    assert commands.resolve_command("hand") is None


@pytest.mark.clause("H-X8")
def test_what_a_command_is_told_as(commands: Any) -> None:
    made = commands.CommandDef("say", "Say it.", "Session")
    usual = (made.aliases, made.args_hint, made.subcommands, made.cli_only, made.gateway_only)
    assert (*usual, made.gateway_config_gate) == ((), "", (), False, False, None)
    with pytest.raises(FrozenInstanceError):
        made.name = "other"
    assert {one.category for one in commands.COMMAND_REGISTRY} <= {
        *("Session", "Configuration", "Tools & Skills", "Info", "Exit")
    }
    assert commands.resolve_command("reset").name == "new"


@pytest.mark.clause("H-X1")
@pytest.mark.clause("H-11")
async def test_the_whole_way_from_a_plugin(one: Harness, server: ModelServer) -> None:
    server.say("hello")
    await one.ask("hi", one.session("s1"))
    module = import_module("hermes_state")

    def walk() -> None:
        with module.SessionDB() as db:
            assert db.get_handoff_state("nobody") is None
            assert db.request_handoff("nobody", "telegram") is False
            assert db.get_handoff_state("s1") == {"state": None, "platform": None, "error": None}
            assert db.request_handoff("s1", "telegram") is True
            assert db.get_handoff_state("s1") == {"state": "pending", "platform": "telegram", "error": None}
            assert db.request_handoff("s1", "discord") is False
            assert [row["id"] for row in db.list_pending_handoffs()] == ["s1"]
            assert (db.claim_handoff("s1"), db.claim_handoff("s1")) == (True, False)
            said = db.get_messages_as_conversation("s1")
            assert [message["role"] for message in said] == ["user", "assistant"]
            assert said[1] == {"role": "assistant", "content": "hello"}
            assert db.complete_handoff("s1") is None
            assert db.list_pending_handoffs() == []
            db.request_handoff("s1", "discord")
            assert db.fail_handoff("s1", "x" * 600) is None
            assert db.get_handoff_state("s1") == {"state": "failed", "platform": "discord", "error": "x" * 500}

    await asyncio.to_thread(walk)


async def test_conversations_can_be_read(one: Harness, server: ModelServer) -> None:
    server.say("hello", "good day")
    await one.ask("hi", one.session("s1"))
    await one.ask("good morning", one.session("s2"))
    await one.app.store.sessions.rename((await one.app.store.sessions.find("s2")).id, "Greetings")
    module = import_module("hermes_state")

    def read() -> None:
        db = module.SessionDB()
        found = db.get_session("s1")
        assert (found["source"], found["user_id"], found["message_count"]) == ("terminal", "local", 2)
        assert found["started_at"] <= found["last_active"]
        assert db.get_session("nobody") is None
        assert db.get_session_by_title("Greetings")["id"] == "s2"
        assert {row["id"] for row in db.search_sessions(source="terminal")} == {"s1", "s2"}
        assert db.search_sessions(source="platform") == []
        assert len(db.list_sessions_rich(limit=1)) == 1
        assert [row["id"] for row in db.get_messages("s1")] == sorted(row["id"] for row in db.get_messages("s1"))
        assert [hit["session_id"] for hit in db.search_messages("morning")] == ["s2"]
        with pytest.raises(ValueError, match="only one database"):
            module.SessionDB("/elsewhere/state.db")

    await asyncio.to_thread(read)
