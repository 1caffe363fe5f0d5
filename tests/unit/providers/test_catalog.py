import re
from urllib.parse import urlsplit

import pytest

from talaria.providers.catalog import ProviderFacts, catalog

NAMES = [
    *("openrouter", "openai", "anthropic", "nous", "gemini", "groq", "deepseek", "mistral", "xai", "zai"),
    *("together", "ollama", "lmstudio", "llama.cpp", "vllm", "custom"),
]
LOCAL = {"ollama", "lmstudio", "llama.cpp", "vllm"}


def test_every_promised_provider_is_there_and_openrouter_comes_first() -> None:
    assert set(catalog()) == set(NAMES)
    assert next(iter(catalog())) == "openrouter"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "custom"])
def test_address_can_be_called(name: str) -> None:
    url = urlsplit(catalog()[name].base_url)
    assert url.hostname
    assert url.scheme == ("http" if name in LOCAL else "https")
    assert (url.hostname == "127.0.0.1") == (name in LOCAL) == catalog()[name].is_local
    assert not url.path.endswith("/")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in {*LOCAL, "custom"}])
def test_hosted_provider_says_how_to_get_and_name_its_key(name: str) -> None:
    facts = catalog()[name]
    assert facts.label
    assert facts.default_model
    assert facts.signup.startswith("https://")
    assert facts.keys
    assert all(re.fullmatch(r"[A-Z_]+_API_KEY", key) for key in facts.keys)


@pytest.mark.parametrize("facts", catalog().values(), ids=catalog())
def test_facts_about_models_are_plausible(facts: ProviderFacts) -> None:
    for name, model in facts.models.items():
        assert name
        assert model.window is None or 8_000 <= model.window <= 10_000_000
        assert model.max_output is None or model.window is None or model.max_output <= model.window
        if model.prices is not None:
            assert 0 < model.prices.input <= model.prices.output < 1_000
            assert model.prices.cache_read is None or model.prices.cache_read < model.prices.input


def test_local_servers_listen_on_ports_of_their_own() -> None:
    assert len({urlsplit(catalog()[name].base_url).port for name in LOCAL}) == len(LOCAL)


def test_first_provider_with_a_key_is_no_local_one() -> None:
    assert not any(catalog()[name].default_model for name in LOCAL)
