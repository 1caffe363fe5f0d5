"""What plugins bring to a conversation, and what they may ask of it: tools, skills, the model, messages, providers."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

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
)
from tests.live_sessions import running_turn
from tests.waiting import until

from talaria.app.build import open_store
from talaria.core.errors import UserFacing
from talaria.core.ids import CallId, SessionId
from talaria.core.messages import ToolCall, ToolSpec
from talaria.plugins.bridge import Bridge
from talaria.plugins.services import dispatch
from talaria.runtime.commands import Command, Say
from talaria.runtime.session_config import CurrentSession, current_session
from talaria.testing.harness import Harness
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Call, Failure, Reply, ReplyUsage, call
from talaria.tools.base import OpenGate, Run, Scope
from talaria.tools.executor import Executor
from talaria.tools.function import SchemaInvocation, SchemaTool, parse_schema
from talaria.tools.registry import Toolbox

SCHEMA = '{"description": "Looks.", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}'


def tool(handler: str, options: str = "") -> str:
    return f"{NOTES}{handler}\ndef register(ctx):\n    ctx.register_tool('look', 'set', {SCHEMA}, look{options})\n"


async def called(here: Harness, server: ModelServer, tool: str = "look", /, **arguments: Any) -> str:
    """The result of one call, in a conversation of its own."""
    server.say(Reply(calls=(call(tool, **arguments),)), "done")
    report = await here.ask(live=here.session(f"conversation-{len(server.requests)}"))
    assert report.text == "done"
    return result(server)


HANDLERS = {
    "text": ("def look(args, **facts): return 'seen ' + args['at']", "seen tea"),
    "a dictionary": ("def look(args): return {'seen': args['at']}", '{"seen":"tea"}'),
    "nothing": ("def look(args): return None", ""),
    "async without a word about it": ("async def look(args, **facts): return args['at']", "tea"),
    "an awaitable from a plain function": (
        "import asyncio\ndef look(args): return asyncio.sleep(0, {'a': 1})",
        '{"a":1}',
    ),
    "a number": ("def look(args): return 7", "7"),
    "what JSON does not know": ("import pathlib\ndef look(args): return {'p': pathlib.Path('/a')}", '{"p":"/a"}'),
    "an object with its own call": (
        "class Look:\n    def __call__(self, args, **facts): return 'object'\nlook = Look()",
        "object",
    ),
    "half a letter": ("def look(args): return 'a\\ud800'", "a?"),
}


@pytest.mark.parametrize("what", HANDLERS)
async def test_whatever_a_handler_returns_is_a_result_for_the_model(
    harness: OpenHarness, install: Install, server: ModelServer, what: str
) -> None:
    source, expected = HANDLERS[what]
    install("looker", tool(source))
    async with harness("looker", store=open_store) as one:
        assert await called(one, server, at="tea") == expected
        assert problems_of(one, "looker") == []


FAULTS = ["raise ValueError('no such page')", "raise SystemExit(1)", "raise KeyboardInterrupt", "return object.x"]


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_handler_that_raises_is_an_error_for_the_model_and_the_turn_goes_on(
    harness: OpenHarness, install: Install, server: ModelServer, fault: str
) -> None:
    install("looker", tool(f"def look(args): {fault}"))
    async with harness("looker") as one:
        answer = json.loads(await called(one, server))
        assert answer["error"].startswith("look raised ")


async def test_arguments_that_are_no_object_do_not_reach_the_handler(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("looker", tool("def look(args): note('look')"))
    async with harness("looker") as one:
        server.say(Reply(calls=(Call("c1", "look", "[1]"), Call("c2", "look", "{"))), "done")
        await one.ask(live=one.session())
        assert heard("looker") == []
        assert "invalid" in result(server)


async def test_a_handler_gets_the_facts_that_it_asks_for(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    source = """
def look(args, session_id, *, task_id, unknown="default"): note("few", args, session_id=session_id, task_id=task_id)
def stare(args, **facts): note("all", **facts)
"""
    install("looker", tool(source) + f"    ctx.register_tool('stare', 'set', {SCHEMA}, stare)\n")
    async with harness("looker") as one:
        server.say(Reply(calls=(call("look", id="c1"), call("stare", id="c2"))), "done")
        await one.ask(live=one.session("here"))
        assert heard("looker", "few") == [{"session_id": "here", "task_id": "here"}]
        (facts,) = heard("looker", "all")
        assert (facts["session_id"], facts["tool_call_id"]) == ("here", "c2")


async def test_the_schema_reaches_the_model_as_it_was_given(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install(
        "looker", tool("def look(args): pass", ", description='Unused', emoji='!', requires_env=['X'], is_async=True")
    )
    async with harness("looker") as one:
        server.say("hi")
        await one.ask(live=one.session())
        (shown,) = json.loads(server.requests[-1].body)["tools"]
        assert shown["function"]["name"] == "look"
        assert shown["function"]["description"] == "Looks."
        assert shown["function"]["parameters"]["properties"] == {"at": {"type": "string"}}


CHECKS = {
    "says yes": ("lambda: True", True),
    "says no": ("lambda: False", False),
    "raises": ("lambda: 1 / 0", False),
    "leaves": ("exit", False),
    "async": ("check", False),
    "async and says yes": ("agree", True),
    "cannot decide": ("lambda: Odd()", False),
}


@pytest.mark.parametrize("what", CHECKS)
async def test_a_tool_whose_check_says_no_is_not_offered(
    harness: OpenHarness, install: Install, server: ModelServer, what: str
) -> None:
    check, is_offered = CHECKS[what]
    source = "class Odd:\n    def __bool__(self): raise ValueError('undecided')\nasync def check(): return False\n"
    source += "async def agree(): return True\n"
    source += "def look(args): pass\ndef other(args): pass"
    install("looker", tool(source, f", check_fn={check}") + f"    ctx.register_tool('other', 's', {SCHEMA}, other)\n")
    async with harness("looker") as one:
        server.say("hi")
        assert (await one.ask(live=one.session())).text == "hi"
        assert offered(server) == ({"look", "other"} if is_offered else {"other"})


async def test_a_check_is_asked_again_in_the_next_conversation(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("looker", tool("READY = []\ndef look(args): pass", ", check_fn=lambda: READY"))
    async with harness("looker") as one:
        server.say("a", "b")
        await one.ask(live=one.session("first"))
        module("looker").READY.append(1)
        await one.ask(live=one.session("second"))
        assert (offered(server, 0), offered(server, 1)) == (set(), {"look"})


async def test_a_handler_that_hangs_can_be_interrupted(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    source = "import threading\nGATE = threading.Event()\ndef look(args):\n    note('in')\n    GATE.wait(60)"
    install("looker", tool(source))
    async with harness("looker") as one:
        live = one.session()
        server.say(Reply(calls=(call("look"),)))
        asking = asyncio.create_task(one.ask(live=live))
        await until(lambda: heard("looker"))
        assert running_turn(live).interrupt()
        assert (await asking).outcome == "interrupted"
        server.say("still here")
        assert (await one.ask(live=live)).text == "still here"
        module("looker").GATE.set()


async def test_a_tool_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    async def hang(arguments: dict[str, Any], run: Run) -> str:
        await asyncio.Event().wait()
        return ""

    look = SchemaTool(parse_schema({"name": "look"}), hang, timeout_s=0.01)
    executor = Executor(Toolbox([look]), OpenGate(), Scope(SessionId("s"), tmp_path, tmp_path))
    outcome = await executor.call(ToolCall(CallId("c"), "look", "{}"))
    assert outcome.is_error
    assert "was abandoned" in outcome.text


def test_every_tool_of_a_plugin_has_a_time_limit() -> None:
    async def nothing(arguments: dict[str, Any], run: Run) -> str:
        return ""

    limit = SchemaTool(ToolSpec("x", "", b"{}"), nothing).timeout_s  # pyright: ignore[reportArgumentType]
    assert limit is not None
    assert limit > 0


DISPATCHING = """
def register(ctx):
    ctx.register_tool("ask_other", "set", {"parameters": {"type": "object"}}, lambda args: ask(ctx, **args))
    ctx.register_tool("other", "set", {"parameters": {"type": "object"}}, lambda args: {"got": args})
