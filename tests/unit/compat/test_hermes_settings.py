"""A Hermes config as settings of ours: only what we do not have, know, and still start with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from talaria.compat.hermes_home.report import ImportStep, Item, Permissions
from talaria.compat.hermes_home.setting_import import plan_settings, propose_settings
from talaria.config.edit import set_value
from talaria.config.load import load, read_yaml

FILE = Path("config.yaml")


def steps(
    theirs: dict[str, Any],
    ours: dict[str, Any] | None = None,
    *,
    keys: dict[str, str] | None = None,
    with_keys: bool = False,
    hermes_keys: Sequence[str] = (),
    home: Path = Path("nowhere"),
) -> list[ImportStep]:
    environment = keys or {}
    told = propose_settings(theirs, Permissions(with_keys, environment, hermes_keys))
    return list(plan_settings(told, ours or {}, environment, home, FILE))


def items(*given: Any, **options: Any) -> dict[str, Item]:
    return {step.item.name: step.item for step in steps(*given, **options)}


def written(
    home: Path, theirs: dict[str, Any], *, keys: dict[str, str] | None = None, **options: Any
) -> dict[str, Any]:
    """Our config.yaml, after an import into a home that has at most keys."""
    for name, key in (keys or {}).items():
        set_value(home, name, key)
    for step in steps(theirs, home=home, keys=keys, **options):
        if step.act is not None:
            step.act()
    load(home / "config.yaml", keys or {})
    return read_yaml(home / "config.yaml")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (
            {"default": "anthropic/claude-opus-4.6", "provider": "openrouter"},
            {"default": "anthropic/claude-opus-4.6", "provider": "openrouter"},
        ),
        (
            {"default": "x/y", "provider": "auto", "base_url": "https://openrouter.ai/api/v1/"},
            {"default": "x/y", "provider": "openrouter"},
        ),
        (
            {"default": "anthropic/claude-opus-4.6", "provider": "claude"},
            {"default": "claude-opus-4-6", "provider": "anthropic"},
        ),
        ({"model": "openai/gpt-5", "provider": "openai-api"}, {"default": "gpt-5", "provider": "openai"}),
        (
            {"name": "qwen3:8b", "provider": "custom", "api_base": "http://127.0.0.1:8000/v1"},
            {"default": "qwen3:8b", "provider": "custom", "base_url": "http://127.0.0.1:8000/v1"},
        ),
        (
            {"default": "m", "base_url": "http://127.0.0.1:11434/v1"},
            {"default": "m", "provider": "custom", "base_url": "http://127.0.0.1:11434/v1"},
        ),
        (
            {"default": "m", "base_url": "http://box/v1", "api_mode": "anthropic_messages", "context_length": 9000},
            {
                "default": "m",
                "provider": "custom",
                "base_url": "http://box/v1",
                "wire": "anthropic_messages",
                "context_length": 9000,
            },
        ),
        (
            {"default": "gemini-2.5-pro", "provider": "google", "max_tokens": 4096, "streaming": False},
            {"default": "gemini-2.5-pro", "provider": "gemini", "max_tokens": 4096, "streaming": False},
        ),
    ],
)
def test_model_is_said_in_our_words(tmp_path: Path, theirs: Any, ours: dict[str, Any]) -> None:
    assert written(tmp_path, {"model": theirs}) == {"model": ours}


@pytest.mark.parametrize(
    ("key", "model"),
    [
        ("OPENROUTER_API_KEY", {"default": "anthropic/claude-opus-4.6", "provider": "openrouter"}),
        ("ANTHROPIC_API_KEY", {"default": "claude-opus-4-6", "provider": "anthropic"}),
    ],
)
def test_model_whose_provider_hermes_finds_out_is_that_of_its_key(
    tmp_path: Path, key: str, model: dict[str, str]
) -> None:
    theirs = {"model": "anthropic/claude-opus-4.6", "provider": "auto"}
    assert written(tmp_path, theirs, hermes_keys=["TELEGRAM_BOT_TOKEN", key]) == {"model": model}


def test_model_that_nobody_could_be_asked_for_is_refused() -> None:
    assert items({"model": "anthropic/claude-opus-4.6"})["model"].verdict == "left"
    assert items({}, hermes_keys=["OPENROUTER_API_KEY"]) == {}


def test_old_places_of_the_model_are_known(tmp_path: Path) -> None:
    theirs = {"model": "m", "provider": "custom", "base_url": "http://box/v1", "context_length": 5000}
    assert written(tmp_path, theirs)["model"] == {
        "default": "m",
        "provider": "custom",
        "base_url": "http://box/v1",
        "context_length": 5000,
    }


def test_address_of_another_provider_is_not_taken() -> None:
    theirs = {"model": {"default": "claude-x", "provider": "anthropic", "base_url": "https://openrouter.ai/api/v1"}}
    found = items(theirs)
    assert found["model"].verdict == "taken"
    assert "a different provider" in found["model.base_url"].reason


def test_provider_that_we_do_not_know_is_refused_with_its_model() -> None:
    found = items({"model": {"default": "gpt-5", "provider": "openai-codex", "context_length": 9000}})
    assert found["model"].verdict == "left"
    assert "There is no provider 'openai-codex'" in found["model"].reason
    assert (found["model.context_length"].verdict, "to which it belongs" in found["model.context_length"].reason) == (
        "left",
        True,
    )


@pytest.mark.parametrize("ours", [{"default": "mine"}, {"provider": "groq"}, {"base_url": "http://mine/v1"}])
def test_our_model_stays_whole(ours: dict[str, str]) -> None:
    """An address of Hermes' must never get our key, nor ours its model."""
    theirs = {"default": "m", "provider": "custom", "base_url": "http://box/v1", "api_key": "k", "context_length": 9}
    found = items({"model": theirs}, {"model": ours}, with_keys=True)
    assert {item.verdict for item in found.values()} == {"left"}
    assert found["model"].reason == f"Talaria's model.{next(iter(ours))} is set, and stays"


