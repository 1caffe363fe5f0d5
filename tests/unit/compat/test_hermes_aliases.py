"""The modules that plugins for Hermes import: found by exact names, and only while somebody needs them."""

import asyncio
import importlib
import json
import logging
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from tests.plugin_sources import engine

from talaria.compat.hermes import finder
from talaria.compat.hermes.bound import Bound, bind, release
from talaria.context.engine import CanonicalUsage, ContextEngine, as_dict
from talaria.core.clock import SystemClock
from talaria.core.errors import BadInput, Denied
from talaria.core.ids import SessionId
from talaria.core.messages import ToolCall, Usage
from talaria.core.plugin_calls import BackgroundLoop
from talaria.memory.base import MemoryProvider
from talaria.plugins.bridge import Bridge
from talaria.plugins.contributions import gather, select_usable
from talaria.plugins.discovery import Places, discover
from talaria.plugins.plugin_host import PluginHost, WantedPlugins
from talaria.plugins.registered import ProviderProfile
from talaria.plugins.services import LlmAnswer, LlmQuestion
from talaria.runtime.builtin_commands import BUILTIN
from talaria.runtime.commands import Commands
from talaria.runtime.session_config import CurrentSession, current_session
from talaria.tools.base import Gate, Invocation, OpenGate, Scope
from talaria.tools.executor import Executor
from talaria.tools.registry import Toolbox

Import = Callable[[str], Any]
CONFIG = """\
# mine
model:
  default: openai:gpt-5
  api_key: ${OPENAI_API_KEY}
  base_url: ${NOT_SET}/v1
providers:
  own:
    base_url: http://localhost:1
    models:
      m-1.5:
        prices: {input: 2, output: 4}
"""
PLUGIN = """
from tools.registry import registry, tool_error, tool_result
from hermes_cli.plugins import get_plugin_manager

def greet(raw_args):
    return f"hello {raw_args}"

async def judge(**facts):
    if facts["tool_name"] == "rm":
        return {"action": "block", "message": "not that"}

def shout(args, **facts):
    return tool_result(said=args["text"].upper())

SCHEMA = {"parameters": {"type": "object", "properties": {"text": {"type": "string"}}}}

def register(ctx):
    registry.register(name="shout", toolset="loud_voices", schema=SCHEMA, handler=shout, description="Loud.", emoji="!")
    ctx.register_hook("pre_tool_call", judge)
    ctx.register_command("Greet_Me", greet, "Greets.", "[name]")
    ctx.register_command("new", greet)
    ctx.register_auxiliary_task("digest", display_name="Digest", description="Short.")
"""
ENGINE = (
    engine("lossless")
    + """
    ctx.register_command("show", lambda raw_args: "shown")
"""
)


@pytest.fixture(autouse=True)
def modules() -> Generator[dict[str, ModuleType]]:
    """What is imported before; whatever a test leaves behind is cleared away."""
    before = dict(sys.modules)
    yield before
    for name in set(sys.modules) - set(before):
        if not name.startswith("talaria"):
            del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture
def alias() -> Generator[Import]:
    finder.install()
    yield importlib.import_module
    finder.remove()


class FakeServices:
    profile_name = "default"

    def llm(self, plugin: str) -> Any: ...
    def dispatch(self, tool: str, arguments: dict[str, Any]) -> str:
        return ""

    def inject(self, content: str, role: str) -> bool:
        return False

    def setting(self, plugin: str, key: str, default: Any) -> Any:
        return default


@dataclass
class Application:
    home: Path
    host: PluginHost
    commands: Commands
    environment: dict[str, str] = field(default_factory=dict[str, str])
    asked: list[LlmQuestion] = field(default_factory=list[LlmQuestion])
    providers: dict[str, ProviderProfile] = field(default_factory=dict[str, ProviderProfile])
    reply: Callable[[LlmQuestion], Awaitable[LlmAnswer]] | None = None

    @property
    def plugin_home(self) -> Path:
        return self.home / "hermes"

    async def ask(self, question: LlmQuestion) -> LlmAnswer:
        self.asked.append(question)
        return await self.reply(question) if self.reply else LlmAnswer("fine", "acme", "m-1", Usage(10, 4, 3, 2))

    async def load(self, plugins: dict[str, str], bundled: dict[str, str] | None = None) -> None:
        for root, sources in (("plugins", plugins), ("bundled", bundled or {})):
            for name, source in sources.items():
                folder = self.home / root / name
                folder.mkdir(parents=True)
                (folder / "plugin.yaml").write_text(f"name: {folder.name}\ndescription: About {folder.name}.\n")
                (folder / "__init__.py").write_text(source)
        places = Places(self.home / "plugins", self.home / "bundled", with_packages=False)
        await self.host.load(discover(places), before_hermes=lambda _: None)
        self.brought = gather(self.host, set(), self.commands, SystemClock(), lambda _: False)

    async def serve(self, gate: Gate) -> None:
        tools = Toolbox(await select_usable(self.brought.tools, SystemClock()))
        executor = Executor(tools, gate, Scope(SessionId("s1"), self.home, self.home))
        current_session.set(CurrentSession(SessionId("s1"), "telegram:7", "telegram", "anna", lambda: executor))


