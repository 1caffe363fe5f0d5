from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from talaria.config.schema import Config
from talaria.config.selection import LOCAL_TIMEOUTS, ModelChoice, check, choose, endpoint, is_streaming, local_servers
from talaria.core.errors import BadConfig, MissingCredential
from talaria.core.secret import Secret, decode_secret
from talaria.net.web_settings import Timeouts
from talaria.providers.base import Endpoint
from talaria.providers.catalog import catalog


def config(**settings: Any) -> Config:
    return msgspec.convert(settings, Config, dec_hook=decode_secret)


def chosen(settings: Config, environment: Mapping[str, str], wanted: str | None = None) -> Endpoint:
    choice = choose(settings, environment, wanted)
    assert choice is not None
    return endpoint(choice, settings, environment)


WORK = {"base_url": "https://llm.work/v1", "api_key": "sk-work", "default_model": "m"}
ALL_KEYS = {facts.keys[0]: "sk" for facts in catalog().values() if facts.keys and not facts.is_local}


def test_nothing_at_hand_leaves_the_search_to_others() -> None:
    assert choose(config(), {}) is None


@pytest.mark.parametrize(
    ("keys", "provider"),
    [
        (["OPENROUTER_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_API_KEY"], "openrouter"),
        (["OPENAI_API_KEY", "ANTHROPIC_API_KEY"], "anthropic"),
        (["GEMINI_API_KEY", "OPENAI_API_KEY"], "openai"),
        (["GOOGLE_API_KEY"], "gemini"),
        (["OLLAMA_API_KEY"], None),
    ],
)
def test_keys_are_looked_for_in_the_order_of_the_catalog(keys: list[str], provider: str | None) -> None:
    choice = choose(config(), dict.fromkeys(keys, "sk"))
    assert choice == (ModelChoice(provider) if provider else None)


def test_key_that_is_set_to_nothing_does_not_count() -> None:
    assert choose(config(), {"OPENROUTER_API_KEY": "", "GROQ_API_KEY": "x"}) == ModelChoice("groq")


def test_own_provider_with_a_key_comes_before_the_catalog() -> None:
    assert choose(config(providers={"work": WORK}), ALL_KEYS) == ModelChoice("work")


@pytest.mark.parametrize(
    ("wanted", "choice"),
    [
        ("groq:llama-3", ModelChoice("groq", "llama-3")),
        ("openrouter:vendor/model:free", ModelChoice("openrouter", "vendor/model:free")),
        ("ollama:qwen3:8b", ModelChoice("ollama", "qwen3:8b")),
        ("qwen3:8b", ModelChoice("openrouter", "qwen3:8b")),
        ("llama.cpp:x", ModelChoice("llama.cpp", "x")),
        ("work:m2", ModelChoice("work", "m2")),
        ("gpt-5", ModelChoice("openrouter", "gpt-5")),
        ("demo", ModelChoice("demo")),
    ],
)
@pytest.mark.parametrize("is_setting", [False, True])
def test_provider_may_stand_before_the_model(wanted: str, choice: ModelChoice, is_setting: bool) -> None:
    work = {"base_url": "https://llm.work/v1"}
    settings = config(model={"default": wanted} if is_setting else {}, providers={"work": work})
    found = choose(settings, {"OPENROUTER_API_KEY": "sk"}, None if is_setting else wanted)
    assert found == choice


@pytest.mark.parametrize(
    ("model", "wanted", "choice"),
    [
        ({"provider": "groq"}, None, ModelChoice("groq")),
        ({"provider": "groq"}, "x", ModelChoice("groq", "x")),
        ({"provider": "groq", "default": "y"}, "xai:x", ModelChoice("xai", "x")),
        ({"provider": "demo"}, None, ModelChoice("demo")),
        ({"provider": "demo"}, "xai:grok-4", ModelChoice("xai", "grok-4")),
        ({"provider": "demo", "default": "x"}, None, ModelChoice("demo")),
        ({"base_url": "http://h/v1"}, None, ModelChoice("custom")),
        ({"base_url": "http://h/v1", "default": "x"}, None, ModelChoice("custom", "x")),
        ({"base_url": "http://h/v1", "default": "x"}, "y", ModelChoice("custom", "y")),
        ({"base_url": "http://h/v1", "default": "x"}, "xai:y", ModelChoice("xai", "y")),
    ],
)
def test_what_was_asked_for_wins_over_settings_and_these_over_keys(
    model: dict[str, str], wanted: str | None, choice: ModelChoice
) -> None:
    assert choose(config(model=model), {"OPENROUTER_API_KEY": "sk"}, wanted) == choice


def test_facts_of_the_catalog_reach_the_endpoint() -> None:
    found = chosen(config(), {"ANTHROPIC_API_KEY": "sk-ant"})
    assert (found.provider, found.base_url, found.wire) == (
        "anthropic",
        "https://api.anthropic.com/v1",
        "anthropic_messages",
    )
    assert (found.keys, found.window, found.timeouts) == ((Secret("sk-ant"),), 200_000, Timeouts())
    assert found.prices is not None


