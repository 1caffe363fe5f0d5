"""`talaria setup` at a real terminal, and without one."""

import json
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.scenarios.typescript import Terminal

from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Failure, Faults, Reply

Talaria = Callable[..., subprocess.CompletedProcess[str]]

KEY = "sk-hush-0123456789-abcdef"
NO_WAY_OUT = {"HTTPS_PROXY": "http://127.0.0.1:9"}


Setup = Callable[..., Terminal]


@pytest.fixture
def setup(environment: dict[str, str]) -> Iterator[Setup]:
    """`setup("--provider", "groq", env={"X": "y"})`"""
    with ExitStack() as stack:

        def start(*arguments: str, env: dict[str, str] | None = None) -> Terminal:
            return stack.enter_context(Terminal({**environment, **(env or {})}, "setup", *arguments))

        yield start


@pytest.fixture
def model() -> Iterator[ModelServer]:
    """Somewhere, and in nobody's settings."""
    with ModelServer(models=("qwen3:8b", "other")) as running:
        yield running


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_one_enter_makes_a_local_server_the_default(
    setup: Setup, talaria: Talaria, home: Path, model: ModelServer
) -> None:
    model.say("Hi", "It works.")
    near = {"OLLAMA_BASE_URL": model.url}
    terminal = setup(env=near)
    terminal.answer("Use ollama:qwen3:8b? [Y/n]", "\n")
    terminal.see("ollama:qwen3:8b answered in ")
    terminal.see(f"Saved: model.default in {home}/config.yaml.")
    assert terminal.end() == 0
    assert f"Found: ollama (answers at {model.url.removeprefix('http://')})." in terminal.screen
    assert "talaria gateway platforms" in terminal.screen
    assert "Sandbox for commands: " in terminal.screen

    text = (home / "config.yaml").read_text()
    assert text.startswith("# Settings of Talaria.")
    assert text.endswith("model:\n  default: ollama:qwen3:8b\n")
    assert (mode(home), mode(home / "config.yaml"), (home / ".env").exists()) == (0o700, 0o600, False)
    assert talaria("config", "check").returncode == 0
    assert talaria("chat", "-q", "hi", env=near).stdout == "It works.\n"


def test_suggestions_in_a_new_file_are_settings_that_there_are(talaria: Talaria, home: Path) -> None:
    talaria("setup", "--provider", "demo")
    file = home / "config.yaml"
    suggested = [
        line.removeprefix("#   ") for line in file.read_text().splitlines() if line[:4] == "#   " and line[4] != " "
    ]
    settings = [f"{line[: max(line.rfind('}'), line.rfind(']')) + 1]}\n" for line in suggested]
    file.write_text("".join(settings))
    checked = talaria("config", "check")
    assert (len(settings), checked.stderr) == (4, "The settings are valid.\n")


def test_key_is_tried_refused_and_typed_again_and_nobody_sees_it(
    setup: Setup, talaria: Talaria, home: Path, model: ModelServer
) -> None:
    model.say(Failure(401), "Hi", "At your service.")
    terminal = setup()
    terminal.answer("Which? ", "custom\n")
    terminal.answer("Its address", f"{model.base_url}\n")
    terminal.answer("Enter: no key) ", "wrong-key-0123456789\n")
    terminal.see("Available models: other, qwen3:8b")
    terminal.answer("Which model? (Enter: other) ", "qwen3:8b\n")
    terminal.see("did not accept the API key")
    terminal.answer("[a]gain, [o]ther, [k]eep it anyway, [S]kip: ", "a\n")
    terminal.answer("Enter: the same) ", f"{KEY}\n")
    terminal.see("custom:qwen3:8b answered in ")
    assert terminal.end() == 0
    calls = [request.headers["authorization"] for request in model.requests if request.method == "POST"]
    assert calls == ["Bearer wrong-key-0123456789", f"Bearer {KEY}"]

    config = (home / "config.yaml").read_text()
    assert KEY not in terminal.screen + config
    assert "wrong-key" not in terminal.screen + config
    assert (home / ".env").read_text() == f"CUSTOM_API_KEY={KEY}\n"
    assert mode(home / ".env") == 0o600
    assert talaria("chat", "-q", "hi").stdout == "At your service.\n"
    assert model.requests[-1].headers["authorization"] == f"Bearer {KEY}"