@pytest_asyncio.fixture
async def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Application]:
    monkeypatch.delenv("HERMES_HOME", raising=False)
    wanted = WantedPlugins(enabled=frozenset({"demo", "rival", "lossless", "broken"}), engine="lossless")
    host = PluginHost(tmp_path / "consents.json", wanted, FakeServices(), SystemClock())
    one = Application(tmp_path, host, Commands(BUILTIN))
    bridge = Bridge()
    bridge.open()
    bound = Bound(tmp_path, one.environment, host, bridge, one.ask, one.commands, one.providers)
    bind(bound)
    yield one
    release(bound)
    bridge.close()


# The finder.

CALLABLE = {
    "agent.auxiliary_client": ("call_llm", "async_call_llm", "extract_content_or_reasoning"),
    "agent.context_engine": ("sanitize_memory_context",),
    "agent.redact": ("redact_sensitive_text",),
    "agent.usage_pricing": ("CanonicalUsage", "normalize_usage", "estimate_usage_cost"),
    "gateway.config": ("HomeChannel", "Platform", "PlatformConfig"),
    "gateway.platform_registry": ("PlatformEntry", "PlatformRegistry"),
    "gateway.platforms.base": (
        *("BasePlatformAdapter", "MessageEvent", "MessageType", "SendResult", "ProcessingOutcome", "SessionSource"),
        *("cache_image_from_bytes", "cache_audio_from_bytes", "cache_video_from_bytes", "cache_document_from_bytes"),
        *("cache_image_from_url", "cache_audio_from_url", "get_image_cache_dir", "get_document_cache_dir"),
        *("classify_send_error", "resolve_channel_prompt", "build_session_key", "utf16_len"),
    ),
    "gateway.platforms.helpers": ("MessageDeduplicator", "redact_phone", "strip_markdown"),
    "gateway.run": ("_gateway_runner_ref",),
    "gateway.session": ("SessionSource", "build_session_key", "canonical_whatsapp_identifier"),
    "gateway.session_context": ("get_session_env",),
    "gateway.status": ("acquire_scoped_lock", "release_scoped_lock", "write_runtime_status"),
    "gateway.whatsapp_identity": (
        *("canonical_whatsapp_identifier", "expand_whatsapp_aliases", "normalize_whatsapp_identifier"),
        "to_whatsapp_jid",
    ),
    "hermes_cli.commands": ("is_gateway_known_command", "resolve_command"),
    "hermes_cli.config": (
        *("get_hermes_home", "get_config_path", "get_env_path", "load_config", "save_config", "cfg_get"),
        *("get_env_value", "save_env_value", "set_config_value"),
    ),
    "hermes_cli.middleware": (
        *("apply_llm_request_middleware", "apply_tool_request_middleware", "run_llm_execution_middleware"),
        *("run_tool_execution_middleware", "RequestMiddlewareResult"),
    ),
    "hermes_cli.plugins": (
        *("discover_plugins", "get_plugin_manager", "invoke_hook", "has_hook", "invoke_middleware", "has_middleware"),
        *("get_plugin_context_engine", "get_plugin_commands", "get_plugin_command_handler"),
        *("resolve_plugin_command_result", "get_plugin_auxiliary_tasks", "get_plugin_toolsets"),
        *("get_pre_tool_call_directive", "PluginContext", "PluginManager", "PluginManifest", "LoadedPlugin"),
    ),
    "hermes_cli.setup": (
        *("prompt", "prompt_yes_no", "prompt_choice", "print_header", "print_info", "print_success", "print_warning"),
        *("print_error", "save_env_value", "get_env_value"),
    ),
    "hermes_constants": (
        *("get_hermes_home", "get_config_path", "get_env_path", "get_hermes_dir", "display_hermes_home"),
        "get_skills_dir",
    ),
    "hermes_state": ("SessionDB",),
    "plugins.context_engine": ("discover_context_engines", "load_context_engine"),
    "providers": ("register_provider", "get_provider_profile", "list_providers", "ProviderProfile"),
    "providers.base": ("ProviderProfile",),
    "tools.registry": ("tool_error", "tool_result"),
}


def test_every_module_of_the_table_is_there(alias: Import) -> None:
    assert {name: alias(name).__name__ for name in finder.MODULES} == {name: name for name in finder.MODULES}
    assert set(CALLABLE) | {"agent.memory_provider"} == set(finder.MODULES)


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in CALLABLE.items() for name in names])
def test_a_name_that_plugins_import_can_be_called(alias: Import, module: str, name: str) -> None:
    assert callable(getattr(alias(module), name))


