"""`talaria model`: what can be used, whether it answers, and what is asked by default."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Failure, Faults, Reply, ReplyUsage

Talaria = Callable[..., subprocess.CompletedProcess[str]]

KEY = "sk-hush-hush"
NOWHERE = "http://127.0.0.1:9/v1"
NOT_RUNNING = "Nothing is listening on 127.0.0.1:9. Start the server, or check base_url in config.yaml."


def configure(home: Path, text: str) -> Path:
    home.mkdir(mode=0o700, exist_ok=True)
    file = home / "config.yaml"
    file.write_text(text)
    return file


def rows(output: str) -> dict[str, str]:
    """The lines of a list by what stands in front, without the mark and with single blanks."""
    lines = [line.removeprefix("*").split() for line in output.partition("\n\n")[0].splitlines()]
    return {words[0]: " ".join(words[1:]) for words in lines}


def marked(output: str) -> list[str]:
    return [line.split()[1] for line in output.partition("\n\n")[0].splitlines() if line.startswith("* ")]


def one_token(**usage: int) -> Reply:
    return Reply("Hi", stop="length", usage=ReplyUsage(**{"input": 9, "output": 1, **usage}))


# list


@pytest.mark.parametrize("arguments", [["model"], ["model", "list"]])
def test_nothing_configured_says_what_each_provider_needs(talaria: Talaria, arguments: list[str]) -> None:
    ended = talaria(*arguments)
    found = rows(ended.stdout)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert found["openrouter"] == "needs OPENROUTER_API_KEY openrouter/auto"
    assert found["gemini"] == "needs GEMINI_API_KEY gemini-2.5-flash"
    assert found["ollama"] == "nothing listens at 127.0.0.1:11434"
    assert found["custom"] == "needs an http(s) base_url"
    assert marked(ended.stdout) == ["demo"]
    assert ended.stdout.endswith(
        "\n* The default is the demo model, a scripted stand-in: no API key and no local model server found.\n"
    )


def test_key_makes_a_provider_usable_and_is_printed_nowhere(talaria: Talaria, home: Path) -> None:
    configure(home, f"model: {{api_key: {KEY}-1}}\nproviders: {{work: {{base_url: '{NOWHERE}', api_key: {KEY}-2}}}}")
    keys = {"ANTHROPIC_API_KEY": KEY, "GROQ_API_KEY": KEY, "GROQ_API_KEY_2": f"{KEY}-3"}
    told = [
        talaria(*arguments, env=keys)
        for arguments in (["model"], ["model", "list", "--json"], ["model", "list", "work"], ["model", "try", "work:m"])
    ]
    assert [ended.returncode for ended in told] == [0, 0, 0, 3]
    assert not any(KEY in ended.stdout + ended.stderr for ended in told)


def test_keys_are_counted(talaria: Talaria) -> None:
    keys = {"ANTHROPIC_API_KEY": KEY, "GROQ_API_KEY": KEY, "GROQ_API_KEY_2": f"{KEY}-2"}
    ended = talaria("model", env=keys)
    found = rows(ended.stdout)
    assert found["anthropic"] == "1 key claude-sonnet-4-5"
    assert found["groq"] == "2 keys llama-3.3-70b-versatile"
    assert list(found)[:3] == ["anthropic", "groq", "demo"]
    assert marked(ended.stdout) == ["anthropic"]
    assert ended.stdout.endswith("\n* The default is anthropic:claude-sonnet-4-5.\n")


def test_limit_in_money_does_not_make_a_provider_unusable(talaria: Talaria, home: Path) -> None:
    configure(home, "limits: {day: {cost_usd: 5}}")
    ended = talaria("model", env={"GROQ_API_KEY": KEY})
    assert rows(ended.stdout)["groq"] == "1 key llama-3.3-70b-versatile"
    assert "The default model cannot be used: No price is known for llama-3.3-70b-versatile" in ended.stdout


def test_own_providers_are_listed_with_what_they_need(talaria: Talaria, home: Path) -> None:
    configure(
        home,
        f"""
providers:
  far: {{base_url: 'https://llm.example/v1', default_model: large}}
  near: {{base_url: '{NOWHERE}'}}
  minted: {{base_url: 'https://llm.example/v1', key_command: cat key}}
  nowhere: {{}}