def test_another_is_chosen_when_the_first_does_not_answer(setup: Setup, home: Path, model: ModelServer) -> None:
    model.say(Failure(401), "Hi")
    terminal = setup(env={"OLLAMA_BASE_URL": model.url, "GROQ_API_KEY": KEY, **NO_WAY_OUT})
    terminal.answer("Use groq:llama-3.3-70b-versatile? [Y/n]", "y\n")
    terminal.see("Cannot reach ")
    terminal.answer("[a]gain, [o]ther", "o\n")
    terminal.answer("Which? ", "nobody\n")
    terminal.answer("'nobody' is not in the list.", "")
    terminal.answer("Which? ", "olama:other\n")
    terminal.answer("did you mean 'ollama'?", "")
    terminal.answer("Which? ", "ollama:other\n")
    terminal.see("did not accept the API key")
    terminal.answer("[a]gain, [o]ther", "?\n")
    terminal.answer("That is not one of the answers.", "")
    terminal.answer("[a]gain, [o]ther", "a\n")
    terminal.answer("Enter: the same) ", "\n")
    terminal.see("ollama:other answered in ")
    assert terminal.end() == 0
    assert (home / "config.yaml").read_text().endswith("default: ollama:other\n")
    assert not (home / ".env").exists()
    assert KEY not in terminal.screen


def test_server_that_does_not_run_is_told_before_its_model_is_asked_for(setup: Setup, home: Path) -> None:
    terminal = setup(env={"OLLAMA_BASE_URL": "http://127.0.0.1:9"})
    terminal.answer("Which? ", "ollama\n")
    terminal.see("ollama was not asked: nothing listens at 127.0.0.1:9.")
    terminal.answer("Which model? (Enter: back) ", "\n")
    terminal.answer("Which? ", "\n")
    assert terminal.end() == 0
    assert not home.exists()


def test_key_that_cannot_be_tried_is_kept_if_the_person_says_so(setup: Setup, home: Path) -> None:
    terminal = setup(env=NO_WAY_OUT)
    terminal.answer("Which? ", "groq\n")
    terminal.answer("API key for Groq (create one at https://console.groq.com/keys; not shown; Enter: back) ", "\n")
    terminal.answer("Which? ", "groq\n")
    terminal.answer("Enter: back) ", f"{KEY}\n")
    terminal.see("Cannot reach ")
    terminal.answer("[k]eep it anyway", "k\n")
    terminal.see(f"Saved: GROQ_API_KEY in {home}/.env; model.default in {home}/config.yaml.")
    assert terminal.end() == 0
    assert (home / ".env").read_text() == f"GROQ_API_KEY={KEY}\n"
    config = (home / "config.yaml").read_text()
    assert config.endswith("default: groq:llama-3.3-70b-versatile\n")
    assert KEY not in terminal.screen + config


def test_refused_key_of_the_environment_cannot_be_replaced_by_one_that_would_not_count(
    setup: Setup, model: ModelServer
) -> None:
    model.say(Failure(401))
    terminal = setup(env={"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": KEY})
    terminal.answer("Use openai:gpt-5? [Y/n]", "\n")
    model.say(Failure(401))
    terminal.answer("[a]gain, [o]ther", "a\n")
    terminal.see("Its key comes from the environment, which takes precedence over .env: change it there.")
    terminal.answer("[a]gain, [o]ther", "s\n")
    assert terminal.end() == 0
    assert KEY not in terminal.screen


def test_settings_that_are_there_keep_their_comments(setup: Setup, home: Path, model: ModelServer) -> None:
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text("# mine\nagent:\n  max_turns: 7  # lucky\nmodel:\n  default: groq:gone\n")
    model.say("Hi")
    terminal = setup("--base-url", model.base_url, "--model", "other")
    terminal.see("custom:other answered in ")
    assert terminal.end() == 0
    assert (home / "config.yaml").read_text() == (
        "# mine\nagent:\n  max_turns: 7  # lucky\nmodel:\n  default: custom:other\n"
        f"providers:\n  custom:\n    base_url: {model.base_url}\n"
    )


@pytest.mark.parametrize(("keys", "code"), [("\x03", 130), ("\x04", 0), ("s\n", 0)], ids=["ctrl-c", "ctrl-d", "skip"])
def test_leaving_at_the_first_question_changes_nothing(
    setup: Setup, home: Path, model: ModelServer, keys: str, code: int
) -> None:
    terminal = setup(env={"OLLAMA_BASE_URL": model.url})
    terminal.answer("Use ollama:qwen3:8b? [Y/n] (s: skip) ", keys)
    terminal.see("Nothing was changed")
    assert terminal.end() == code
    assert not home.exists()
    assert not [request for request in model.requests if request.method == "POST"]


@pytest.mark.parametrize(("keys", "code"), [("\x03", 130), ("\x04", 0)], ids=["ctrl-c", "ctrl-d"])
def test_leaving_while_a_key_is_typed_writes_nothing(setup: Setup, home: Path, keys: str, code: int) -> None:
    terminal = setup()
    terminal.answer("Which? ", "groq\n")
    terminal.answer("Enter: back) ", keys)
    terminal.see("Nothing was changed")
    assert terminal.end() == code
    assert not home.exists()


