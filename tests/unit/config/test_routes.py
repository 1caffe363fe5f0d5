"""Which models stand in for which, told from the settings."""

from pathlib import Path
from typing import Any

import pytest

from talaria.config.load import decode
from talaria.config.routes import plan
from talaria.config.schema import Config
from talaria.config.selection import ModelChoice, choose, endpoint
from talaria.core.errors import BadConfig
from talaria.core.secret import Secret
from talaria.providers.base import Endpoint

ENVIRONMENT = {"OPENROUTER_API_KEY": "sk-or", "GROQ_API_KEY": "sk-groq", "OPENAI_API_KEY": "sk-oa"}


def config(**document: Any) -> Config:
    return decode(document, Path("config.yaml"))


def planned(settings: Config, environment: dict[str, str] | None = None) -> tuple[Endpoint, ...]:
    known = ENVIRONMENT if environment is None else environment
    choice = choose(settings, known)
    assert choice is not None
    return plan(endpoint(choice, settings, known), settings, known).route.endpoints


def test_fallbacks_come_in_their_order_and_each_has_its_own_key() -> None:
    settings = config(model={"default": "openrouter:a"}, fallback_providers=["groq:b", "openai:c"])
    found = planned(settings)
    assert [one.label for one in found] == ["openrouter:a", "groq:b", "openai:c"]
    assert [one.keys for one in found] == [(Secret("sk-or"),), (Secret("sk-groq"),), (Secret("sk-oa"),)]


def test_fallback_model_is_another_name_and_both_are_one_list() -> None:
    settings = config(
        model={"default": "openrouter:a"}, fallback_model=["groq:d", "groq:b"], fallback_providers="groq:b"
    )
    assert [one.label for one in planned(settings)] == ["openrouter:a", "groq:b", "groq:d"]


def test_a_fallback_without_a_model_takes_its_providers_default() -> None:
    settings = config(model={"default": "openrouter:a"}, fallback_providers={"provider": "groq"})
    assert planned(settings)[1].model == "llama-3.3-70b-versatile"


def test_a_fallback_at_the_primarys_provider_has_its_address_but_not_its_models_settings() -> None:
    model = {
        "provider": "groq",
        "default": "a",
        "base_url": "https://mirror/v1",
        "api_key": "sk-m",
        "context_length": 5,
    }
    found = planned(config(model=model, fallback_providers={"provider": "groq", "model": "b"}))
    assert (found[1].base_url, found[1].keys, found[1].window) == ("https://mirror/v1", (Secret("sk-m"),), None)


def test_the_key_under_model_goes_to_no_other_provider() -> None:
    settings = config(model={"api_key": "sk-m"}, fallback_providers="groq:b")
    assert planned(settings)[0].keys == (Secret("sk-m"),)
    assert planned(settings)[1].keys == (Secret("sk-groq"),)


def test_a_stranger_gets_no_key_from_the_environment() -> None:
    entry = {"provider": "custom", "model": "b", "base_url": "https://elsewhere/v1"}
    assert planned(config(model={"default": "groq:a"}, fallback_providers=entry))[1].keys == ()


def test_a_provider_at_another_address_gets_only_the_key_that_is_written_beside_it() -> None:
    providers = {"openai": {"api_keys": ["sk-real", "sk-real-2"], "key_command": "echo sk-made"}}
    entries = [
        {"provider": "openai", "model": "a", "base_url": "https://elsewhere/v1", "api_key": "sk-elsewhere"},
        {"provider": "openrouter", "model": "b", "base_url": "https://elsewhere/v1"},
    ]
    found = planned(config(model={"default": "groq:a"}, providers=providers, fallback_providers=entries))
    assert [(one.keys, one.key_command) for one in found[1:]] == [((Secret("sk-elsewhere"),), None), ((), None)]


def test_a_provider_with_several_keys_or_a_command_is_chosen_by_itself() -> None:
    for own in ({"api_keys": ["a", "b"]}, {"key_command": "echo a"}):
        settings = config(providers={"house": {"base_url": "http://house/v1", "default_model": "m", **own}})
        assert planned(settings, {})[0].label == "house:m"