def ask(ctx, name, **args):
    return ctx.dispatch_tool(name, args)
"""


async def test_a_plugin_calls_the_tools_of_the_conversation_from_its_first_turn_on(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("caller", DISPATCHING)
    async with harness("caller", tools=None) as one:
        assert json.loads(await called(one, server, "ask_other", name="other", a=1)) == {"got": {"a": 1}}
        assert "[exit code 0]" in await called(one, server, "ask_other", name="terminal", command="true")


async def test_what_a_plugin_calls_goes_through_the_same_gate_as_the_models_calls(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("caller", DISPATCHING)
    async with harness("caller", tools=None) as one:
        outside = one.home / "ran"
        server.say(Reply(calls=(call("ask_other", name="write_file", path=str(outside), content="x"),)), "done")
        await one.ask(live=one.session())
        assert "is refused" in json.loads(result(server))["error"]
        assert not outside.exists()


@pytest.mark.parametrize(("name", "said"), [("teapot", "no tool called"), ("terminal", "invalid")])
async def test_what_goes_wrong_with_a_call_of_a_plugin_is_in_its_answer(
    harness: OpenHarness, install: Install, server: ModelServer, name: str, said: str
) -> None:
    install("caller", DISPATCHING)
    async with harness("caller", tools=None) as one:
        assert said in json.loads(await called(one, server, "ask_other", name=name))["error"]


async def test_what_a_plugin_calls_is_prepared_off_the_event_loop(tmp_path: Path) -> None:
    """It may look at the file system."""
    seen: list[threading.Thread] = []

    async def nothing(arguments: dict[str, Any], run: Run) -> str:
        return "done"

    class Looking(SchemaTool, frozen=True):
        def prepare(self, arguments: str, scope: Scope) -> SchemaInvocation:
            seen.append(threading.current_thread())
            return super().prepare(arguments, scope)

    tools = Toolbox([Looking(parse_schema({"name": "look"}), nothing)])
    executor = Executor(tools, OpenGate(), Scope(SessionId("s"), tmp_path, tmp_path))
    bridge = Bridge()
    bridge.open()
    current_session.set(CurrentSession(SessionId("s"), "c", "cli", "me", lambda: executor))
    assert await asyncio.to_thread(dispatch, bridge, "look", {}) == "done"
    assert threading.main_thread() not in seen
    bridge.close()


async def test_outside_of_a_conversation_there_are_no_tools(harness: OpenHarness, install: Install) -> None:
    install("caller", "def register(ctx): KEPT.append(ctx.dispatch_tool('x'))\nKEPT = []\n")
    async with harness("caller") as one:
        assert statuses(one) == {"caller": "loaded"}
        assert "error" in json.loads(module("caller").KEPT[0])


async def test_a_skill_is_listed_and_read_by_its_full_name(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    source = """
import os
HERE = os.path.dirname(__file__)
def register(ctx):
    ctx.register_skill("soup", os.path.join(HERE, "soup"), "How to make soup.")
    ctx.register_skill("tea", os.path.join(HERE, "tea.md"))
