"""The host of context engines, as a surface uses it."""

import json
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.engines.conftest import HarnessChat, OpenHarness
from tests.plugin_sources import RECORDER, REGISTER, write_plugin

from talaria.app.build import Application
from talaria.plugins.plugin_host import engine_choices
from talaria.runtime.commands import GivenCommand
from talaria.runtime.session import LiveSession
from talaria.testing.harness import Harness
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Reply, ReplyUsage

Install = Callable[..., Path]
KEY = "agent:main:telegram:dm:42"
LIFE = ("start", "end", "reset", "carry")

SLIM = (
    RECORDER
    + """
class Slim(Recorder):
    on_session_end = None
    carry_over_new_session_context = None
"""
)


def recorder(engine: str = "Recorder", source: str = RECORDER) -> str:
    return source + REGISTER.format(engine=engine)


def calls(home: Path, *names: str) -> list[tuple[str, list[Any], dict[str, Any]]]:
    """What the engine was called with, in order."""
    lines = (home / "hermes" / "calls.jsonl").read_text().splitlines()
    told = [json.loads(line)[:3] for line in lines]
    return [(what, args, facts) for what, args, facts in told if not names or what in names]


def names(home: Path, *wanted: str) -> Sequence[str]:
    return [what for what, _, _ in calls(home, *wanted)]


async def talked(here: Harness, server: ModelServer, id: str = "one", **setup: Any) -> LiveSession:
    live = here.session(id, **setup)
    server.say("hello")
    await here.ask(live=live)
    return live