def test_what_plugins_derive_from_is_what_the_host_asks_for(alias: Import) -> None:
    assert alias("agent.context_engine").ContextEngine is ContextEngine
    assert alias("agent.memory_provider").MemoryProvider is MemoryProvider
    assert alias("providers").ProviderProfile is ProviderProfile
    assert "pre_llm_call" in alias("hermes_cli.plugins").VALID_HOOKS


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with names as generic as those of Hermes, on the path and as working directory."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "__init__.py").write_text("whose = 'mine'")
    (tmp_path / "tools" / "registry.py").write_text("whose = 'mine'")
    (tmp_path / "tools" / "something_else.py").write_text("whose = 'mine'")
    monkeypatch.syspath_prepend(tmp_path)  # pyright: ignore[reportUnknownMemberType]
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_a_folder_of_that_name_does_not_win_and_comes_back() -> None:
    finder.install()
    try:
        assert not hasattr(importlib.import_module("tools.registry"), "whose")
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("tools.something_else")
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("hermes_cli.something_else")
    finally:
        finder.remove()
    assert importlib.import_module("tools.something_else").whose == "mine"
    assert importlib.import_module("tools.registry").whose == "mine"


@pytest.mark.usefixtures("folder")
def test_a_module_that_was_imported_before_is_hidden_and_comes_back() -> None:
    mine, inner = importlib.import_module("tools"), importlib.import_module("tools.registry")
    finder.install()
    try:
        assert importlib.import_module("tools") is not mine
        assert importlib.import_module("tools.registry") is not inner
    finally:
        finder.remove()
    assert sys.modules["tools"] is mine
    assert sys.modules["tools.registry"] is inner


def test_nothing_is_left_behind(modules: dict[str, ModuleType]) -> None:
    path = list(sys.meta_path)
    finder.install()
    for name in finder.MODULES:
        importlib.import_module(name)
    finder.remove()
    assert sys.meta_path == path
    assert {name for name in sys.modules if not name.startswith("talaria")} <= set(modules) | set(
        sys.stdlib_module_names
    )
    assert not {"agent", "tools", "providers", "hermes_constants"} & set(sys.modules)


def test_the_last_user_takes_it_away() -> None:
    finder.install()
    finder.install()
    first = importlib.import_module("agent.context_engine")
    finder.remove()
    assert importlib.import_module("agent.context_engine") is first
    importlib.import_module("agent.memory_provider")
    finder.remove()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("agent.context_engine")


# Questions to a model.

HELLO = [{"role": "user", "content": "hello"}]


async def test_a_plugin_asks_a_model_from_its_thread(alias: Import, application: Application) -> None:
    call_llm = alias("agent.auxiliary_client").call_llm
    answer = await asyncio.to_thread(call_llm, "extraction", messages=HELLO, temperature=0.2, max_tokens=99, timeout=5)
    assert application.asked == [LlmQuestion(HELLO, "extraction", 99, 5.0)]
    choice = answer.choices[0]
    assert (choice.message.content, choice.message.role, choice.finish_reason) == ("fine", "assistant", "stop")
    assert (answer.model, answer.usage.prompt_tokens, answer.usage.completion_tokens) == ("m-1", 15, 4)
    assert answer.usage.total_tokens == 19


async def test_a_plugin_asks_a_model_from_its_loop(alias: Import, application: Application) -> None:
    answer = await alias("agent.auxiliary_client").async_call_llm(task="compression", messages=HELLO, max_tokens=7)
    assert answer.choices[0].message.content == "fine"
    assert application.asked == [LlmQuestion(HELLO, "summary", 7)]


async def test_the_settings_choose_the_model_and_that_is_said_once(
    alias: Import, application: Application, caplog: pytest.LogCaptureFixture
) -> None:
    importlib.reload(importlib.import_module("talaria.compat.hermes.aliases.hermes_agent"))
    client = alias("agent.auxiliary_client")
    with caplog.at_level(logging.WARNING):
        await asyncio.to_thread(client.call_llm, messages=HELLO, temperature=1.0)
        assert not caplog.records
        await asyncio.to_thread(client.call_llm, messages=HELLO, model="gpt-9", api_key="sk-1")
        await client.async_call_llm(messages=HELLO, provider="acme")
    assert len(caplog.records) == 1
    assert {question.model for question in application.asked} == {""}


async def test_a_model_that_takes_too_long_is_given_up(alias: Import, application: Application) -> None:
    async def never(_: LlmQuestion) -> LlmAnswer:
        await asyncio.Event().wait()
        raise AssertionError

    application.reply = never
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(alias("agent.auxiliary_client").call_llm, messages=HELLO, timeout=0.01)