def test_our_address_is_not_given_another_model() -> None:
    theirs = {"model": {"default": "anthropic/claude-opus-4.6", "provider": "openrouter"}}
    assert items(theirs, {"model": {"base_url": "http://mine/v1"}})["model"].verdict == "left"


def test_what_is_so_already_is_there() -> None:
    theirs = {"model": {"default": "m", "provider": "groq"}, "agent": {"max_turns": 9}}
    found = items(theirs, {"model": {"default": "m", "provider": "groq"}, "agent": {"max_turns": 9}})
    assert {name: item.verdict for name, item in found.items()} == {"model": "there", "agent.max_turns": "there"}


def test_settings_that_mean_the_same_are_taken_one_by_one(tmp_path: Path) -> None:
    theirs = {
        "agent": {"max_turns": 90, "api_max_retries": 5, "reasoning_effort": "high", "system_prompt": "Be brief."},
        "compression": {"enabled": False, "threshold": 0.6, "target_ratio": 0.2},
        "context": {"engine": "lcm"},
        "memory": {"provider": "mem0", "memory_char_limit": 2200},
        "plugins": {"enabled": ["lcm"], "disabled": ["spotify"], "entries": {"x": {"allow_tool_override": True}}},
    }
    assert written(tmp_path, theirs) == {
        "agent": {"max_turns": 90, "api_max_retries": 5},
        "model": {"reasoning_effort": "high"},
        "compression": {"enabled": False, "threshold": 0.6},
        "context": {"engine": "lcm"},
        "memory": {"provider": "mem0"},
        "plugins": {"disabled": ["spotify"]},
    }
    found = items(theirs)
    left = {name for name, item in found.items() if item.verdict == "left"}
    assert left == {"agent.system_prompt", "compression.target_ratio", "memory.memory_char_limit", "plugins.entries"}
    assert "installed and enabled the plugin mem0" in found["memory.provider"].reason
    assert "decide that again" in found["plugins.entries"].reason