def test_dated_name_has_the_facts_of_its_model() -> None:
    found = chosen(config(), {"ANTHROPIC_API_KEY": "x"}, "anthropic:claude-sonnet-4-5-20250929")
    assert found.window == 200_000
    assert chosen(config(), {"ANTHROPIC_API_KEY": "x"}, "anthropic:new-thing").window is None


def test_own_address_needs_no_key() -> None:
    found = chosen(config(model={"base_url": "http://127.0.0.1:9/v1/", "default": "m"}), {})
    assert (found.provider, found.base_url, found.wire) == ("custom", "http://127.0.0.1:9/v1", "openai_chat")
    assert found.keys == ()


@pytest.mark.parametrize(
    ("wanted", "base_url", "key"),
    [
        (None, "http://127.0.0.1:9/v1", "sk-own"),
        ("other", "http://127.0.0.1:9/v1", "sk-own"),
        ("groq:m", "https://api.groq.com/openai/v1", "sk-groq"),
        ("openrouter:m", "https://openrouter.ai/api/v1", "sk-or"),
    ],
)
def test_key_of_one_provider_never_goes_to_the_address_of_another(wanted: str | None, base_url: str, key: str) -> None:
    settings = config(model={"base_url": "http://127.0.0.1:9/v1", "api_key": "sk-own", "default": "m"})
    found = chosen(settings, {"OPENROUTER_API_KEY": "sk-or", "GROQ_API_KEY": "sk-groq"}, wanted)
    assert (found.base_url, found.keys) == (base_url, (Secret(key),))


@pytest.mark.parametrize(
    "model", [{"provider": "groq", "default": "m"}, {"default": "groq:m"}], ids=["by provider", "by prefix"]
)
def test_address_under_model_is_that_of_the_configured_provider(model: dict[str, str]) -> None:
    settings = config(model={**model, "base_url": "https://mirror/v1", "context_length": 5, "max_tokens": 6})
    environment = {"GROQ_API_KEY": "sk-groq", "XAI_API_KEY": "sk-x"}

    found = chosen(settings, environment)
    other = chosen(settings, environment, "xai:grok-4")

    assert (found.base_url, found.keys) == ("https://mirror/v1", (Secret("sk-groq"),))
    assert (found.window, found.max_output) == (5, 6)
    assert (other.base_url, other.keys, other.window) == ("https://api.x.ai/v1", (Secret("sk-x"),), 256_000)


@pytest.mark.parametrize(
    ("environment", "wire"),
    [
        ({}, "openai_responses"),
        ({"OPENAI_BASE_URL": "https://api.openai.com/v1/"}, "openai_responses"),
        ({"OPENAI_BASE_URL": "http://localhost:4000"}, "openai_chat"),
    ],
)
def test_another_address_for_openai_speaks_chat(environment: dict[str, str], wire: str) -> None:
    assert chosen(config(), {"OPENAI_API_KEY": "sk", **environment}).wire == wire


def test_own_settings_replace_those_of_the_catalog() -> None:
    own = {
        "base_url": "https://mirror/v1",
        "api_key": "sk-own",
        "wire": "openai_chat",
        "headers": {"X-A": "b"},
        "timeouts": {"chunk_s": 5},
        "default_model": "gpt-5",
        "models": {"gpt-5": {"context_length": 1, "max_tokens": 2, "prices": {"input": 3, "output": 4}}},
    }
    found = chosen(config(providers={"openai": own}), {"OPENAI_API_KEY": "sk-env"})
    assert (found.base_url, found.keys, found.wire) == ("https://mirror/v1", (Secret("sk-own"),), "openai_chat")
    assert (found.headers, found.timeouts.chunk_s, found.model) == ((("X-A", "b"),), 5, "gpt-5")
    assert found.prices is not None
    assert (found.window, found.max_output, found.prices.input) == (1, 2, 3)


@pytest.mark.parametrize(
    ("model", "own", "expected"),
    [
        ({}, {}, True),
        ({"streaming": False}, {}, False),
        ({}, {"streaming": False}, False),
        ({"streaming": False}, {"streaming": True}, True),
    ],
)
def test_streaming_is_a_setting_that_a_provider_may_change(
    model: dict[str, bool], own: dict[str, bool], expected: bool
) -> None:
    assert is_streaming("work", config(model=model, providers={"work": own})) == expected


def test_budget_in_money_needs_a_model_with_a_price() -> None:
    budget = {"day": {"cost_usd": 1}}
    with pytest.raises(BadConfig) as told:
        chosen(config(limits=budget), {"GROQ_API_KEY": "sk"})
    assert str(told.value) == (
        "No price is known for llama-3.3-70b-versatile: set providers.groq.models.llama-3.3-70b-versatile.prices "
        "in config.yaml, or remove the limits on cost_usd."
    )
    priced = {"groq": {"models": {"m": {"prices": {"input": 0, "output": 0}}}}}
    assert chosen(config(limits=budget, providers=priced), {"GROQ_API_KEY": "sk"}, "groq:m").prices is not None
    assert chosen(config(limits=budget), {"ANTHROPIC_API_KEY": "sk"}).prices is not None
    assert chosen(config(limits=budget), {}, "ollama:qwen3:8b").prices is None  # costs nothing


