from pathlib import Path

import pytest

from talaria.config.load import load
from talaria.config.schema import Config, Fallback
from talaria.core.errors import BadConfig
from talaria.core.secret import Secret

FULL = """
model:
  default: openrouter:some/model
  api_key: sk-1
  reasoning_effort: high
providers:
  work:
    base_url: https://llm.example/v1
    wire: anthropic_messages
    headers: {X-Team: blue}
    timeouts: {connect_s: 3}
    models:
      big: {context_length: 5, prices: {input: 1, output: 2}}
fallback_providers:
  - groq:some-model
  - {provider: xai, api_key: sk-2}
agent:
  max_turns: 7
limits:
  turn: {cost_usd: 1}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


@pytest.mark.parametrize("text", [None, "", "# nothing but a comment\n", "{}", "model:\n  # default: x\n", "agent: {}"])
def test_what_is_not_said_has_its_default(file: Path, text: str | None) -> None:
    if text is not None:
        file.write_text(text)
    assert load(file, {}) == Config()


def test_home_below_a_file_has_no_settings(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert load(tmp_path / "file/home/config.yaml", {}) == Config()


def test_every_setting_is_read(file: Path) -> None:
    file.write_text(FULL)
    config = load(file, {})

    work = config.providers["work"]
    assert (config.model.default, config.model.api_key) == ("openrouter:some/model", Secret("sk-1"))
    assert (work.wire, work.headers) == ("anthropic_messages", {"X-Team": Secret("blue")})
    assert work.timeouts is not None
    assert (work.timeouts.connect_s, work.timeouts.chunk_s) == (3, None)
    assert work.models["big"].prices is not None
    assert (config.agent.max_turns, config.limits.turn.cost_usd) == (7, 1.0)
    assert config.fallback_providers == ("groq:some-model", Fallback(provider="xai", api_key=Secret("sk-2")))
    assert "sk-1" not in repr(config)
    assert "blue" not in repr(config)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("modle: {}", "there is no setting 'modle'; did you mean 'model'?"),
        (
            "zzz: 1",
            (
                "there is no setting 'zzz'; "
                "it may be one of: model, fallback_providers, fallback_model, providers, agent, limits, compression, "
                "auxiliary, context, memory, plugins, tools, web, terminal, approvals, checkpoints, display, gateway, "
                "api, mcp_servers, mcp, mcpServers."
            ),
        ),
        ("model: {defualt: x}", "there is no setting 'model.defualt'; did you mean 'default'?"),
        ("providers: {a: {base_ulr: x}}", "there is no setting 'providers.*.base_ulr'; did you mean 'base_url'?"),
        (
            "providers: {a: {models: {m: {max_tokns: 1}}}}",
            "there is no setting 'providers.*.models.*.max_tokns'; did you mean 'max_tokens'?",
        ),
        (
            "fallback_providers: [{provider: groq, modell: x}]",
            "there is no setting 'fallback_providers[0].modell'; did you mean 'model'?",
        ),
        ("limits: {day: {token: 1}}", "there is no setting 'limits.day.token'; did you mean 'tokens'?"),
        (
            "providers: {a: {timeouts: {chunk: 1}}}",
            "there is no setting 'providers.*.timeouts.chunk'; did you mean 'chunk_s'?",
        ),
        (
            "providers: {a: {models: {m: {prices: {input: 1, output: 1, cached: 1}}}}}",
            "there is no setting 'providers.*.models.*.prices.cached'; did you mean 'cache_read'?",
        ),
        ("5: x", "there is no setting '5'; it may be one of"),
    ],
)
def test_unknown_setting_is_told_with_the_nearest_name(file: Path, text: str, sentence: str) -> None:
    file.write_text(text)
    with pytest.raises(BadConfig) as told:
        load(file, {})
    assert str(told.value).startswith(f"{file}: {sentence}")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("agent: {max_turns: many}", "agent.max_turns is wrong: Expected `int`, got `str`."),
        ("agent: {max_turns: 1.5}", "agent.max_turns is wrong: Expected `int`, got `float`."),
        ("model: x", "model is wrong: Expected `object`, got `str`."),
        ("model: {api_key: 12345}", "model.api_key is wrong: Expected `str`."),
        ("model: {wire: smoke}", "model.wire is wrong: Invalid enum value 'smoke'."),
        ("providers: {a: {headers: {x: 1}}}", "providers.*.headers.* is wrong: Expected `str`."),
        ("providers: [a]", "providers is wrong: Expected `object`, got `array`."),
        ("agent: {max_turns: -3}", "agent.max_turns is wrong: Expected `int` >= 1."),
        ("limits: {turn: {tokens: 0}}", "limits.turn.tokens is wrong: Expected `int` >= 1."),
        ("limits: {turn: {seconds: -1}}", "limits.turn.seconds is wrong: Expected `float` > 0.0."),
        ("limits: {day: {cost_usd: .nan}}", "limits.day.cost_usd is wrong: Expected `float` > 0.0."),
        ("model: {context_length: -1}", "model.context_length is wrong: Expected `int` >= 1."),
        ("providers: {a: {timeouts: {chunk_s: 0}}}", "providers.*.timeouts.chunk_s is wrong: Expected `float` > 0.0."),
        (
            "providers: {a: {models: {m: {prices: {input: -1, output: 1}}}}}",
            "providers.*.models.*.prices.input is wrong: Expected `float` >= 0.0.",
        ),
    ],
)
def test_value_of_the_wrong_type_is_told_with_its_path(file: Path, text: str, sentence: str) -> None:
    file.write_text(text)
    with pytest.raises(BadConfig) as told:
        load(file, {})
    assert str(told.value) == f"{file}: {sentence}"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"model:\n  default: [x\n", "is not valid YAML at line 3: "),
        (b"a: b: c\n", "is not valid YAML at line 1: "),
        (b"\tmodel: x\n", "is not valid YAML at line 1: "),
        (b"model: \x01\n", "is not valid YAML"),
        (b"- a\n- b\n", "must hold settings as `name: value` lines."),
        (b"just words", "must hold settings as `name: value` lines."),
        (b"model: {default: caf\xe9}", "is not UTF-8 text (byte 20); save it as UTF-8."),
        (b"!!python/object/apply:os.system [id]", "is not valid YAML at line 1: "),
    ],
)
def test_file_that_is_not_settings_is_told_with_the_place(file: Path, content: bytes, sentence: str) -> None:
    file.write_bytes(content)
    with pytest.raises(BadConfig) as told:
        load(file, {})
    assert str(told.value).startswith(f"{file} {sentence}")
    assert "\n" not in str(told.value)


def test_unreadable_file_is_told(file: Path) -> None:
    file.mkdir()
    with pytest.raises(BadConfig, match=rf"Cannot read {file}: Is a directory\."):
        load(file, {})


def test_variables_are_filled_in_everywhere(file: Path) -> None:
    file.write_text(
        "model: {api_key: '${KEY}', base_url: 'https://${HOST}:${PORT}/v1'}\nproviders: {a: {headers: {k: $X}}}"
    )
    config = load(file, {"KEY": "sk", "HOST": "h", "PORT": "1"})
    assert (config.model.api_key, config.model.base_url) == (Secret("sk"), "https://h:1/v1")
    assert config.providers["a"].headers == {"k": Secret("$X")}


def test_variable_that_is_not_set_is_told_with_its_place(file: Path) -> None:
    file.write_text("model:\n  api_key: ${NOPE}\n")
    with pytest.raises(BadConfig) as told:
        load(file, {})
    assert str(told.value) == f"{file}: model.api_key uses ${{NOPE}}, which is not set; add it to .env or export it."


LAUGHS = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 10))
MERGES = "".join(f"m{n}: &m{n} {{<<: [*m{n - 1}, *m{n - 1}]}}\n" for n in range(1, 30))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("l0: &l0 [ha]\n" + LAUGHS, "has more than 30 aliases"),
        ("m0: &m0 {a: 1}\n" + MERGES, "has more than 30 aliases"),
        ("a: " + "[" * 200_000, "has more than 50 levels"),
        ("a: &a {b: [*a]}", r"the alias \*a is inside what it stands for"),
        ("a: " + "x" * (1 << 20), "is larger than 1 MB"),
    ],
    ids=["laughs", "merges", "deep", "circle", "large"],
)
def test_settings_that_would_grow_without_end_are_refused(file: Path, text: str, sentence: str) -> None:
    file.write_text(text)
    with pytest.raises(BadConfig, match=sentence):
        load(file, {})


def test_aliases_are_there_for_people(file: Path) -> None:
    file.write_text(
        "providers:\n  a: &a {base_url: 'https://llm.example/v1'}\n  b: *a\n  c: {<<: *a, wire: openai_chat}\n"
    )
    found = load(file, {}).providers
    assert found["a"] == found["b"]
    assert found["c"].base_url == found["a"].base_url