def test_what_both_have_anyway_is_not_mentioned() -> None:
    assert items({"context": {"engine": "compressor"}, "memory": {"provider": ""}, "_config_version": 33}) == {}
    assert items({"agent": {"service_tier": "", "disabled_toolsets": []}, "toolsets": []}) == {}


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        ({"agent": {"max_turns": "many"}}, "agent.max_turns is wrong"),
        ({"agent": {"reasoning_effort": "xhigh"}}, "model.reasoning_effort is wrong"),
        ({"compression": {"threshold": 3}}, "compression.threshold is wrong"),
        ({"auxiliary": {"compression": {"provider": "openruter", "model": "m"}}}, "There is no provider 'openruter'"),
        ({"display": {"skin": "ares"}}, "Talaria has no such setting"),
        ({"mcp_servers": {"git": {"url": "https://x.example"}}}, "to add a server is to trust it: talaria mcp add"),
        ({"mcp_servers": {"git": {"command": "x", "env": {"A": "s3cret"}}}}, "its env may contain secrets"),
        ({"mcp_servers": {"git": {"command": "x", "env": {"A": "${A}"}}}}, "uses ${A}, which is not set"),
        ({"mcp_servers": {"a.b": {"command": "x"}}}, "to add a server is to trust it: talaria mcp add"),
    ],
)
def test_what_we_would_not_take_is_told_with_our_reason(theirs: dict[str, Any], reason: str) -> None:
    (item,) = items(theirs).values()
    assert item.verdict == "left"
    assert reason in item.reason
    assert "config.yaml" not in item.reason


def test_servers_that_are_started_here_come_along_for_the_sandbox(tmp_path: Path) -> None:
    entry = {"command": "npx", "args": ["-y", "x"], "env": {"A": "${A}"}, "timeout": 9, "sampling": {"enabled": True}}
    theirs = {"mcp_servers": {"git": entry}}
    assert written(tmp_path, theirs, keys={"A": "1"})["mcp_servers"] == {
        "git": {"command": "npx", "args": ["-y", "x"], "env": {"A": "${A}"}, "timeout": 9}
    }
    (item,) = items(theirs, keys={"A": "1"}).values()
    assert item.reason == "it runs in the sandbox and reaches no host; to change that: talaria mcp sandbox git"


def test_one_bad_setting_does_not_keep_the_next_from_being_taken() -> None:
    found = items({"agent": {"max_turns": -1, "api_max_retries": 4}})
    assert (found["agent.max_turns"].verdict, found["agent.api_max_retries"].verdict) == ("left", "taken")


PROVIDERS = {
    "custom_providers": [
        {"name": "My Box", "base_url": "http://box/v1/", "key_env": "BOX_KEY", "model": "m", "context_length": 9000},
        {"name": "nowhere"},
    ],
    "providers": {
        "gate": {
            "api": "https://gate/v1",
            "api_key": "sk-secret",
            "transport": "codex_responses",
            "key_cmd": "print-key",
            "models": {"a": {"context_length": 7000}, "b": {}},
            "extra_headers": {"X-Team": "t"},
            "extra_body": {"tier": "x"},
        }
    },
    "model": {"default": "m", "provider": "custom:My Box"},
}


def test_own_providers_come_along_without_their_secrets(tmp_path: Path) -> None:
    assert written(tmp_path, PROVIDERS) == {
        "providers": {
            "gate": {
                "base_url": "https://gate/v1",
                "wire": "openai_responses",
                "key_command": "print-key",
                "models": {"a": {"context_length": 7000}},
            },
            "my-box": {"base_url": "http://box/v1", "default_model": "m", "models": {"m": {"context_length": 9000}}},
        },
        "model": {"default": "m", "provider": "my-box"},
    }
    found = items(PROVIDERS)
    assert "--keys" in found["providers.gate.api_key"].reason
    assert "--keys" in found["providers.gate.extra_headers"].reason
    assert found["providers.my-box.api_key"].reason == "BOX_KEY is not set here"
    assert found["providers.gate.extra_body"].reason == "Talaria has no such setting"
    assert "has no address" in found["providers.nowhere"].reason


def test_own_providers_come_along_with_their_secrets_on_request(tmp_path: Path) -> None:
    found = written(tmp_path, PROVIDERS, with_keys=True, keys={"BOX_KEY": "k"})
    assert found["providers"]["gate"]["api_key"] == "sk-secret"
    assert found["providers"]["gate"]["headers"] == {"X-Team": "t"}
    assert found["providers"]["my-box"]["api_key"] == "${BOX_KEY}"


def test_provider_that_would_be_asked_without_a_model_is_refused() -> None:
    theirs = {"providers": {"gate": {"api": "https://gate/v1", "key_cmd": "print-key"}}}
    found = items(theirs)["providers.gate"]
    assert (found.verdict, "No model is set for gate" in found.reason) == ("left", True)
    assert items(theirs, {"model": {"default": "groq:m"}})["providers.gate"].verdict == "taken"