@pytest.mark.clause("E-01")
async def test_going_over_to_another_conversation_ends_resets_starts_and_carries_over(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("recorder", recorder())
    async with harness(enabled=("recorder",), engine="recorder") as one:
        live = await talked(one, server)
        (one.home / "hermes" / "calls.jsonl").unlink()
        await live.leave_for(one.session("two"), carry_over=True)
        assert names(one.home) == ["end", "reset", "start", "carry"]
        assert calls(one.home, "end")[0] == ("end", ["one"], {"messages": 2})
        assert calls(one.home, "carry")[0] == ("carry", ["one", "two"], {})


@pytest.mark.clause("E-02")
async def test_the_start_there_has_the_key_of_the_chat_the_old_id_and_the_platform(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("recorder", recorder())
    chat: dict[str, Any] = {"platform": "telegram", "conversation": KEY}
    async with harness(enabled=("recorder",), engine="recorder") as one:
        live = await talked(one, server, **chat)
        await live.leave_for(one.session("two", **chat), carry_over=True)
        _, args, facts = calls(one.home, "start")[-1]
        assert args == ["two"]
        assert (facts["conversation_id"], facts["old_session_id"], facts["platform"]) == (KEY, "one", "telegram")


@pytest.mark.clause("E-03")
async def test_hooks_that_an_engine_lacks_are_skipped(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("recorder", recorder("Slim", SLIM))
    async with harness(enabled=("recorder",), engine="recorder") as one:
        live = await talked(one, server)
        (one.home / "hermes" / "calls.jsonl").unlink()
        after = one.session("two")
        await live.leave_for(after, carry_over=True)
        assert names(one.home) == ["reset", "start"]
        assert calls(one.home, "start")[0][1:] == (["two"], calls(one.home, "start")[0][2])
        assert calls(one.home, "start")[0][2]["old_session_id"] == "one"
        server.say("still here")
        await one.ask(live=after)
        assert one.notices == []


@pytest.mark.clause("E-04")
async def test_without_carry_over_it_is_end_reset_start(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("recorder", recorder())
    async with harness(enabled=("recorder",), engine="recorder") as one:
        live = await talked(one, server)
        (one.home / "hermes" / "calls.jsonl").unlink()
        await live.leave_for(one.session("two"))
        assert names(one.home) == ["end", "reset", "start"]


@pytest.mark.clause("E-05")
async def test_a_turn_taken_back_only_resets(harness: OpenHarness, install: Install, server: ModelServer) -> None:
    install("recorder", recorder())
    async with harness(enabled=("recorder",), engine="recorder") as one:
        live = await talked(one, server)
        (one.home / "hermes" / "calls.jsonl").unlink()
        await live.undo()
        assert names(one.home) == ["reset"]


@pytest.mark.clause("E-06")
@pytest.mark.parametrize(
    ("wire", "path"),
    [("openai_chat", "/chat/completions"), ("openai_responses", "/responses"), ("anthropic_messages", "/messages")],
)
async def test_usage_has_the_old_names_and_the_buckets_on_every_wire(
    harness: OpenHarness, install: Install, server: ModelServer, wire: str, path: str
) -> None:
    """Each has a field for what was written to a cache: `cache_write_tokens` with the details of the prompt (OpenAI,
    OpenRouter), `cache_creation_input_tokens` (Anthropic)."""
    install("recorder", recorder())
    model = {"default": "test-model", "base_url": server.base_url, "context_length": 32_000, "wire": wire}
    async with harness(enabled=("recorder",), engine="recorder", model=model) as one:
        server.say(Reply("hello", usage=ReplyUsage(input=70, output=20, cache_read=30, cache_write=9, reasoning=5)))
        await one.ask(live=one.session())
        assert calls(one.home, "usage")[0][2] == {
            "prompt_tokens": 109,
            "completion_tokens": 20,
            "total_tokens": 129,
            "input_tokens": 70,
            "output_tokens": 20,
            "cache_read_tokens": 30,
            "cache_write_tokens": 9,
            "reasoning_tokens": 5,
        }
    assert server.requests[-1].path.endswith(path)


@pytest.mark.clause("E-06")
def test_the_canonical_usage_derives_the_rest() -> None:
    from talaria.context.engine import CanonicalUsage

    usage = CanonicalUsage(70, 20, 30, 5, 4)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (105, 20, 125)


def bundle(folder: Path, source: str, *, name: str, description: str) -> dict[str, str]:
    write_plugin(folder / "context_engine" / name, source, name=name, description=description)
    return {"TALARIA_BUNDLED_PLUGINS": str(folder)}


@pytest.mark.clause("E-07")
async def test_the_picker_lists_the_bundled_engines_and_the_registered_one(
    harness: OpenHarness, install: Install, tmp_path: Path
) -> None:
    install("recorder", recorder(), description="from a plugin")
    shipped = bundle(tmp_path / "bundled", recorder("Shipped", SHIPPED), name="shipped", description="in the box")
    async with harness(enabled=("recorder",), engine="recorder", environment=shipped) as one:
        choices = engine_choices(host(one.app))
        assert ("shipped", "in the box") in choices
        assert ("recorder", "from a plugin") in choices
        assert choices[0][0] == "compressor"


SHIPPED = (
    RECORDER
    + """
class Shipped(Recorder):
    name = "shipped"
"""
)


@pytest.mark.clause("E-08")
async def test_of_two_engines_with_one_name_the_bundled_one_is_listed(
    harness: OpenHarness, install: Install, server: ModelServer, tmp_path: Path
) -> None:
    install("elsewhere", recorder(), description="from a plugin")
    shipped = bundle(tmp_path / "bundled", recorder(), name="recorder", description="in the box")
    async with harness(enabled=("elsewhere",), engine="recorder", environment=shipped) as one:
        listed = [choice for choice in engine_choices(host(one.app)) if choice[0] == "recorder"]
        assert listed == [("recorder", "in the box")]
        assert host(one.app).plugins["elsewhere"].problems


WITH_COMMAND = (
    RECORDER
    + """
def answer(args):
    return f"the engine says {args}"

def register(ctx):
    ctx.register_command("ask-engine", answer, description="Ask it.", args_hint="WHAT")
    ctx.register_command("help", answer, description="Shadow.")
    ctx.register_context_engine(Recorder())
"""
)


@pytest.mark.clause("E-09")
async def test_a_bundled_engine_adds_a_working_command(harness: OpenHarness, tmp_path: Path) -> None:
    shipped = bundle(tmp_path / "bundled", WITH_COMMAND, name="recorder", description="in the box")
    async with harness(engine="recorder", environment=shipped) as one:
        given = one.app.commands.parse("/ask-engine about tea", "terminal")
        assert isinstance(given, GivenCommand)
        assert (given.command.owner, given.command.args_hint) == ("context-engine:recorder", "WHAT")
        assert await said(one, "/ask-engine about tea") == "the engine says about tea"
        handler = import_module("hermes_plugins.context_engine__recorder").answer
        plugins = import_module("hermes_cli.plugins")
        assert plugins.get_plugin_commands()["ask-engine"] == {
            "handler": handler,
            "description": "Ask it.",
            "plugin": "context-engine:recorder",
            "args_hint": "WHAT",
        }
        assert plugins.get_plugin_command_handler("/ask-engine") is handler


@pytest.mark.clause("E-10")
async def test_it_cannot_shadow_what_is_built_in(harness: OpenHarness, tmp_path: Path) -> None:
    shipped = bundle(tmp_path / "bundled", WITH_COMMAND, name="recorder", description="in the box")
    async with harness(engine="recorder", environment=shipped) as one:
        given = one.app.commands.parse("/help", "terminal")
        assert isinstance(given, GivenCommand)
        assert given.command.owner == ""


@pytest.mark.clause("E-11")
async def test_the_key_of_the_chat_reaches_the_engine_at_its_beginning_and_at_a_compaction(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("recorder", recorder())
    async with harness(enabled=("recorder",), engine="recorder") as one:
        live = await talked(one, server, platform="telegram", conversation=KEY)
        _, args, facts = calls(one.home, "start")[0]
        assert (args, facts["conversation_id"]) == (["one"], KEY)
        assert facts == {
            "conversation_id": KEY,
            "platform": "telegram",
            "hermes_home": str(one.home / "hermes"),
            "model": "test-model",
            "context_length": 32_000,
        }
        await grown(one, live, server)
        assert await live.compact()
        assert calls(one.home, "start")[-1][2]["conversation_id"] == KEY


RIVAL = """
def register(ctx):
    ctx.register_command("ask-engine", lambda args: f"{ctx.manifest.name} heard {args}")
"""


@pytest.mark.clause("E-12")
async def test_a_bundled_engine_does_not_take_a_command_from_the_person_s_plugin(
    harness: OpenHarness, install: Install, tmp_path: Path
) -> None:
    install("rival", RIVAL)
    source = WITH_COMMAND.replace("Recorder())", 'Recorder())\n    ctx.register_command("other", answer)')
    shipped = bundle(tmp_path / "bundled", source, name="recorder", description="in the box")
    async with harness(enabled=("rival",), engine="recorder", environment=shipped) as one:
        assert await said(one, "/ask-engine x") == "rival heard x"
        assert await said(one, "/other x") == "the engine says x"
        table = import_module("hermes_cli.plugins").get_plugin_commands()
        assert (table["ask-engine"]["plugin"], table["other"]["plugin"]) == ("rival", "context-engine:recorder")
        assert not host(one.app).plugins["rival"].problems
        refusal = (
            "/ask-engine of context-engine:recorder cannot answer to /ask-engine: /ask-engine of plugin:rival does."
        )
        assert refusal in host(one.app).plugins["context_engine/recorder"].problems


@pytest.mark.clause("E-12")
async def test_of_an_engine_and_a_plugin_that_the_person_installed_the_first_one_has_the_command(
    harness: OpenHarness, install: Install
) -> None:
    install("first", RIVAL)
    install("second", WITH_COMMAND)
    async with harness(enabled=("first", "second"), engine="recorder") as one:
        assert await said(one, "/ask-engine x") == "first heard x"
        assert any(
            "/ask-engine of plugin:first does" in problem for problem in host(one.app).plugins["second"].problems
        )


async def said(here: Harness, line: str) -> str:
    """What a command says."""
    return await HarnessChat(here, here.session()).say(line)


@pytest.mark.clause("E-13")
async def test_at_a_compaction_the_engine_is_started_anew_with_the_reason(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("recorder", recorder())
    async with harness(enabled=("recorder",), engine="recorder") as one:
        live = await talked(one, server)
        await grown(one, live, server)
        (one.home / "hermes" / "calls.jsonl").unlink()
        assert await live.compact()
        assert names(one.home, "compress", *LIFE) == ["compress", "end", "start"]
        _, args, facts = calls(one.home, "start")[0]
        assert args == ["one"]
        assert facts == {
            "boundary_reason": "compression",
            "old_session_id": "one",
            "platform": "cli",
            "conversation_id": "one",
        }


async def grown(here: Harness, live: Any, server: ModelServer, turns: int = 3) -> None:
    for turn in range(turns):
        server.say(f"answer {turn} " + "x" * 500)
        await here.ask(f"question {turn}", live)


def host(app: Application) -> Any:
    assert app.extensions is not None
    return app.extensions.host