"""
    folder = install("kitchen", source)
    (folder / "soup").mkdir()
    (folder / "soup" / "SKILL.md").write_text("Boil water.")
    (folder / "tea.md").write_text("Also boil water.")
    async with harness("kitchen") as one:
        assert await called(one, server, "skill_view", name="kitchen:soup") == "Boil water."
        (shown,) = json.loads(server.requests[-1].body)["tools"]
        assert "kitchen:soup: How to make soup." in shown["function"]["description"]
        assert await called(one, server, "skill_view", name="kitchen:tea") == "Also boil water."
        missing = await called(one, server, "skill_view", name="../../etc/passwd")
        assert "There is no skill" in missing
        (folder / "tea.md").unlink()
        assert "cannot be read" in await called(one, server, "skill_view", name="kitchen:tea")


LLM = """
def register(ctx):
    global CTX
    CTX = ctx
    ctx.register_tool("think", "set", {"parameters": {"type": "object"}}, think)
def think(args):
    answer = CTX.llm.complete([{"role": "system", "content": "Be short."}, {"role": "user", "content": "hm?"}], **args)
    return {name: getattr(answer, name) for name in ("text", "provider", "model", "usage")}
"""


async def test_a_plugin_asks_the_model_at_the_cost_of_the_conversation(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("thinker", LLM)
    async with harness("thinker") as one:
        server.say(Reply(calls=(call("think", max_tokens=20),)))
        server.say(Reply("a thought", usage=ReplyUsage(input=40, output=2)), "done")
        assert (await one.ask(live=one.session("here"))).text == "done"
        answer = json.loads(result(server))
        assert (answer["text"], answer["provider"], answer["model"]) == ("a thought", "custom", "test-model")
        assert answer["usage"]["prompt_tokens"] == 40
        question = json.loads(server.requests[1].body)
        assert [one["content"] for one in question["messages"]] == ["Be short.", "hm?"]
        assert question.get("max_tokens") == 20 or question.get("max_completion_tokens") == 20
        assert not question.get("tools")
        (spent,) = await one.app.store.spending.usage("session")
        assert (spent.key, spent.calls, spent.usage.input) == ("here", 3, 60)


@pytest.mark.parametrize("wish", [{"model": "custom:other"}, {"provider": "custom"}])
async def test_another_model_is_refused_unless_the_person_allows_it(
    harness: OpenHarness, install: Install, server: ModelServer, wish: dict[str, str]
) -> None:
    install("thinker", LLM)
    async with harness("thinker") as one:
        assert "may not choose the model" in json.loads(await called(one, server, "think", **wish))["error"]
        assert len(server.requests) == 2


async def test_another_model_is_asked_where_the_person_allows_it(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("thinker", LLM)
    allowed = {"entries": {"thinker": {"llm": {"allow_model_override": True}}}}
    async with harness("thinker", plugins=allowed) as one:
        server.say(Reply(calls=(call("think", provider="custom", model="other"),)), "a thought", "done")
        assert (await one.ask(live=one.session())).text == "done"
        assert json.loads(server.requests[1].body)["model"] == "other"
        assert json.loads(result(server))["model"] == "other"


async def test_a_structured_answer_is_parsed_also_out_of_a_fence(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    source = """
def register(ctx):
    global CTX
    CTX = ctx
    ctx.register_tool("think", "set", {"parameters": {"type": "object"}}, think)
    ctx.register_tool("athink", "set", {"parameters": {"type": "object"}}, athink)