""",
    )
    found = rows(talaria("model").stdout)
    assert found["far"] == "needs no key large"
    assert found["near"] == "nothing listens at 127.0.0.1:9"
    assert found["minted"] == "key from a command"
    assert found["nowhere"] == "needs an http(s) base_url"


def test_local_server_is_found_and_is_the_default(talaria: Talaria) -> None:
    with ModelServer(models=("qwen3:8b",)) as server:
        ended = talaria("model", env={"OLLAMA_BASE_URL": server.url})
    place = server.url.removeprefix("http://")
    assert rows(ended.stdout)["ollama"] == f"answers at {place} qwen3:8b"
    assert marked(ended.stdout) == ["ollama"]
    assert ended.stdout.endswith("\n* The default is ollama:qwen3:8b.\n")


def test_without_live_nothing_is_looked_at(talaria: Talaria, server: ModelServer) -> None:
    ended = talaria("model", "list", "--no-live")
    assert rows(ended.stdout)["ollama"] == "not checked at 127.0.0.1:11434"
    assert rows(ended.stdout)["custom"] == f"not checked at {server.url.removeprefix('http://')} test-model"
    of_one = talaria("model", "list", "custom", "--no-live")
    assert (of_one.returncode, of_one.stderr) == (0, "")
    assert server.requests == []


def test_without_live_and_without_a_key_the_default_is_open(talaria: Talaria) -> None:
    ended = talaria("model", "list", "--no-live")
    assert marked(ended.stdout) == []
    assert "the default is the first local model server that answers, or else the demo model." in ended.stdout


def test_fallbacks_are_told_in_order_and_why_one_is_left_out(talaria: Talaria, home: Path) -> None:
    configure(home, "fallback_providers: [groq:llama-3.3-70b-versatile, openai:gpt-5, ollama:qwen3]")
    keys = {"ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": KEY}
    told = talaria("model", env=keys).stdout.split("\n\n")[1].splitlines()
    assert told[0] == ("* The default is anthropic:claude-sonnet-4-5; fallbacks: openai:gpt-5, then ollama:qwen3.")
    assert told[1].startswith("The fallback groq is left out: Groq needs an API key: put GROQ_API_KEY=… into .env")
    default = json.loads(talaria("model", "list", "--json", env=keys).stdout)["default"]
    assert default["fallbacks"] == ["openai:gpt-5", "ollama:qwen3"]
    assert default["left_out"] == told[1:]


def test_default_that_cannot_be_used_is_told_and_the_list_is_there(talaria: Talaria, home: Path) -> None:
    configure(home, "model: {provider: groq}")
    ended = talaria("model")
    assert ended.returncode == 0
    assert marked(ended.stdout) == ["groq"]
    assert "\n\nThe default model cannot be used: Groq needs an API key: " in ended.stdout


def test_list_as_json_is_one_document(talaria: Talaria, server: ModelServer) -> None:
    ended = talaria("model", "list", "--json")
    told = json.loads(ended.stdout)
    found = {row.pop("name"): row for row in told["providers"]}
    assert (ended.returncode, ended.stderr) == (0, "")
    assert told["default"] == {
        "provider": "custom",
        "model": "custom:test-model",
        "is_stand_in": False,
        "fallbacks": [],
        "left_out": [],
        "problem": None,
    }
    assert found["custom"] == {
        "is_usable": True,
        "state": f"answers at {server.url.removeprefix('http://')}",
        "keys": 0,
        "default_model": None,
        "is_default": True,
    }
    assert found["groq"] == {
        "is_usable": False,
        "state": "needs GROQ_API_KEY",
        "keys": 0,
        "default_model": "llama-3.3-70b-versatile",
        "is_default": False,
    }


def test_models_are_those_that_are_known_and_those_that_the_endpoint_lists(talaria: Talaria, home: Path) -> None:
    with ModelServer(models=("test-model", "zed", "alpha")) as server:
        configure(
            home,
            f"""
model: {{default: test-model, base_url: '{server.base_url}'}}
providers:
  custom:
    models:
      test-model: {{context_length: 32000, prices: {{input: 3, output: 15, cache_read: 0.3}}}}
      gone: {{context_length: 4096}}