def test_leaving_during_the_call_writes_neither_key_nor_setting(setup: Setup, home: Path, model: ModelServer) -> None:
    model.say(Reply(faults=Faults(hang=True)))
    terminal = setup("--provider", "custom", "--base-url", model.base_url, "--model", "other")
    terminal.see("Trying custom:other …")
    model.wait_for_requests(1)
    terminal.answer("", "\x03")
    terminal.see("Nothing was changed")
    assert terminal.end() == 130
    assert not (home / "config.yaml").exists()
    assert not (home / ".env").exists()


def test_skipping_after_a_failure_changes_nothing(setup: Setup, home: Path, model: ModelServer) -> None:
    model.say(Failure(400))
    terminal = setup(env={"OLLAMA_BASE_URL": model.url})
    terminal.answer("Use ollama:qwen3:8b?", "\n")
    terminal.answer("[S]kip: ", "\n")
    terminal.see("Nothing was changed")
    assert terminal.end() == 0
    assert not (home / "config.yaml").exists()


@pytest.fixture
def hermes(tmp_path: Path) -> Path:
    root = tmp_path / ".hermes"
    root.mkdir()
    (root / "SOUL.md").write_text("Be brief.\n")
    (root / "config.yaml").write_text("model: {default: gone-model, provider: groq}\n")
    (root / ".env").write_text(f"GROQ_API_KEY={KEY}\n")
    return root


def test_hermes_home_is_brought_along_with_its_keys_if_asked_for(setup: Setup, home: Path, hermes: Path) -> None:
    terminal = setup(env=NO_WAY_OUT)
    terminal.see(f"Found a Hermes home at {hermes}")
    terminal.answer("yes with its [k]eys, [N]o: ", "k\n")
    terminal.answer("Use groq:gone-model? [Y/n]", "s\n")
    terminal.see(f"Saved: what was imported from {hermes}.")
    assert terminal.end() == 0
    assert (home / "SOUL.md").read_text() == "Be brief.\n"
    assert (home / ".env").read_text() == f"GROQ_API_KEY={KEY}\n"
    assert KEY not in terminal.screen

    again = setup(env=NO_WAY_OUT)
    again.answer("Use groq:gone-model? [Y/n]", "s\n")
    assert again.end() == 0
    assert "Hermes" not in again.screen


def test_hermes_home_is_left_alone_unless_asked_for(setup: Setup, home: Path, hermes: Path) -> None:
    terminal = setup()
    terminal.answer("yes with its [k]eys, [N]o: ", "\n")
    terminal.see("You can do that later with `talaria import hermes`.")
    terminal.answer("Which? ", "\n")
    terminal.see("Nothing was changed")
    assert terminal.end() == 0
    assert not home.exists()


def test_without_a_terminal_the_clear_choice_is_taken(talaria: Talaria, home: Path, model: ModelServer) -> None:
    model.say("Hi")
    ended = talaria("setup", env={"OLLAMA_BASE_URL": model.url})
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "Found: ollama (answers at " in ended.stderr
    assert f"Saved: model.default in {home}/config.yaml." in ended.stderr
    assert json.loads(talaria("config", "get", "model").stdout)["default"] == "ollama:qwen3:8b"


def test_without_a_terminal_and_a_choice_it_says_what_to_set(talaria: Talaria, home: Path) -> None:
    ended = talaria("setup")
    assert ended.returncode == 2
    assert "talaria: No model was chosen: set one of OPENROUTER_API_KEY, ANTHROPIC_API_KEY, " in ended.stderr
    assert not home.exists()


def test_options_say_it_all_also_at_a_terminal(setup: Setup, home: Path, model: ModelServer) -> None:
    model.say("Hi")
    terminal = setup("--non-interactive", "--provider", "llama.cpp", "--base-url", model.base_url)
    terminal.see("llama.cpp:other answered in ")
    assert terminal.end() == 0
    assert (
        (home / "config.yaml")
        .read_text()
        .endswith(f"model:\n  default: llama.cpp:other\n  base_url: {model.base_url}\n")
    )


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--provider", "grok"], 2, "did you mean 'groq'?"),
        (["--model", "large"], 2, "The provider of large is not clear: give --provider NAME"),
        (["--provider", "groq"], 2, "GROQ_API_KEY"),
        (["--base-url", "http://127.0.0.1:9/v1", "--model", "m"], 3, "Nothing was changed."),
        (["--base-url", "elsewhere", "--model", "m"], 2, "is missing or not http(s)"),
    ],
)
def test_what_cannot_be_used_is_not_written(
    talaria: Talaria, home: Path, arguments: list[str], code: int, says: str
) -> None:
    ended = talaria("setup", *arguments)
    assert ended.returncode == code
    assert says in ended.stderr
    assert not (home / "config.yaml").exists()