@pytest.mark.usefixtures("application")
@pytest.mark.parametrize("wishes", [{"messages": HELLO, "stream": True}, {"messages": []}, {}])
async def test_what_cannot_be_answered_is_refused(alias: Import, wishes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        await asyncio.to_thread(alias("agent.auxiliary_client").call_llm, **wishes)


def test_without_an_application_a_question_says_so(alias: Import) -> None:
    with pytest.raises(RuntimeError, match="not running"):
        alias("agent.auxiliary_client").call_llm(messages=HELLO)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"content": " yes "}, "yes"),
        ({"content": "<think>hm\nhm</think> yes"}, "yes"),
        ({"content": None, "reasoning": "hm"}, "hm"),
        ({"content": "<Thinking>hm</Thinking>", "reasoning_content": "well"}, "well"),
        ({"content": None}, ""),
    ],
)
def test_of_an_answer_what_was_said_counts_before_what_was_thought(
    alias: Import, fields: dict[str, Any], said: str
) -> None:
    answer = SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(**fields))])
    assert alias("agent.auxiliary_client").extract_content_or_reasoning(answer) == said


# Secrets.

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("use sk-proj-abcdefghij0123456789 now", "use ••• now"),
        ("ghp_abcdefghij0123456789abcd.", "•••."),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer •••"),
        ("OPENAI_API_KEY=hunter2hunter2", "OPENAI_API_KEY=•••"),
        ('{"api_key": "hunter2hunter2", "n": 1}', '{"api_key": "•••", "n": 1}'),
        ("https://x.example/?key=AB12cd34&page=2", "https://x.example/?key=•••&page=2"),
        ("password: correct-horse", "password: •••"),
        (f"cookie {JWT};", "cookie •••;"),
        (f"a\n{PEM}\nb", "a\n•••\nb"),
        ("sorted(words, key=operator) and max_tokens: 4096", "sorted(words, key=operator) and max_tokens: 4096"),
        ("The task-force met; a skeleton key opens it.", "The task-force met; a skeleton key opens it."),
        (None, ""),
        (17, "17"),
    ],
)
def test_secrets_are_known_by_their_shape(alias: Import, text: object, shown: str) -> None:
    assert alias("agent.redact").redact_sensitive_text(text, force=True) == shown


async def test_secrets_of_the_environment_are_known_by_their_value(alias: Import, application: Application) -> None:
    application.environment.update(
        A_TOKEN="blue whale", B_KEY="blue whale song", C_PASSWORD="tiny!", D_SECRET="red fox", HOME_PLACE="green meadow"
    )
    shown = alias("agent.redact").redact_sensitive_text("blue whale song, red fox, tiny!, green meadow")
    assert shown == "•••, •••, tiny!, green meadow"


def test_what_a_memory_adds_is_cleaned_and_bounded(alias: Import) -> None:
    clean = alias("agent.context_engine").sanitize_memory_context
    assert clean(None) == ""
    assert clean("the token=abcdef12345 is \n") == "the token=••• is"
    assert clean("x" * 6000) == "x" * 6000
    long = clean("a" * 4000 + "b" * 3000 + "c" * 1500)
    assert long.startswith("a" * 4000 + "\n[")
    assert long.endswith("]\n" + "c" * 1500)
    assert "b" not in long


# Tokens and prices.


def as_object(fields: Any) -> Any:
    return SimpleNamespace(**{k: as_object(v) for k, v in fields.items()}) if isinstance(fields, dict) else fields  # pyright: ignore[reportUnknownVariableType]


CHAT = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
    "completion_tokens_details": {"reasoning_tokens": 5},
}
RESPONSES = {
    "input_tokens": 100,
    "output_tokens": 20,
    "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
    "output_tokens_details": {"reasoning_tokens": 5},
}
ANTHROPIC = {
    "input_tokens": 30,
    "output_tokens": 20,
    "cache_read_input_tokens": 60,
    "cache_creation_input_tokens": 10,
    "output_tokens_details": {"thinking_tokens": 5},
}
THROUGH_A_PROXY = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "cache_read_input_tokens": 60,
    "cache_creation_input_tokens": 10,
    "completion_tokens_details": {"reasoning_tokens": 5},
}
COUNTED = CanonicalUsage(30, 20, 60, 10, 5)


@pytest.mark.parametrize("shape", [CHAT, RESPONSES, ANTHROPIC, THROUGH_A_PROXY, as_dict(COUNTED)])
@pytest.mark.parametrize("form", [dict, as_object])
def test_tokens_of_every_shape_fall_into_buckets_that_do_not_overlap(
    alias: Import, shape: dict[str, Any], form: Callable[[Any], Any]
) -> None:
    usage = alias("agent.usage_pricing").normalize_usage(form(shape), provider="acme", api_mode="chat_completions")
    assert usage == COUNTED
    assert usage.prompt_tokens == 100


@pytest.mark.parametrize(
    ("raw", "counted"),
    [
        (None, CanonicalUsage()),
        ({}, CanonicalUsage()),
        ({"prompt_tokens": 7, "completion_tokens": None}, CanonicalUsage(7)),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 9}}, CanonicalUsage(0, 0, 9)),
        ({"input_tokens": 7, "output_tokens": 3}, CanonicalUsage(7, 3)),
        ({"input_tokens": "many", "output_tokens": -3}, CanonicalUsage()),
    ],
)
def test_tokens_that_nobody_counted_are_none(alias: Import, raw: object, counted: CanonicalUsage) -> None:
    assert alias("agent.usage_pricing").normalize_usage(raw) == counted