""",
        )
        ended = talaria("model", "list", "custom")
        told = json.loads(talaria("model", "list", "custom", "--json").stdout)
    lines = [" ".join(line.split()) for line in ended.stdout.splitlines()]
    assert (ended.returncode, ended.stderr) == (0, "")
    assert lines == [
        f"custom: answers at {server.url.removeprefix('http://')}",
        "model window $ per million tokens",
        "* test-model 32,000 3 in, 15 out, 0.3 cache read",
        "gone 4,096",
        "alpha",
        "zed",
    ]
    prices = {"input": 3.0, "output": 15.0, "cache_read": 0.3, "cache_write": None}
    assert told["problem"] is None
    assert told["models"][:3] == [
        {"name": "test-model", "window": 32000, "prices": prices, "is_listed": True},
        {"name": "gone", "window": 4096, "prices": None, "is_listed": False},
        {"name": "alpha", "window": None, "prices": None, "is_listed": True},
    ]


def test_models_of_a_provider_without_its_key_are_those_of_the_catalog(talaria: Talaria) -> None:
    ended = talaria("model", "list", "anthropic")
    assert ended.returncode == 0
    assert ended.stdout.startswith("anthropic: needs ANTHROPIC_API_KEY\n")
    assert "* claude-sonnet-4-5  200,000  3 in, 15 out, 0.3 cache read, 3.75 cache write\n" in ended.stdout
    assert ended.stderr.startswith("Anthropic needs an API key: put ANTHROPIC_API_KEY=… into .env")


@pytest.mark.parametrize(
    ("listing", "says"),
    [
        (Failure(401), "did not accept the API key (401: "),
        (Failure(404), "custom does not list its models."),
    ],
)
def test_list_that_cannot_be_had_is_a_sentence(talaria: Talaria, home: Path, listing: Failure, says: str) -> None:
    with ModelServer(listing=listing) as server:
        configure(home, f"model: {{default: m, base_url: '{server.base_url}', api_key: {KEY}}}")
        ended = talaria("model", "list", "custom")
        told = json.loads(talaria("model", "list", "custom", "--json").stdout)
    assert (ended.returncode, ended.stderr.count("\n")) == (0, 1)
    assert says in ended.stderr
    assert (told["models"], says in told["problem"]) == ([], True)


def test_server_that_is_not_there_is_not_asked(talaria: Talaria, home: Path) -> None:
    configure(home, f"model: {{default: m, base_url: '{NOWHERE}'}}")
    ended = talaria("model", "list", "custom")
    assert (ended.returncode, ended.stderr) == (0, "custom was not asked: nothing listens at 127.0.0.1:9.\n")


def test_names_that_an_endpoint_lists_are_harmless_for_the_terminal(talaria: Talaria, home: Path) -> None:
    with ModelServer(models=("evil\x1b[2J",)) as server:
        configure(home, f"model: {{default: m, base_url: '{server.base_url}'}}")
        assert talaria("model", "list", "custom").stdout.endswith("  evil[2J\n")


def test_unknown_provider_is_told_with_the_nearest_one(talaria: Talaria) -> None:
    for arguments in (["list", "opnrouter"], ["list", "opnrouter", "--json"], ["try", "opnrouter:x"]):
        ended = talaria("model", *arguments)
        assert ended.returncode == 2
        assert re.search(r"There is no provider 'opnrouter' .*did you mean 'openrouter'\?", ended.stderr)
    assert json.loads(talaria("model", "list", "opnrouter", "--json").stdout)["error"]["type"] == "BadConfig"


# try


@pytest.mark.parametrize(
    ("wire", "limit", "tokens"),
    [
        ("openai_chat", "max_tokens", 1),
        ("openai_responses", "max_output_tokens", 16),
        ("anthropic_messages", "max_tokens", 1),
    ],
)
@pytest.mark.parametrize("is_streaming", [True, False])
def test_try_asks_for_one_token_on_every_wire_and_is_counted(
    talaria: Talaria, home: Path, wire: str, limit: str, tokens: int, is_streaming: bool
) -> None:
    with ModelServer() as server:
        configure(
            home,
            f"model: {{default: m, base_url: '{server.base_url}', wire: {wire}, streaming: {is_streaming}}}",
        )
        server.say(one_token())
        ended = talaria("model", "try")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert re.fullmatch(r"custom:m answered in \d+\.\d\d s · 9 tokens in, 1 out · cost unknown\n", ended.stdout), (
        ended.stdout
    )
    (request,) = server.requests
    assert (request.json[limit], request.json["stream"], "tools" in request.json) == (tokens, is_streaming, False)
    (row,) = json.loads(talaria("usage", "--by", "session", "--json").stdout)["rows"]
    assert (row["key"], row["title"], row["calls"]) == ("model-try", "talaria model try", 1)
    assert (row["usage"]["input"], row["usage"]["output"]) == (9, 1)
    assert talaria("sessions", "list").stdout == ""


@pytest.mark.parametrize("wire", ["openai_chat", "openai_responses", "anthropic_messages"])
def test_model_that_spends_its_token_on_thinking_has_answered(talaria: Talaria, home: Path, wire: str) -> None:
    with ModelServer() as server:
        configure(home, f"model: {{default: m, base_url: '{server.base_url}', wire: {wire}}}")
        server.say(Reply("", stop="length"))
        assert talaria("model", "try").returncode == 0


def test_try_as_json_says_how_long_it_took_and_what_it_cost(talaria: Talaria, server: ModelServer, home: Path) -> None:
    with (home / "config.yaml").open("a") as settings:
        settings.write("providers: {custom: {models: {test-model: {prices: {input: 3, output: 15}}}}}")
    server.say(one_token(input=1000))
    told: dict[str, Any] = json.loads(talaria("model", "try", "--json").stdout)
    assert told.pop("seconds") >= 0
    assert told == {
        "ok": True,
        "model": "custom:test-model",
        "usage": {"input": 1000, "output": 1},
        "cost_usd": pytest.approx(0.003015),
    }
    usage = json.loads(talaria("usage", "--json").stdout)
    assert usage["total"]["cost_usd"] == pytest.approx(0.003015)


def test_try_takes_a_model_as_the_chat_does(talaria: Talaria, server: ModelServer, home: Path) -> None:
    server.say(one_token(), one_token())
    assert talaria("model", "try", "other").stdout.startswith("custom:other answered in ")
    assert talaria("model", "try", "custom:org/third:free").stdout.startswith("custom:org/third:free answered in ")
    assert [request.json["model"] for request in server.requests] == ["other", "org/third:free"]


def test_tokens_that_are_not_told_are_no_failure(talaria: Talaria, server: ModelServer) -> None:
    server.say(Reply("Hi", usage=None))
    ended = talaria("model", "try")
    assert (ended.returncode, "tokens unknown" in ended.stdout) == (0, True)


def test_model_that_fails_is_one_sentence_and_no_other_is_asked(talaria: Talaria, home: Path) -> None:
    with ModelServer() as server, ModelServer() as other:
        configure(
            home,
            f"""
