"""A model that is made the default is called afterwards as it was when it was tried."""

from typing import Any

import msgspec
import pytest

from talaria.config.schema import Config
from talaria.config.selection import DEMO, ModelChoice, as_default, choose, endpoint
from talaria.core.secret import decode_secret

ENVIRONMENT = {
    "OPENROUTER_API_KEY": "sk-or",
    "ANTHROPIC_API_KEY": "sk-ant",
    "GROQ_API_KEY": "sk-groq",
    "OPENAI_API_KEY": "sk-oai",
}
HERE = {"base_url": "http://127.0.0.1:7777/v1", "api_key": "sk-here"}
WORK = {"base_url": "https://llm.work/v1", "api_key": "sk-work", "default_model": "m"}
GIVEN: list[dict[str, Any]] = [
    {},
    {"default": "gpt-5"},
    {"default": "anthropic:claude-sonnet-4-5"},
    {"default": "anthropic:claude-sonnet-4-5", "context_length": 1000},
    {"default": "claude-sonnet-4-5", "provider": "anthropic"},
    {"default": "claude-sonnet-4-5", "provider": "anthropic", "max_tokens": 99},
    {"default": "claude-sonnet-4-5", "provider": "anthropic", **HERE},
    {"default": "test-model", **HERE},
    {"default": "test-model", "provider": "custom", **HERE},
    {"default": "demo"},
    {"provider": "demo", **HERE},
    {"api_key": "sk-for-whichever"},
]
WANTED = [
    "groq:llama",
    "anthropic:claude-haiku-4-5",
    "ollama:mistral:7b",
    "claude-haiku-4-5",
    "work:",
    "demo",
]


def config(model: dict[str, Any]) -> Config:
    return msgspec.convert({"model": model, "providers": {"work": WORK}}, Config, dec_hook=decode_secret)


@pytest.mark.parametrize("wanted", WANTED)
@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_model_is_called_as_it_was_tried(given: dict[str, Any], wanted: str) -> None:
    before = config(given)
    tried = choose(before, ENVIRONMENT, wanted)
    assert tried is not None
    if tried.provider == DEMO:
        choice = tried
    else:
        meant = endpoint(tried, before, ENVIRONMENT)
        choice = ModelChoice(meant.provider, meant.model)

    written = {key.removeprefix("model."): value for key, value in as_default(choice, before).items()}
    after = config({**given, **written})

    assert choose(after, ENVIRONMENT) == choice
    if choice.provider != DEMO:
        assert endpoint(choice, after, ENVIRONMENT) == endpoint(tried, before, ENVIRONMENT)


def test_address_under_model_stays_with_its_provider() -> None:
    before = config({"default": "test-model", **HERE})
    assert as_default(ModelChoice("custom", "other"), before) == {"model.default": "custom:other"}
    assert list(as_default(ModelChoice("groq", "llama"), before).items()) == [
        ("model.provider", "custom"),  # first: a crash behind it must not leave groq with another's address
        ("model.default", "groq:llama"),
    ]


def test_only_the_model_is_written_where_that_is_enough() -> None:
    assert as_default(ModelChoice("groq", "llama"), config({"default": "gpt-5"})) == {"model.default": "groq:llama"}


def test_provider_that_has_nothing_of_its_own_there_makes_room() -> None:
    assert as_default(ModelChoice("groq", "llama"), config({"provider": "anthropic"})) == {
        "model.default": "groq:llama",
        "model.provider": "groq",
    }