async def test_costs_are_told_only_where_the_price_is_known(alias: Import, application: Application) -> None:
    (application.home / "config.yaml").write_text(CONFIG)
    estimate = alias("agent.usage_pricing").estimate_usage_cost
    million = CanonicalUsage(1_000_000, 1_000_000)
    own = estimate("m-1.5", million, provider="own", base_url="http://localhost:1")
    assert (float(own.amount_usd), own.status, own.source) == (6.0, "estimated", "settings")
    listed = estimate("gpt-5", million, provider="openai", base_url="https://api.openai.com/v1/")
    assert (float(listed.amount_usd), listed.status, listed.source) == (11.25, "estimated", "catalog")
    elsewhere = estimate("gpt-5", million, provider="openai", base_url="https://cheap.example/v1")
    assert (elsewhere.amount_usd, elsewhere.status) == (None, "unknown")
    assert estimate("gpt-none", million, provider="openai").amount_usd is None
    assert estimate("gpt-5", million).amount_usd is None


# The conversation.


async def test_a_plugin_learns_for_which_conversation_it_runs(
    alias: Import, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = alias("gateway.session_context").get_session_env
    monkeypatch.setenv("HERMES_SESSION_ID", "of the process")
    assert env("HERMES_SESSION_ID") == "of the process"
    assert env("HERMES_SESSION_KEY", "none") == "none"
    await application.load({"demo": PLUGIN})
    await application.serve(OpenGate())
    assert await asyncio.to_thread(env, "HERMES_SESSION_ID") == "s1"
    assert env("HERMES_SESSION_KEY") == "telegram:7"
    assert env("HERMES_SESSION_PLATFORM") == "telegram"
    assert env("HERMES_SESSION_USER_ID") == "anna"
    assert env("HERMES_SESSION_CHAT_NAME", "?") == "?"


# Settings.


async def test_the_home_of_plugins_is_inside_ours_unless_the_person_says_otherwise(
    alias: Import, application: Application, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in ("hermes_cli.config", "hermes_constants"):
        assert alias(module).get_hermes_home() == application.plugin_home
        assert alias(module).get_config_path() == application.plugin_home / "config.yaml"
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "other"))
    for module in ("hermes_cli.config", "hermes_constants"):
        assert alias(module).get_hermes_home() == tmp_path / "other"
        assert alias(module).get_env_path() == tmp_path / "other" / ".env"