ASKED = dict(instructions="Judge.", input={"tea": 1}, json_schema={"type": "object"}, json_mode=True)
def think(args): return {"parsed": CTX.llm.complete_structured(**ASKED).parsed}
async def athink(args):
    whole = await CTX.llm.acomplete("plain")
    return {"parsed": (await CTX.llm.acomplete_structured(**ASKED)).parsed, "text": whole.text}
"""
    install("thinker", source)
    async with harness("thinker") as one:
        server.say(
            Reply(calls=(call("think"),)), '```json\n{"good": true}\n```', Reply(calls=(call("athink", id="c2"),))
        )
        server.say("a thought", '{"n": 1}', Reply(calls=(call("think", id="c3"),)), "no JSON at all", "done")
        assert (await one.ask(live=one.session())).text == "done"
        assert json.loads(result(server, 2)) == {"parsed": {"good": True}}
        assert json.loads(result(server, 5)) == {"parsed": {"n": 1}, "text": "a thought"}
        assert json.loads(result(server)) == {"parsed": None}
        question = asked(server, 1)
        assert "Judge." in question[0]["content"]
        assert '{"type": "object"}' in question[0]["content"]
        assert json.loads(question[1]["content"]) == {"tea": 1}


async def test_a_question_that_the_model_does_not_answer_is_the_plugins_to_handle(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("thinker", LLM)
    async with harness("thinker") as one:
        server.say(Reply(calls=(call("think"),)), Failure(401), "done")
        assert (await one.ask(live=one.session())).text == "done"
        assert json.loads(result(server))["error"].startswith("think raised ")


async def test_two_plugins_do_not_share_an_auxiliary_task(harness: OpenHarness, install: Install) -> None:
    for name in ("first", "second"):
        install(name, "def register(ctx): ctx.register_auxiliary_task('digest', display_name='', description='')\n")
    async with harness("first", "second") as one:
        assert problems_of(one, "first") == []
        assert any("digest" in problem for problem in problems_of(one, "second"))


async def test_a_plugin_reads_its_own_settings_and_no_others(harness: OpenHarness, install: Install) -> None:
    source = """
def register(ctx):
    global SAID
    SAID = [ctx.get_config("depth.inner"), ctx.get_config("missing", "usual"), ctx.get_config("depth.none.deeper", 3)]
    SAID += [ctx.get_config("secret"), ctx.profile_name, ctx.manifest.name]
"""
    install("set", source)
    entries = {"set": {"depth": {"inner": 7}}, "other": {"secret": "x"}}
    async with harness("set", plugins={"entries": entries}):
        assert module("set").SAID == [7, "usual", 3, None, "default", "set"]


async def test_where_no_terminal_is_there_no_message_is_taken(harness: OpenHarness, install: Install) -> None:
    install("talker", "def register(ctx): SAID.append(ctx.inject_message('hello'))\nSAID = []\n")
    async with harness("talker"):
        assert module("talker").SAID == [False]


async def test_a_slash_command_answers_also_if_it_is_async(harness: OpenHarness, install: Install) -> None:
    source = """