def test_secret_is_not_given_to_a_provider_of_ours_that_is_only_called_the_same() -> None:
    ours = {"providers": {"gate": {"base_url": "https://other/v1"}}}
    found = items(PROVIDERS, ours, with_keys=True, keys={"BOX_KEY": "k"})
    assert found["providers.gate"].verdict == found["providers.gate.api_key"].verdict == "left"
    assert found["providers.my-box.api_key"].verdict == "taken"


def test_secret_may_come_in_a_second_import() -> None:
    ours = {"providers": {"my-box": {"base_url": "http://box/v1", "default_model": "m"}}}
    theirs = {"custom_providers": [{"name": "My Box", "base_url": "http://box/v1", "model": "m", "api_key": "k"}]}
    found = items(theirs, ours, with_keys=True)
    assert (found["providers.my-box"].verdict, found["providers.my-box.api_key"].verdict) == ("there", "taken")


def test_key_of_a_provider_that_is_there_already_stays(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("providers: {box: {base_url: 'http://box/v1', api_key: mine}}\n")
    theirs = {
        "custom_providers": [{"name": "box", "base_url": "http://box/v1"}],
        "model": {"default": "m", "provider": "custom:box"},
    }
    for step in steps(theirs, read_yaml(tmp_path / "config.yaml"), home=tmp_path):
        if step.act is not None:
            step.act()
    assert read_yaml(tmp_path / "config.yaml") == {
        "providers": {"box": {"base_url": "http://box/v1", "api_key": "mine"}},
        "model": {"default": "m", "provider": "box"},
    }


def test_fallbacks_come_along_in_their_order(tmp_path: Path) -> None:
    theirs = {
        "fallback_providers": [
            {"provider": "openai-codex", "model": "gpt-5"},
            {"provider": "openrouter", "model": "a/b", "api_key": "secret"},
            {"provider": "custom", "model": "m", "base_url": "http://box/v1", "key_env": "BOX_KEY"},
        ],
        "fallback_model": {"provider": "claude", "model": "claude-x"},
    }
    assert written(tmp_path, theirs, keys={"BOX_KEY": "k"})["fallback_providers"] == [
        {"provider": "openrouter", "model": "a/b"},
        {"provider": "custom", "model": "m", "base_url": "http://box/v1", "api_key": "${BOX_KEY}"},
        {"provider": "anthropic", "model": "claude-x"},
    ]
    reasons = [step.item.reason for step in steps(theirs) if step.item.verdict == "left"]
    assert "Talaria has no provider 'openai-codex'" in reasons


def test_auxiliary_models_come_along_where_we_have_such_work(tmp_path: Path) -> None:
    theirs = {
        "auxiliary": {
            "compression": {"provider": "auto", "model": "small", "timeout": 120},
            "title_generation": {"provider": "openrouter", "model": "a/b"},
            "approval": {"provider": "auto", "model": ""},
            "vision": {"provider": "openrouter", "model": "c/d"},
            "web_extract": "odd",
        }
    }
    assert written(tmp_path, theirs)["auxiliary"] == {"summary": "small", "title": "openrouter:a/b"}
    left = {name for name, item in items(theirs).items() if item.verdict == "left"}
    assert left == {"auxiliary.compression.timeout", "auxiliary.vision"}


@pytest.mark.parametrize(
    "theirs",
    [
        {"model": ["a"]},
        {"model": 7, "providers": "x", "custom_providers": {"a": 1}, "fallback_providers": "y", "auxiliary": 3},
        {"agent": None, "compression": [], "plugins": "all", "memory": 1, "mcp_servers": ["a"]},
        {"model": {"default": "a\nb", "base_url": "http://[::1", "provider": 5}},
        {"model": {"provider": "openai-codex", "base_url": "https://openrouter.ai/api/v1"}},
        {"model": {"provider": "anthropic"}, "providers": {"anthropic": {"request_timeout_seconds": 30}}},
        {"providers": {1: {"base_url": "http://x/v1", 2: 3}}, 4: 5},
    ],
)
def test_config_that_is_odd_is_no_crash(tmp_path: Path, theirs: dict[str, Any]) -> None:
    written(tmp_path, theirs)