model: {{default: m, base_url: '{server.base_url}', api_key: {KEY}}}
fallback_providers: {{provider: custom, model: spare, base_url: '{other.base_url}'}}
""",
        )
        server.say(Failure(401, {"error": {"message": f"Incorrect API key: {KEY}"}}))
        ended = talaria("model", "try")
        server.say(Failure(503))
        as_json = talaria("model", "try", "--json")
    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr.startswith("talaria: custom:m did not accept the API key (401: Incorrect API key: •••")
    assert (as_json.returncode, json.loads(as_json.stdout)["error"]["type"]) == (3, "Overloaded")
    assert (len(server.requests), other.requests) == (2, [])
    assert json.loads(talaria("usage", "--json").stdout)["rows"] == []


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (Reply(""), "custom:test-model sent an empty answer."),
        (Reply("", stop="content_filter"), "custom:test-model refused to answer."),
        (Reply("Hi", faults=Faults(cut_at=10)), "broke in the middle of an answer."),
    ],
)
def test_answer_that_is_none_is_a_failure(talaria: Talaria, server: ModelServer, reply: Reply, says: str) -> None:
    server.say(reply)
    ended = talaria("model", "try")
    assert (ended.returncode, says in ended.stderr) == (3, True), ended.stderr


def test_server_that_is_not_there_is_told(talaria: Talaria, home: Path) -> None:
    configure(home, f"model: {{default: m, base_url: '{NOWHERE}'}}")
    ended = talaria("model", "try")
    assert (ended.returncode, ended.stderr) == (3, f"talaria: {NOT_RUNNING}\n")


def test_what_the_endpoint_cannot_take_is_left_out_as_in_a_chat(talaria: Talaria, server: ModelServer) -> None:
    server.say(Failure(400, {"error": {"message": "Use 'max_completion_tokens' instead."}}), one_token())
    assert talaria("model", "try").returncode == 0
    assert [request.json.get("max_completion_tokens") for request in server.requests] == [None, 1]


def test_what_the_endpoint_still_cannot_take_is_told(talaria: Talaria, server: ModelServer) -> None:
    refusal = Failure(400, {"error": {"message": "Use 'max_completion_tokens' instead."}})
    server.say(refusal, refusal, refusal, refusal)
    ended = talaria("model", "try")
    assert ended.returncode == 3
    assert "max_completion_tokens" in ended.stderr


def test_who_refuses_one_token_is_asked_for_a_few(talaria: Talaria, server: ModelServer) -> None:
    server.say(Failure(400, {"error": {"message": "max_tokens: expected a value >= 16"}}), one_token())
    assert talaria("model", "try").returncode == 0
    assert [request.json["max_tokens"] for request in server.requests] == [1, 16]


# set


def test_set_tries_the_model_writes_it_and_keeps_comments(talaria: Talaria, home: Path) -> None:
    with ModelServer() as server:
        file = configure(
            home,
            f"# by hand\nmodel:\n  default: old   # the old one\n  base_url: {server.base_url}\n"
            "agent:\n  max_turns: 7\n",
        )
        server.say(one_token(), "Here I am.")
        ended = talaria("model", "set", "new")
        assert (ended.returncode, ended.stdout) == (0, "")
        assert re.fullmatch(
            r"custom:new answered in .*\n"
            rf"The default is now custom:new \(model\.default in {re.escape(str(file))}\)\.\n",
            ended.stderr,
        )
        assert file.read_text() == (
            f"# by hand\nmodel:\n  default: custom:new # the old one\n  base_url: {server.base_url}\n"
            "agent:\n  max_turns: 7\n"
        )
        assert talaria("-q", "x").stdout == "Here I am.\n"
        assert server.requests[-1].json["model"] == "new"


def test_model_that_does_not_answer_is_not_set_unless_one_insists(
    talaria: Talaria, server: ModelServer, home: Path
) -> None:
    file = home / "config.yaml"
    before = file.read_text()
    server.say(Failure(404))
    ended = talaria("model", "set", "typo")
    assert (ended.returncode, file.read_text()) == (3, before)
    assert ended.stderr.endswith(" Nothing was changed; `talaria model set typo --no-try` sets it anyway.\n")

    assert talaria("model", "set", "typo", "--no-try").returncode == 0
    assert talaria("config", "get", "model.default").stdout == "custom:typo\n"
    assert len(server.requests) == 1


def test_model_at_another_provider_does_not_inherit_the_address(talaria: Talaria, home: Path) -> None:
    with ModelServer() as mine, ModelServer(models=("qwen3:8b",)) as local:
        configure(home, f"model: {{default: m, base_url: '{mine.base_url}', api_key: {KEY}}}")
        local.say(one_token(), "Found me.")
        env = {"OLLAMA_BASE_URL": local.url}
        assert talaria("model", "set", "ollama:qwen3:8b", env=env).returncode == 0
        assert talaria("-q", "x", env=env).stdout == "Found me.\n"
    assert mine.requests == []
    assert not any(KEY in str(request.headers) for request in local.requests)


def test_provider_that_was_set_is_changed_with_the_model(talaria: Talaria, home: Path) -> None:
    configure(home, "model: {provider: groq, default: llama}")
    assert talaria("model", "set", "anthropic:claude-haiku-4-5", "--no-try").returncode == 0
    assert talaria("config", "get", "model.default").stdout == "anthropic:claude-haiku-4-5\n"
    assert talaria("config", "get", "model.provider").stdout == "anthropic\n"


def test_missing_key_stops_the_setting_and_is_only_mentioned_to_one_who_insists(talaria: Talaria, home: Path) -> None:
    ended = talaria("model", "set", "groq:")
    assert (ended.returncode, (home / "config.yaml").exists()) == (2, False)
    assert "put GROQ_API_KEY=… into .env" in ended.stderr
    assert "`talaria model set groq: --no-try` sets it anyway." in ended.stderr

    insisted = talaria("model", "set", "groq:", "--no-try")
    assert (insisted.returncode, "put GROQ_API_KEY=… into .env" in insisted.stderr) == (0, True)
    assert talaria("config", "get", "model.default").stdout == "groq:llama-3.3-70b-versatile\n"


def test_unknown_provider_is_not_set(talaria: Talaria, home: Path) -> None:
    for insisting in ([], ["--no-try"]):
        ended = talaria("model", "set", "antropic:claude", *insisting)
        assert (ended.returncode, (home / "config.yaml").exists()) == (2, False)
        assert "did you mean 'anthropic'?" in ended.stderr


def test_model_without_an_address_is_not_set_even_if_one_insists(talaria: Talaria, home: Path) -> None:
    ended = talaria("model", "set", "some-model", "--no-try")
    assert (ended.returncode, (home / "config.yaml").exists()) == (2, False)
    assert "set model.base_url in config.yaml" in ended.stderr


def test_demo_can_be_chosen(talaria: Talaria) -> None:
    assert talaria("model", "set", "demo").returncode == 0
    assert talaria("model").stdout.endswith("\n* The default is demo:demo.\n")