def test_whether_answers_are_streamed_is_a_matter_of_each_endpoint() -> None:
    providers = {"groq": {"streaming": False}}
    found = planned(config(model={"default": "openai:a"}, providers=providers, fallback_providers="groq:b"))
    assert [one.is_streaming for one in found] == [True, False]


def test_the_same_model_at_the_same_address_is_tried_once() -> None:
    settings = config(model={"default": "groq:a"}, fallback_providers=["groq:a", "openai:b", "openai:b"])
    assert [one.label for one in planned(settings)] == ["groq:a", "openai:b"]


def test_a_fallback_whose_key_is_missing_is_left_out_and_told() -> None:
    settings = config(model={"default": "groq:a"}, fallback_providers=["xai:b", "openai:c"])
    primary = endpoint(ModelChoice("groq", "a"), settings, ENVIRONMENT)
    found = plan(primary, settings, ENVIRONMENT)
    assert [one.label for one in found.route.fallbacks] == ["openai:c"]
    assert len(found.left_out) == 1
    assert "XAI_API_KEY" in found.left_out[0]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("groqq:b", "did you mean 'groq'"),
        ("foo:b", "There is no provider 'foo' .in 'foo:b'."),
        ("some-model", "does not name its provider"),
        ({"provider": "nobody"}, "There is no provider 'nobody'"),
        ("demo:demo", "cannot be a fallback"),
        ({"provider": "custom", "model": "b"}, "The address of your endpoint is missing"),
    ],
)
def test_a_fallback_that_is_written_wrong_is_an_error(entry: Any, says: str) -> None:
    with pytest.raises(BadConfig, match=says):
        planned(config(model={"default": "groq:a"}, fallback_providers=entry))


@pytest.mark.parametrize(
    ("settings", "wire", "caching"),
    [
        ({"model": {"default": "anthropic:claude-x", "api_key": "k"}}, "anthropic_messages", "automatic"),
        ({"model": {"default": "openrouter:anthropic/claude-x"}}, "openai_chat", "automatic"),
        ({"model": {"default": "openrouter:google/gemini"}}, "openai_chat", "off"),
        ({"model": {"default": "openai:gpt-5"}}, "openai_responses", "off"),
        (
            {
                "model": {"default": "p:m"},
                "providers": {"p": {"base_url": "http://p/v1", "wire": "anthropic_messages"}},
            },
            "anthropic_messages",
            "markers",
        ),
        (
            {"model": {"default": "ollama:m"}, "providers": {"ollama": {"wire": "anthropic_messages"}}},
            "anthropic_messages",
            "off",
        ),
        (
            {"model": {"default": "groq:m"}, "providers": {"groq": {"prompt_caching": "markers"}}},
            "openai_chat",
            "markers",
        ),
    ],
)
def test_how_prompts_are_cached_follows_from_the_endpoint(settings: dict[str, Any], wire: str, caching: str) -> None:
    found = planned(config(**settings))[0]
    assert (found.wire, found.caching) == (wire, caching)


@pytest.mark.parametrize(
    ("base_url", "is_aggregator"),
    [
        ("https://openrouter.ai/api/v1", True),
        ("https://eu.openrouter.ai/api/v1", True),
        ("https://inference-api.nousresearch.com/v1", True),
        ("https://notopenrouter.ai/v1", False),
        ("https://api.z.ai/v1", False),
    ],
)
def test_an_aggregator_is_known_by_its_host_under_any_name(base_url: str, is_aggregator: bool) -> None:
    settings = config(model={"default": "mine:m"}, providers={"mine": {"base_url": base_url}})
    assert planned(settings)[0].is_aggregator == is_aggregator


def test_time_limits_are_long_for_a_server_on_this_machine_and_each_can_be_set() -> None:
    far = planned(config(model={"default": "groq:a"}))[0].timeouts
    near = planned(config(model={"default": "ollama:a"}))[0].timeouts
    own = {"ollama": {"timeouts": {"chunk_s": 7}}}
    mixed = planned(config(model={"default": "ollama:a"}, providers=own))[0].timeouts
    assert near.first_byte_s > far.first_byte_s
    assert (mixed.chunk_s, mixed.total_s) == (7, near.total_s)