@pytest.mark.parametrize(
    ("address", "base_url"),
    [
        ("http://gpu:11434", "http://gpu:11434/v1"),
        ("http://gpu:11434/", "http://gpu:11434/v1"),
        ("http://gpu:11434/v1", "http://gpu:11434/v1"),
        ("https://gpu/proxy/api/", "https://gpu/proxy/api"),
    ],
)
@pytest.mark.parametrize("is_setting", [False, True])
def test_local_server_is_looked_for_where_it_was_said_to_be(address: str, base_url: str, is_setting: bool) -> None:
    settings = config(providers={"ollama": {"base_url": address}} if is_setting else {})
    environment = {} if is_setting else {"OLLAMA_BASE_URL": address}
    servers = {facts.name: facts.base_url for facts in local_servers(settings, environment)}
    assert servers == {
        "ollama": base_url,
        "lmstudio": "http://127.0.0.1:1234/v1",
        "llama.cpp": "http://127.0.0.1:8080/v1",
        "vllm": "http://127.0.0.1:8000/v1",
    }
    assert chosen(settings, environment, "ollama:m").base_url == base_url


@pytest.mark.parametrize("address", ["gpu:11434", "http://gpu:port", "http://", "http://[::1"])
def test_address_that_is_none_is_told_with_the_variable(address: str) -> None:
    with pytest.raises(BadConfig, match=r"The address of Ollama is missing or not http.*OLLAMA_BASE_URL"):
        check(config(), {"OLLAMA_BASE_URL": address})


@pytest.mark.parametrize("settings", [{}, {"model": {"provider": "demo"}}, {"model": {"default": "ollama:m"}}])
def test_settings_that_choose_a_model_are_in_order(settings: dict[str, Any]) -> None:
    check(config(**settings), {})


def test_local_server_may_think_for_long() -> None:
    assert chosen(config(), {}, "ollama:qwen3:8b").timeouts == LOCAL_TIMEOUTS


@pytest.mark.parametrize(
    "name", [facts.name for facts in catalog().values() if not facts.is_local and facts.name != "custom"]
)
def test_missing_key_is_told_with_variable_file_and_where_to_get_it(name: str) -> None:
    facts = catalog()[name]
    with pytest.raises(MissingCredential) as told:
        chosen(config(model={"provider": name}), {})
    sentence = str(told.value)
    assert facts.keys[0] in sentence
    assert ".env" in sentence
    assert f"talaria config set {facts.keys[0]}" in sentence
    assert facts.signup in sentence


@pytest.mark.parametrize(
    ("settings", "environment", "named"),
    [
        ({"provider": "ollama"}, {}, "qwen3:8b"),
        ({"base_url": "http://127.0.0.1:9/v1"}, {}, "qwen3:8b"),
        ({"provider": "openai", "base_url": "http://127.0.0.1:9/v1"}, {}, "qwen3:8b"),
        ({}, {"OPENAI_API_KEY": "sk", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}, "qwen3:8b"),
        ({}, {"OPENAI_API_KEY": "sk"}, "ft:gpt-5:us::1"),
        ({}, {"OPENAI_API_KEY": "sk"}, "openai:gpt-5:odd"),
    ],
)
def test_a_colon_may_be_part_of_the_name_where_models_have_such_names(
    settings: dict[str, str], environment: dict[str, str], named: str
) -> None:
    assert chosen(config(model=settings), environment, named).model == named.removeprefix("openai:")


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (
            {"default": "opnai:gpt-5"},
            "There is no provider 'opnai' (in 'opnai:gpt-5'); did you mean 'openai'?",
        ),
        (
            {"provider": "opnai"},
            "There is no provider 'opnai' (model.provider in config.yaml, or -m); did you mean 'openai'?",
        ),
        ({"base_url": "https://me:pw@h/v1", "default": "m"}, "contains a user name or password"),
        ({"provider": "zzz"}, "known providers: openrouter, "),
        ({"provider": "ollama"}, "No model is set for Ollama: set model.default in config.yaml, or use -m."),
        ({"base_url": "http://h"}, "No model is set for your endpoint"),
        ({"base_url": "h:80", "default": "m"}, "set model.base_url in config.yaml"),
        ({"provider": "custom", "default": "m"}, "set model.base_url in config.yaml"),
        ({"default": "gpt-5"}, "or name a known provider (-m provider:model)"),
        ({"default": "foo:bar"}, "There is no provider 'foo' (in 'foo:bar'); known providers: openrouter, "),
        ({"default": "olama-here:m"}, "There is no provider 'olama-here' (in 'olama-here:m'); did you mean 'ollama'?"),
        ({"provider": "anthropic", "default": "foo:bar"}, "There is no provider 'foo' (in 'foo:bar'); known providers"),
        ({"provider": "demo", "default": "foo:bar"}, "There is no provider 'foo' (in 'foo:bar'); known providers"),
    ],
)
def test_what_cannot_be_is_told_with_the_setting(model: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadConfig) as told:
        chosen(config(model=model), {})
    assert sentence in str(told.value)