def test_the_home_is_known_without_an_application(
    alias: Import, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HERMES_HOME", raising=False)
    monkeypatch.setenv("TALARIA_HOME", str(tmp_path))
    assert alias("hermes_constants").get_hermes_home() == tmp_path / "hermes"
    assert alias("hermes_cli.config").load_config() == {}
    assert alias("hermes_cli.config").get_env_value("NOT_SET") is None
    assert not (tmp_path / "hermes").exists()


def test_folders_are_shown_and_chosen_as_people_know_them(
    alias: Import, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    constants = alias("hermes_constants")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HERMES_HOME", "~/.hermes")
    assert constants.display_hermes_home() == "~/.hermes"
    assert constants.get_skills_dir() == tmp_path / ".hermes" / "skills"
    old = tmp_path / ".hermes" / "image_cache"
    old.mkdir(parents=True)
    assert constants.get_hermes_dir("cache/images", "image_cache") == tmp_path / ".hermes" / "cache" / "images"
    (old / "one.png").touch()
    assert constants.get_hermes_dir("cache/images", "image_cache") == old
    monkeypatch.setenv("HERMES_HOME", "/elsewhere")
    assert constants.display_hermes_home() == "/elsewhere"


async def test_settings_are_plain_data_with_names_filled_in(
    alias: Import, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = alias("hermes_cli.config")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    application.environment["OPENAI_API_KEY"] = "sk-1"
    (application.home / "config.yaml").write_text(CONFIG)
    loaded = config.load_config()
    assert loaded["model"] == {"default": "openai:gpt-5", "api_key": "sk-1", "base_url": "${NOT_SET}/v1"}
    assert config.cfg_get(loaded, "providers", "own", "base_url") == "http://localhost:1"
    assert config.cfg_get(loaded, "model", "default", "deeper", default=3) == 3
    assert config.cfg_get(loaded, "agent", "max_turns", default=60) == 60
    assert config.cfg_get(None, "agent", default="x") == "x"
    assert config.cfg_get({"a": {"b": None}}, "a", "b", default="x") is None


async def test_settings_stay_ours_where_plugins_have_another_home(
    alias: Import, application: Application, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.yaml").write_text("model: {default: theirs}\n")
    monkeypatch.setenv("HERMES_HOME", str(other))
    config = alias("hermes_cli.config")
    config.set_config_value("agent.max_turns", 7)
    config.save_env_value("ACME_KEY", "k1")
    assert config.load_config() == {"agent": {"max_turns": 7}}
    assert (other / "config.yaml").read_text() == "model: {default: theirs}\n"
    assert not (other / ".env").exists()
    assert (application.plugin_home / ".env").read_text() == "ACME_KEY=k1\n"


async def test_a_setting_that_a_plugin_changes_is_changed_for_plugins_only(
    alias: Import, application: Application
) -> None:
    config, file = alias("hermes_cli.config"), application.home / "config.yaml"
    file.write_text("# mine\nagent:\n  max_turns: 3\nmodel: {max_tokens: 5}\n")
    config.set_config_value("agent.max_turns", "9")
    config.set_config_value("model.streaming", False)
    config.set_config_value("model.max_tokens", None)
    config.set_config_value("streaming", "off")
    config.set_config_value("lossless.inner.deep", [1])
    assert config.load_config() == {
        "agent": {"max_turns": 9},
        "model": {"streaming": False},
        "streaming": False,
        "lossless": {"inner": {"deep": [1]}},
    }
    assert file.read_text() == "# mine\nagent:\n  max_turns: 3\nmodel: {max_tokens: 5}\n"


async def test_what_is_saved_can_be_read_again_and_our_file_stays_as_it_is(
    alias: Import, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("NOT_SET", "http://here")
    config, file = alias("hermes_cli.config"), application.home / "config.yaml"
    file.write_text(CONFIG)
    wanted = config.load_config()
    wanted["model"]["default"] = "own:m-1.5"
    wanted["agent"] = {"max_turns": 5}
    wanted["limits"] = None
    wanted["lossless"] = {"m-1.5": {"depth": 3}}
    del wanted["providers"]
    config.save_config(wanted)
    saved = config.load_config()
    assert saved["model"] == {"default": "own:m-1.5", "api_key": "sk-1", "base_url": "http://here/v1"}
    assert (saved["agent"], saved["lossless"]) == ({"max_turns": 5}, {"m-1.5": {"depth": 3}})
    assert "m-1.5" in saved["providers"]["own"]["models"]
    assert "limits" not in saved
    assert file.read_text() == CONFIG
    assert "sk-1" not in (application.plugin_home / "config.yaml").read_text()


async def test_a_branch_that_is_new_is_saved_whole(alias: Import, application: Application) -> None:
    config = alias("hermes_cli.config")
    branch = {"acme": {"base_url": "http://a", "models": {"m": {"prices": {"input": 1, "output": 2}}}}}
    config.save_config({"providers": branch})
    assert config.load_config() == {"providers": branch}


async def test_a_part_of_a_branch_is_saved_beside_what_is_there(alias: Import, application: Application) -> None:
    config, file = alias("hermes_cli.config"), application.home / "config.yaml"
    file.write_text("providers: {own: {models: {m: {prices: {input: 1, output: 2}}}}}\n")
    config.save_config({"providers": {"own": {"models": {"m": {"prices": {"input": 3}}}}}})
    assert config.load_config() == {"providers": {"own": {"models": {"m": {"prices": {"input": 3, "output": 2}}}}}}


async def test_what_yaml_cannot_hold_is_refused_whole(alias: Import, application: Application) -> None:
    config = alias("hermes_cli.config")
    with pytest.raises(BadInput, match="cannot be saved"):
        config.save_config({"agent": {"max_turns": 5}, "colour": object()})
    assert config.load_config() == {}


async def test_a_secret_that_is_saved_is_known_at_once(
    alias: Import, application: Application, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ACME_KEY", raising=False)
    monkeypatch.setenv("OTHER_KEY", "old")
    (application.home / ".env").write_text("OURS_KEY=ours\n")
    (application.home / ".env").chmod(0o600)
    config, file = alias("hermes_cli.config"), application.plugin_home / ".env"
    config.save_env_value("ACME_KEY", "k 1 # no comment")
    config.save_env_value("OTHER_KEY", "new")
    assert capsys.readouterr().err == ""
    config.save_env_value("OURS_KEY", "theirs")
    assert config.get_env_value("ACME_KEY") == "k 1 # no comment"
    assert config.get_env_value("OTHER_KEY") == "new"
    assert config.get_env_value("OURS_KEY") == "theirs"
    assert "which has priority: change it there" in capsys.readouterr().err
    assert "ACME_KEY" not in os.environ
    assert file.stat().st_mode & 0o777 == 0o600
    assert (application.home / ".env").read_text() == "OURS_KEY=ours\n"
    with pytest.raises(BadInput, match="capitals"):
        config.save_env_value("acme_key", "k")
    monkeypatch.delenv("OURS_KEY")  # as in the next process
    assert config.get_env_value("OURS_KEY") == "ours"


# Plugins.


async def test_the_table_of_hooks_is_the_live_one(alias: Import, application: Application) -> None:
    manager = alias("hermes_cli.plugins").get_plugin_manager()
    heard: list[str] = []

    def hear(session_id: str) -> None:
        heard.append(session_id)

    manager._hooks.setdefault("post_llm_call", []).append(hear)  # noqa: SLF001  (what plugins do)
    await application.host.hooks.invoke("post_llm_call", session_id="s1")
    assert heard == ["s1"]
    assert alias("hermes_cli.plugins").has_hook("post_llm_call")


async def test_a_hook_is_fired_from_a_thread_and_not_where_that_would_stop_the_loop(
    alias: Import, application: Application, caplog: pytest.LogCaptureFixture
) -> None:
    plugins = alias("hermes_cli.plugins")
    await application.load({"demo": PLUGIN})
    told: dict[str, Any] = {"tool_name": "rm", "args": {}}
    answers = await asyncio.to_thread(plugins.invoke_hook, "pre_tool_call", **told)
    assert answers == [{"action": "block", "message": "not that"}]
    assert not caplog.records
    assert plugins.invoke_hook("pre_tool_call", **told) == []
    assert "hook pre_tool_call is not fired" in caplog.text
    assert plugins.has_hook("pre_tool_call")
    assert not plugins.has_hook("post_tool_call")
    assert plugins.invoke_hook("post_tool_call") == []
    assert plugins.invoke_middleware("tool_request") == []
    assert plugins.has_middleware("tool_request") is False


async def test_what_plugins_say_to_a_call_can_be_asked(alias: Import, application: Application) -> None:
    ask = alias("hermes_cli.plugins").get_pre_tool_call_directive
    application.host.hooks.add("x", "pre_tool_call", lambda: {"action": "dance"}, BackgroundLoop())
    await application.load({"demo": PLUGIN})
    assert await asyncio.to_thread(ask, "rm", {"path": "/"}, session_id="s1") == ("block", "not that")
    assert await asyncio.to_thread(ask, "ls", None) == (None, None)


async def test_a_command_that_lost_its_name_is_not_in_the_table(alias: Import, application: Application) -> None:
    plugins = alias("hermes_cli.plugins")
    rival = PLUGIN.replace("Greets.", "Too late.").replace('"shout"', '"cry"')
    await application.load({"demo": PLUGIN, "rival": rival})
    table = plugins.get_plugin_commands()
    assert table == plugins.get_plugin_manager()._plugin_commands  # noqa: SLF001
    assert set(table) == {"greet-me"}
    handler = application.host.plugins["demo"].registered.commands[0].handler
    assert table["greet-me"] == {
        "handler": handler,
        "description": "Greets.",
        "plugin": "demo",
        "args_hint": "[name]",
    }
    assert plugins.get_plugin_command_handler("/greet_me") is handler
    assert plugins.get_plugin_command_handler("greet") is None
    assert plugins.get_plugin_command_handler("new") is None


async def test_a_command_of_an_engine_that_is_shipped_has_the_engine_as_owner(
    alias: Import, application: Application
) -> None:
    plugins = alias("hermes_cli.plugins")
    await application.load({}, bundled={"context_engine/lossless": ENGINE})
    assert plugins.get_plugin_commands()["show"]["plugin"] == "context-engine:lossless"
    engine = plugins.get_plugin_context_engine()
    assert engine is plugins.get_plugin_manager()._context_engine  # noqa: SLF001
    assert engine.name == "lossless"


async def test_engines_are_listed_and_the_loaded_one_is_given(alias: Import, application: Application) -> None:
    engines = alias("plugins.context_engine")
    assert alias("hermes_cli.plugins").get_plugin_context_engine() is None
    bundled = {"context_engine/folder-of-it": ENGINE, "context_engine/other": ENGINE, "context_engine/broken": "1 / 0"}
    await application.load({"lossless": ENGINE}, bundled=bundled)
    assert engines.discover_context_engines() == [
        ("broken", "About broken.", False),
        ("folder-of-it", "About folder-of-it.", True),
        ("lossless", "About lossless.", True),
        ("other", "About other.", True),
    ]
    assert engines.load_context_engine("lossless") is application.host.plugins["lossless"].registered.engine
    assert engines.load_context_engine("other") is None


async def test_what_is_loaded_and_what_failed_is_told(alias: Import, application: Application) -> None:
    plugins = alias("hermes_cli.plugins")
    await application.load({"demo": PLUGIN, "broken": "raise ValueError('no')", "idle": PLUGIN})
    plugins.discover_plugins(force=True)
    told = {one["key"]: one for one in plugins.get_plugin_manager().list_plugins()}
    assert [(key, one["enabled"]) for key, one in told.items()] == [("broken", False), ("demo", True), ("idle", False)]
    assert (told["demo"]["tools"], told["demo"]["hooks"], told["demo"]["commands"]) == (1, 1, 2)
    assert (told["demo"]["error"], told["idle"]["error"]) == (None, None)
    assert "ValueError: no" in told["broken"]["error"]
    task: dict[str, Any] = {
        "key": "digest",
        "display_name": "Digest",
        "description": "Short.",
        "defaults": {},
        "plugin": "demo",
    }
    assert plugins.get_plugin_auxiliary_tasks() == [task]
    assert plugins.get_plugin_toolsets() == [("loud_voices", "Loud Voices", "shout")]


async def test_what_a_command_returned_is_awaited_wherever_that_is(alias: Import) -> None:
    resolve = alias("hermes_cli.plugins").resolve_plugin_command_result

    async def later() -> str:
        await asyncio.sleep(0)
        return "done"

    assert resolve("now") == "now"
    assert resolve(later()) == "done"
    assert await asyncio.to_thread(lambda: resolve(later())) == "done"


# Commands.


async def test_commands_are_known_by_their_words(alias: Import, application: Application) -> None:
    commands = alias("hermes_cli.commands")
    await application.load({"demo": PLUGIN})
    assert commands.is_gateway_known_command("/greet_me")
    assert not commands.is_gateway_known_command("greet")
    assert not commands.is_gateway_known_command(None)
    assert commands.resolve_command("greet-me").description == "Greets."
    assert commands.resolve_command("nothing") is None
    names = [command.name for command in commands.COMMAND_REGISTRY]
    assert sorted(names) == sorted({*(one.name for one in BUILTIN), "greet-me"})
    assert len(commands.COMMAND_REGISTRY) == len(names)


async def test_a_command_for_one_surface_is_known_there(alias: Import, application: Application) -> None:
    commands = alias("hermes_cli.commands")
    local = next(one for one in BUILTIN if one.cli_only)
    assert commands.resolve_command(local.name).name == local.name
    assert not commands.is_gateway_known_command(local.name)


# Model providers.


async def test_a_provider_reaches_the_application_and_the_last_one_counts(
    alias: Import, application: Application
) -> None:
    providers = alias("providers")
    first, second = (
        providers.ProviderProfile(name="acme", base_url=url, aliases=("ac",)) for url in ("http://1", "http://2")
    )
    providers.register_provider(first)
    providers.register_provider(second)
    assert application.providers == {"acme": second}
    assert providers.list_providers() == [second]
    assert providers.get_provider_profile("ac") is providers.get_provider_profile("acme") is second
    assert providers.get_provider_profile("other") is None


# Tools.


def test_handlers_answer_with_json(alias: Import) -> None:
    tools = alias("tools.registry")
    assert json.loads(tools.tool_error(ValueError("no"), code=3)) == {"error": "no", "code": 3}
    assert tools.tool_result(name="Zoë") == '{"name": "Zoë"}'
    assert tools.tool_result([1, 2]) == "[1, 2]"
    assert tools.tool_result(where=Path("/tmp")) == '{"where": "/tmp"}'
    assert tools.tool_result() == "{}"


async def test_a_tool_of_the_registry_belongs_to_the_plugin_that_is_being_loaded(
    alias: Import, application: Application
) -> None:
    registry = alias("tools.registry").registry
    await application.load({"demo": PLUGIN})
    assert [tool.spec.name for tool in application.host.plugins["demo"].registered.tools] == ["shout"]
    assert registry.get_all_tool_names() == ["shout"]
    assert registry.get_schema("shout")["parameters"]["properties"] == {"text": {"type": "string"}}
    assert registry.get_schema("shout")["description"] == "Loud."
    assert registry.get_entry("shout").toolset == registry.get_toolset_for_tool("shout") == "loud_voices"
    assert registry.get_tool_to_toolset_map() == {"shout": "loud_voices"}
    assert registry.get_registered_toolset_names() == ["loud_voices"]
    assert registry.get_tool_names_for_toolset("loud_voices") == ["shout"]
    assert (registry.get_schema("x"), registry.get_entry("x"), registry.get_toolset_for_tool("x")) == (None, None, None)
    with pytest.raises(RuntimeError, match="too late"):
        registry.register(name="late", toolset="x", schema={}, handler=print)


class Closed(OpenGate):
    async def admit(self, call: ToolCall, invocation: Invocation, scope: Scope) -> None:
        raise Denied("The gate is closed.")


async def test_a_tool_is_run_in_the_conversation_and_past_its_gate(alias: Import, application: Application) -> None:
    dispatch = alias("tools.registry").registry.dispatch
    await application.load({"demo": PLUGIN})
    assert "no conversation" in json.loads(await asyncio.to_thread(dispatch, "shout", {"text": "a"}))["error"]
    await application.serve(OpenGate())
    assert json.loads(await asyncio.to_thread(dispatch, "shout", {"text": "hey"})) == {"said": "HEY"}
    assert "There is no tool called 'x'" in json.loads(await asyncio.to_thread(dispatch, "x", {}))["error"]
    await application.serve(Closed())
    assert json.loads(await asyncio.to_thread(dispatch, "shout", {"text": "a"})) == {"error": "The gate is closed."}