async def later(raw_args): return f"later {raw_args}"
def register(ctx):
    ctx.register_command("/Say It", lambda raw_args: f"said {raw_args}", "Says it.", "[word]")
    ctx.register_command("later", later)
    ctx.register_command("silent", lambda raw_args: None)
"""
    install("speaker", source)
    async with harness("speaker") as one:
        assert await obeyed(one, "say-it", "tea") == Say("said tea")
        assert await obeyed(one, "later", "on") == Say("later on")
        assert await obeyed(one, "silent", "") is None


@pytest.mark.parametrize(
    "answer", ["1 / 0", "exit()", "Odd()"], ids=["raises", "leaves", "returns what cannot be printed"]
)
async def test_a_slash_command_that_breaks_is_one_sentence(harness: OpenHarness, install: Install, answer: str) -> None:
    source = "class Odd:\n    def __str__(self): raise ValueError('unsayable')\n"
    install("speaker", f"{source}def register(ctx): ctx.register_command('odd', lambda raw_args: {answer})\n")
    async with harness("speaker") as one:
        with pytest.raises(UserFacing, match="/odd raised"):
            await obeyed(one, "odd", "")


async def obeyed(here: Harness, name: str, argument: str) -> object:
    command = here.app.commands.find(name, "terminal")
    assert isinstance(command, Command)
    nobody: Any = None
    return await command.run(nobody, argument)


PROVIDER = """
from providers import register_provider, ProviderProfile
register_provider(ProviderProfile(
    name="housebrand", aliases=("house",), api_mode="{mode}", base_url="{url}", env_vars=("HOUSE_OLD_KEY", "HOUSE_KEY"),
    default_headers={{"X-House": "yes"}}, fallback_models=("house-1",),
))
"""


@pytest.mark.parametrize(
    ("mode", "path", "model"),
    [
        ("chat_completions", "/v1/chat/completions", "housebrand:house-2"),
        ("anthropic_messages", "/v1/messages", "housebrand:house-2"),
        ("codex_responses", "/v1/responses", "housebrand:house-2"),
        ("chat_completions", "/v1/chat/completions", "house:house-2"),
    ],
)
async def test_a_model_provider_of_a_plugin_is_one_like_any_other(
    harness: OpenHarness, install: Install, server: ModelServer, mode: str, path: str, model: str
) -> None:
    install("brand", PROVIDER.format(mode=mode, url=server.base_url))
    async with harness("brand", model=model, environment={"HOUSE_KEY": "k-1"}) as one:
        assert statuses(one) == {"brand": "loaded"}
        server.say("from the house")
        assert (await one.ask(live=one.session())).text == "from the house"
        request = server.requests[-1]
        headers = {name.lower(): value for name, value in request.headers.items()}
        assert request.path == path
        assert json.loads(request.body)["model"] == "house-2"
        assert headers["x-house"] == "yes"
        assert "k-1" in (headers.get("authorization", "") + headers.get("x-api-key", ""))


async def test_what_the_person_says_of_a_provider_counts_more_than_what_the_plugin_says(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("brand", PROVIDER.format(mode="chat_completions", url="http://127.0.0.1:9/v1"))
    own = {"housebrand": {"base_url": server.base_url, "api_key": "mine"}}
    async with harness("brand", model="housebrand:house-2", providers=own) as one:
        server.say("here")
        assert (await one.ask(live=one.session())).text == "here"


async def test_a_model_provider_that_is_not_enabled_is_not_there(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("brand", PROVIDER.format(mode="chat_completions", url=server.base_url))
    install("other", "def register(ctx): pass\n")
    async with harness("other", model="housebrand:house-2") as one:
        assert one.app.route.primary.provider == "custom"


async def test_what_a_provider_would_compute_is_said_not_to_be_asked(harness: OpenHarness, install: Install) -> None:
    source = """
from providers import register_provider, ProviderProfile
class Own(ProviderProfile):
    name = "own"
    base_url = "http://127.0.0.1:9/v1"
    def build_extra_body(self, **facts): return {}
register_provider(Own())
"""
    install("brand", source, kind="model-provider")
    async with harness("brand") as one:
        assert any("own" in said and "build_extra_body" in said for said in list(one.app.left_out))
