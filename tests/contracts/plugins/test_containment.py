"""Plugins that break, hang or want what is not theirs: named, and nobody else's problem."""

import asyncio
from pathlib import Path

import pytest
from tests.contracts.plugins.conftest import (
    Install,
    OpenHarness,
    extensions,
    module,
    offered,
    problems_of,
    result,
    statuses,
    write_plugin,
)
from tests.plugin_sources import engine, memory
from tests.waiting import until

from talaria.app.build import builtin_names, open_store
from talaria.core.messages import user
from talaria.runtime.commands import Command
from talaria.testing.harness import Harness
from talaria.testing.manual_clock import ManualClock
from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Reply, call

GOOD = """
def register(ctx):
    ctx.register_tool("good_tool", "good", {"parameters": {"type": "object"}}, lambda args: "well done")
"""
SCHEMA = '{"description": "", "parameters": {"type": "object", "properties": {}}}'


async def works(here: Harness, server: ModelServer) -> None:
    """The conversation goes on, and with it the plugin that is good."""
    server.say(Reply(calls=(call("good_tool"),)), "fine")
    report = await here.ask(live=here.session())
    assert report.text == "fine"
    assert "well done" in result(server)


BROKEN = {
    "no Python": ("def register(ctx:\n", "SyntaxError"),
    "no text": ("\N{LATIN SMALL LETTER E WITH ACUTE}", "NameError"),
    "import error": ("from os import teapot\n", "ImportError"),
    "raises at import": ("raise ValueError('at once')\n", "raised ValueError: at once"),
    "raises in register": ("def register(ctx): raise KeyError('later')\n", "raised KeyError: 'later'"),
    "leaves at import": ("import sys; sys.exit(3)\n", "raised SystemExit: 3"),
    "leaves in register": ("import sys\ndef register(ctx): sys.exit()\n", "raised SystemExit"),
    "interrupts": ("def register(ctx): raise KeyboardInterrupt\n", "raised KeyboardInterrupt"),
    "cannot say what": (
        "class E(Exception):\n    def __str__(self): raise E()\ndef register(ctx): raise E()\n",
        "raised E: (no message)",
    ),
    "no register": ("x = 1\n", "has no register(ctx)"),
    "register is no function": ("register = 7\n", "has no register(ctx)"),
    "register takes nothing": ("def register(): pass\n", "raised TypeError"),
    "recursion": ("def register(ctx): register(ctx)\n", "raised RecursionError"),
    "asks the model too early": ("def register(ctx): ctx.llm.complete('hi')\n", "raised RuntimeError"),
    "a bad auxiliary task": (
        "def register(ctx): ctx.register_auxiliary_task('summary', display_name='', description='')\n",
        "raised ValueError",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
async def test_a_plugin_that_breaks_while_it_is_loaded_is_named_and_the_others_go_on(
    harness: OpenHarness, install: Install, server: ModelServer, what: str
) -> None:
    source, said = BROKEN[what]
    install("abroken", source)
    install("good", GOOD)
    async with harness("abroken", "good") as one:
        assert statuses(one) == {"abroken": "failed", "good": "loaded"}
        assert said in problems_of(one, "abroken")[0]
        assert any(sentence.startswith("Plugin abroken is not loaded: ") for sentence in list(one.app.left_out))
        await works(one, server)


async def test_a_package_that_is_not_there_is_named_as_what_is_missing(harness: OpenHarness, install: Install) -> None:
    install("needy", "import teapot_of_nobody\n")
    async with harness("needy") as one:
        assert "needs the Python package teapot_of_nobody" in problems_of(one, "needy")[0]


@pytest.mark.parametrize(
    "line", ["from .missing import x", "from gateway.delivery import DeliveryRouter", "import agent.teapot"]
)
async def test_nobody_is_told_to_install_a_package_that_has_our_name_by_chance(
    harness: OpenHarness, install: Install, line: str
) -> None:
    """Anybody may have put one called `gateway` where pip looks."""
    install("needy", f"{line}\ndef register(ctx): pass\n")
    async with harness("needy") as one:
        (problem,) = problems_of(one, "needy")
        assert "pip install" not in problem


@pytest.mark.parametrize("where", ["import", "register"])
async def test_a_plugin_that_hangs_while_it_is_loaded_is_left_behind(
    harness: OpenHarness, install: Install, server: ModelServer, home: Path, where: str
) -> None:
    hang = f"import threading\nGATE = threading.Event()\ndef hang():\n    open({str(home / 'hangs')!r}, 'w').close()\n"
    hang += "    GATE.wait(60)\n"
    sources = {"import": f"{hang}hang()\ndef register(ctx): pass\n", "register": f"{hang}def register(ctx): hang()\n"}
    install("ahanging", sources[where])
    install("good", GOOD)
    clock = ManualClock()

    async def turn_the_clock() -> None:
        await until((home / "hangs").exists)
        clock.advance(31)

    turning = asyncio.create_task(turn_the_clock())
    async with harness("ahanging", "good", clock=clock) as one:
        assert statuses(one) == {"ahanging": "failed", "good": "loaded"}
        assert "did not return within 30 seconds" in problems_of(one, "ahanging")[0]
        await works(one, server)
        module("ahanging").GATE.set()
    await turning


async def test_what_a_plugin_registers_after_it_was_given_up_counts_for_nothing(
    harness: OpenHarness, install: Install, server: ModelServer, home: Path
) -> None:
    source = f"""
import threading
GATE, DONE = threading.Event(), threading.Event()
def register(ctx):
    open({str(home / "hangs")!r}, "w").close()
    GATE.wait(60)
    ctx.register_tool("late", "late", {SCHEMA}, lambda args: "late")
    ctx.register_hook("pre_llm_call", lambda **facts: "late")
    DONE.set()
"""
    install("late", source)
    clock = ManualClock()

    async def turn_the_clock() -> None:
        await until((home / "hangs").exists)
        clock.advance(31)

    turning = asyncio.create_task(turn_the_clock())
    async with harness("late", clock=clock) as one:
        module("late").GATE.set()
        await until(module("late").DONE.is_set)
        server.say("ok")
        await one.ask(live=one.session())
        assert offered(server) == set()
        assert "late" not in server.requests[-1].body.decode()
    await turning


def tool(name: str, answer: str, options: str = "") -> str:
    return f"def register(ctx): ctx.register_tool({name!r}, 'set', {SCHEMA}, lambda args: {answer!r}{options})\n"


async def test_a_tool_with_the_name_of_a_built_in_one_is_left_out_and_told(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    name = min(builtin_names())
    install("greedy", tool(name, "mine"))
    install("overriding", tool(name, "mine", ", override=True"))
    async with harness("greedy", "overriding", tools=None) as one:
        for plugin in ("greedy", "overriding"):
            assert problems_of(one, plugin) == [f"its tool {name} is left out: another has that name"]
        server.say(Reply(calls=(call(name),)), "ok")
        await one.ask(live=one.session())
        assert offered(server) == builtin_names()
        assert result(server) != "mine"


async def test_a_tool_may_stand_in_place_of_a_built_in_one_where_the_person_allows_it(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    name = min(builtin_names())
    install("overriding", tool(name, "mine", ", override=True"))
    allowed = {"entries": {"overriding": {"allow_tool_override": True}}}
    async with harness("overriding", tools=None, plugins=allowed) as one:
        assert problems_of(one, "overriding") == []
        server.say(Reply(calls=(call(name),)), "ok")
        await one.ask(live=one.session())
        assert (offered(server), result(server)) == (builtin_names(), "mine")


async def test_being_allowed_to_is_not_enough_where_it_does_not_say_override(
    harness: OpenHarness, install: Install
) -> None:
    name = min(builtin_names())
    install("greedy", tool(name, "mine"))
    allowed = {"entries": {"greedy": {"allow_tool_override": True}}}
    async with harness("greedy", tools=None, plugins=allowed) as one:
        assert problems_of(one, "greedy") == [f"its tool {name} is left out: another has that name"]


async def test_of_two_plugins_with_a_tool_of_one_name_the_first_keeps_it(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("first", tool("shared", "of the first"))
    install("second", tool("shared", "of the second"))
    async with harness("first", "second") as one:
        assert (problems_of(one, "first"), len(problems_of(one, "second"))) == ([], 1)
        server.say(Reply(calls=(call("shared"),)), "ok")
        await one.ask(live=one.session())
        assert result(server) == "of the first"


BAD_TOOLS = {
    "no handler": ("'x', 's', {}", "has no handler"),
    "a name of signs": ("'rm -rf', 's', {}, print", "'rm -rf'"),
    "no name": ("None, 's', {}, print", "None"),
    "a name that no endpoint takes": ("'größe', 's', {}, print", "größe"),
    "a name too long": ("'x' * 65, 's', {}, print", "xxx"),
    "a schema that is a list": ("'x', 's', [1], print", "'x'"),
    "a schema that is text": ("'x', 's', 'object', print", "'x'"),
    "parameters that are a list": ("'x', 's', {'parameters': [1]}, print", "x"),
    "parameters that are text": ("'x', 's', {'parameters': 'object'}, print", "x"),
    "parameters of another type": ("'x', 's', {'parameters': {'type': 'string'}}, print", "x"),
    "parameters that are no JSON": ("'x', 's', {'parameters': {'default': object()}}, print", "not JSON"),
}


@pytest.mark.parametrize("what", BAD_TOOLS)
async def test_a_tool_that_would_break_every_request_is_refused_and_the_rest_of_its_plugin_works(
    harness: OpenHarness, install: Install, server: ModelServer, what: str
) -> None:
    arguments, said = BAD_TOOLS[what]
    install("good", f"{GOOD}    ctx.register_tool({arguments})\n")
    async with harness("good") as one:
        assert statuses(one) == {"good": "loaded"}
        assert any("tool" in problem and said in problem for problem in problems_of(one, "good"))
        await works(one, server)
        assert offered(server) == {"good_tool"}


async def test_a_slash_command_takes_nobodys_word(harness: OpenHarness, install: Install) -> None:
    install("first", "def register(ctx):\n    ctx.register_command('greet', lambda args: 'first')\n")
    second = "    ctx.register_command('/Greet', lambda args: 'second')\n"
    install("second", f"def register(ctx):\n    ctx.register_command('new', print)\n{second}")
    async with harness("first", "second") as one:
        problems = problems_of(one, "second")
        assert len(problems) == 2
        assert "the built-in /new does" in problems[0]
        assert "/greet of plugin:first does" in problems[1]
        found = one.app.commands.find("greet", "terminal")
        assert isinstance(found, Command)
        assert found.owner == "plugin:first"


ODD = {
    "a hook that is none": "ctx.register_hook('pre_llm_call', 7)",
    "a hook of no name": "ctx.register_hook(['pre_llm_call'], print)",
    "a command that is none": "ctx.register_command('x', 7)",
    "a command without a name": "ctx.register_command('', print)",
    "a command of odd signs": "ctx.register_command('grüße', print)",
    "an engine that is none": "ctx.register_context_engine(object())",
    "a memory that is none": "ctx.register_memory_provider(ctx)",
    "a skill that is not there": "ctx.register_skill('x', '/nonexistent')",
    "a skill of a bad name": "ctx.register_skill('../x', __file__)",
    "what is not there yet": "ctx.register_web_search_provider(object())",
    "middleware": "ctx.register_middleware('tool_request', print)",
    "a hook that nobody fires": "ctx.register_hook('on_teapot', print)",
}


@pytest.mark.parametrize("what", ODD)
async def test_what_it_asks_for_in_vain_is_told_and_the_rest_of_it_works(
    harness: OpenHarness, install: Install, server: ModelServer, what: str
) -> None:
    install("good", f"{GOOD}    {ODD[what]}\n", kind="standalone")
    async with harness("good") as one:
        assert statuses(one) == {"good": "loaded"}
        assert len(problems_of(one, "good")) == 1
        await works(one, server)


SLOPPY = {
    "a description that is a number": "ctx.register_command('x', lambda args: '', description=5)",
    "an args hint that is a list": "ctx.register_command('x', lambda args: '', args_hint=['a'])",
    "help that is a number": "ctx.register_cli_command('x', help=5, setup_fn=print)",
    "help that no file can hold": "ctx.register_cli_command('x', help='\\ud800', setup_fn=print)",
    "a tool's description that is a list": (
        "ctx.register_tool('x', 's', {'description': ['a']}, print, description=['b'])"
    ),
    "text that no file can hold": "ctx.register_tool('x', 's', {'description': '\\ud800'}, print)",
    "a skill without a description": "ctx.register_skill('x', __file__, description=None)",
}


@pytest.mark.parametrize("what", SLOPPY)
async def test_a_value_of_the_wrong_type_keeps_neither_this_start_nor_the_next_from_working(
    harness: OpenHarness, install: Install, server: ModelServer, what: str
) -> None:
    install("asloppy", f"def register(ctx): {SLOPPY[what]}\n")
    install("good", GOOD)
    for _ in range(2):
        async with harness("asloppy", "good") as one:
            assert statuses(one)["good"] == "loaded"
            await works(one, server)


async def test_of_two_engines_of_one_name_the_first_keeps_it(harness: OpenHarness, install: Install) -> None:
    install("first", engine("twin"))
    install("second", engine("twin"))
    async with harness("first", "second", context={"engine": "twin"}) as one:
        assert problems_of(one, "second") == ["its context engine is left out: first has one called twin"]
        assert extensions(one).brought.engines["twin"].key == "first"


async def test_of_two_engines_of_one_plugin_the_first_counts(harness: OpenHarness, install: Install) -> None:
    install("both", engine("twin") + "    ctx.register_context_engine(Engine())\n")
    async with harness("both") as one:
        assert problems_of(one, "both") == ["it has more than one context engine; the first is used"]


@pytest.mark.parametrize("name", ["name = property(lambda self: 1 / 0)", "name = ['a', 'list']"])
async def test_a_memory_that_cannot_say_its_name_keeps_nobody_from_working(
    harness: OpenHarness, install: Install, server: ModelServer, name: str
) -> None:
    install("anameless", memory("anameless", name), kind="standalone")
    install("good", GOOD)
    async with harness("anameless", "good") as one:
        await works(one, server)


async def test_a_tool_of_a_memory_or_an_engine_takes_the_place_of_no_other(
    harness: OpenHarness, install: Install, server: ModelServer, home: Path
) -> None:
    """Whoever came first keeps the name, of all the ways in which a tool can come."""
    claim = f"def get_tool_schemas(self): return [{{'name': 'good_tool', **{SCHEMA}}}]\n"
    claim += "def handle_tool_call(self, name, args, **facts): return 'taken over'\n"
    write_plugin(home / "plugins" / "memory" / "greedy", memory("greedy", claim))
    install("grabbing", engine("grabbing", claim))
    install("good", GOOD)
    enabled = ("good", "memory/greedy", "grabbing")
    async with harness(*enabled, memory={"provider": "greedy"}, context={"engine": "grabbing"}) as one:
        assert set(statuses(one).values()) == {"loaded"}
        await works(one, server)


PROFILES = {
    "names of keys that are none": "env_vars=None",
    "models that are none": "fallback_models=5",
    "headers that are no text": "default_headers={'x': 1}",
    "a wire that is a list": "api_mode=[]",
    "an address that is a number": "base_url=5",
    "no name": "name=None",
}


@pytest.mark.parametrize("what", PROFILES)
async def test_a_model_provider_that_is_described_wrongly_keeps_nobody_from_working(
    harness: OpenHarness, install: Install, server: ModelServer, what: str
) -> None:
    fields = f"**{{'name': 'odd', **dict({PROFILES[what]})}}"
    source = f"from providers import register_provider, ProviderProfile\nregister_provider(ProviderProfile({fields}))\n"
    install("aodd", source)
    install("good", GOOD)
    async with harness("aodd", "good") as one:
        assert statuses(one)["good"] == "loaded"
        await works(one, server)


HOOKS = "pre_tool_call", "post_tool_call", "transform_tool_result", "pre_llm_call", "post_llm_call", "on_session_end"
REPLIES = {
    "a number": "5",
    "a list": "[1]",
    "an object": "object()",
    "an empty dictionary": "{}",
    "a dictionary of its own": "{'action': ['block'], 'context': 5}",
    "a class": "dict",
    "something with another idea of equality": "Odd()",
    "a dictionary that breaks": "OddDict(action='block')",
    "a message that cannot be said": "{'action': 'block', 'message': Odd()}",
}
JUNK = """
class Odd:
    def __eq__(self, other): raise ValueError("do not compare me")
    def __bool__(self): raise ValueError("do not ask me")
    def __str__(self): raise ValueError("do not print me")
    __hash__ = None
class OddDict(dict):
    def get(self, *args): raise ValueError("do not look")
def register(ctx):
    for name in {hooks}:
        ctx.register_hook(name, lambda **facts: {reply})
"""


@pytest.mark.parametrize("what", REPLIES)
async def test_a_hook_that_returns_junk_breaks_nothing(
    harness: OpenHarness, install: Install, server: ModelServer, what: str
) -> None:
    install("ajunk", JUNK.format(hooks=HOOKS, reply=REPLIES[what]))
    install("good", GOOD)
    async with harness("ajunk", "good") as one:
        server.say(Reply(calls=(call("good_tool"),)), "fine")
        report = await one.ask(live=one.session())
        assert report.text == "fine"


TEXTS = {
    "pre_llm_call": "'\\ud800'",
    "transform_tool_result": "'\\ud800'",
    "transform_llm_output": "'\\ud800'",
    "pre_tool_call": "{'action': 'block', 'message': '\\ud800'}",
}


@pytest.mark.parametrize("hook", TEXTS)
async def test_text_that_no_file_can_hold_does_not_end_a_turn(
    harness: OpenHarness, install: Install, server: ModelServer, hook: str
) -> None:
    install("ahalf", f"def register(ctx): ctx.register_hook({hook!r}, lambda **facts: {TEXTS[hook]})\n")
    install("good", GOOD)
    async with harness("ahalf", "good", store=open_store) as one:
        server.say(Reply(calls=(call("good_tool"),)), "fine")
        report = await one.ask(live=one.session())
        assert report.outcome == "completed"
        assert len(await one.app.store.journal.entries(report.session)) > 3


@pytest.mark.parametrize("fault", ["ValueError('no')", "SystemExit(1)", "KeyboardInterrupt()"])
async def test_a_hook_that_raises_is_left_out_of_that_call_only_and_named(
    harness: OpenHarness, install: Install, server: ModelServer, fault: str
) -> None:
    source = f"""
COUNT = [0]
def odd(**facts):
    COUNT[0] += 1
    if COUNT[0] == 1:
        raise {fault}
    return "second time"
def register(ctx):
    ctx.register_hook("pre_llm_call", odd)
    ctx.register_hook("pre_llm_call", lambda **facts: "always")
"""
    install("moody", source)
    async with harness("moody") as one:
        live = one.session()
        server.say("a", "b")
        await one.ask(live=live)
        assert "always" in server.requests[0].body.decode()
        assert [problem for problem in problems_of(one, "moody") if "hook pre_llm_call raised" in problem]
        await one.ask(live=live)
        assert "second time" in server.requests[1].body.decode()


HANGING = """
import threading
GATE, INSIDE = threading.Event(), []
def hang(**facts):
    INSIDE.append(1)
    GATE.wait(60)
def register(ctx):
    ctx.register_hook("pre_llm_call", hang)
    ctx.register_hook("pre_llm_call", lambda **facts: "the other one")
"""


async def test_a_hook_that_hangs_is_not_called_again_and_named(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("stuck", HANGING)
    clock = ManualClock()
    async with harness("stuck", clock=clock) as one:
        live = one.session()
        server.say("a", "b")
        asking = asyncio.create_task(one.ask(live=live))
        await until(lambda: module("stuck").INSIDE)
        clock.advance(11)
        assert (await asking).text == "a"
        assert "the other one" in server.requests[0].body.decode()
        assert any("did not return within 10 seconds" in said for said in problems_of(one, "stuck"))
        assert (await one.ask(live=live)).text == "b"
        assert len(module("stuck").INSIDE) == 1
        module("stuck").GATE.set()


async def test_a_hook_that_hangs_in_two_conversations_at_once_ends_neither(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("stuck", HANGING)
    clock = ManualClock()
    async with harness("stuck", clock=clock) as one:
        server.say("a", "a")
        asking = [asyncio.create_task(one.ask(live=one.session(name))) for name in ("left", "right")]
        await until(lambda: len(module("stuck").INSIDE) == 2)
        clock.advance(11)
        reports = await asyncio.gather(*asking, return_exceptions=True)
        assert [getattr(report, "text", report) for report in reports] == ["a", "a"]
        module("stuck").GATE.set()


async def test_a_hook_that_raises_each_time_is_told_of_once(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    """A conversation may last for months."""
    install("sour", "def register(ctx): ctx.register_hook('pre_llm_call', lambda **facts: 1 / 0)\n")
    async with harness("sour") as one:
        live = one.session()
        server.say(*["ok"] * 5)
        for _ in range(5):
            await one.ask(live=live)
        assert len(problems_of(one, "sour")) == 1


async def test_what_goes_wrong_is_told_in_the_chat_once(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    """Whatever its message says this time."""
    source = f"""
COUNT = []
def odd(**facts):
    COUNT.append(1)
    raise ValueError(f"for the {{len(COUNT)}}. time")
def register(ctx):
    ctx.register_hook("post_llm_call", odd)
    ctx.register_tool("bad_tool", "set", {SCHEMA}, odd)
    ctx.register_tool("unsure", "set", {SCHEMA}, odd, check_fn=odd)
"""
    install("sour", source)
    async with harness("sour") as one:
        live = one.session()
        server.say(Reply(calls=(call("bad_tool"),)), "a", Reply(calls=(call("bad_tool", id="c2"),)), "b")
        await one.ask(live=live)
        assert [notice.partition(" raised")[0] for notice in one.notices] == [
            "Plugin sour: the check of its tool unsure",
            "Plugin sour: its tool bad_tool",
            "Plugin sour: hook post_llm_call",
        ]
        await one.ask(live=live)
        assert one.notices == []
        assert len(problems_of(one, "sour")) == 3


HANGING_AGAIN = HANGING.replace("pre_llm_call", "post_llm_call")


async def test_a_hook_that_has_hung_is_called_again_once_it_has_returned(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("stuck", HANGING_AGAIN)
    clock = ManualClock()
    async with harness("stuck", clock=clock) as one:
        live = one.session()
        server.say("a", "b")
        asking = asyncio.create_task(one.ask(live=live))
        await until(lambda: module("stuck").INSIDE)
        clock.advance(11)
        await asking
        await one.ask(live=live)
        assert len(module("stuck").INSIDE) == 1
        module("stuck").GATE.set()
        async with asyncio.timeout(PATIENCE_S):
            while len(module("stuck").INSIDE) == 1:  # its thread, which nobody waits for, comes back to our loop
                server.say("c")
                await one.ask(live=live)
        assert len(module("stuck").INSIDE) == 2


GUARDING = (
    engine("guarding", "def __init__(self): self.lock = threading.Lock()")
    + """
import threading
import time
from hermes_cli.plugins import get_plugin_manager
CALLS, TOGETHER, INSIDE = [], [], []
def guard(**facts):
    CALLS.append(facts["session_id"])
def register(ctx):
    INSIDE.append(1)
    get_plugin_manager()._hooks.setdefault("pre_llm_call", []).append(guard)
    time.sleep(0.01)
    TOGETHER.append(len(INSIDE))
    INSIDE.pop()
    ctx.register_context_engine(Engine())
"""
)


async def test_a_hook_that_puts_itself_into_the_table_is_there_once_also_when_many_conversations_begin(
    harness: OpenHarness, install: Install, server: ModelServer
) -> None:
    install("guarding", GUARDING)
    async with harness("guarding", context={"engine": "guarding"}) as one:
        table = extensions(one).host.hooks.callbacks["pre_llm_call"]
        sessions = [one.session(f"s{number}") for number in range(8)]
        server.say(*["ok"] * 16)
        await asyncio.gather(*(live.ask(user("go")) for live in sessions))
        assert len(table) == 1
        assert set(module("guarding").TOGETHER) == {1}
        assert extensions(one).host.hooks.callbacks["pre_llm_call"] is table
        module("guarding").CALLS.clear()
        await asyncio.gather(*(live.ask(user("go")) for live in sessions))
        assert sorted(module("guarding").CALLS) == sorted(live.id for live in sessions)


async def test_no_guard_is_missing_while_a_plugin_is_asked_again(harness: OpenHarness, install: Install) -> None:
    """Nor does one stay away that the plugin takes out of the table."""
    source = """
SEEN = []
def guard(**facts): return None
def register(ctx):
    from hermes_cli.plugins import get_plugin_manager
    hooks = get_plugin_manager()._hooks
    SEEN.append(len(hooks.get("pre_tool_call", ())))
    hooks["pre_tool_call"] = [guard]
    hooks["post_tool_call"] = [guard]
"""
    install("careless", source)
    async with harness("careless") as one:
        host = extensions(one).host
        host.hooks.callbacks["pre_tool_call"].append(print)
        del host.hooks.callbacks["post_tool_call"]
        host.register_again(host.plugins["careless"])
        assert module("careless").SEEN == [0, 2]
        assert print in host.hooks.callbacks["pre_tool_call"]
        assert set(host.hooks.callbacks) == {"pre_tool_call"}
