"""Every mistake of a person ends in one clear sentence, never in a traceback, and costs nothing that was there."""

import ctypes
import json
import os
import re
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.ports import reserved_port

from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Failure

Talaria = Callable[..., subprocess.CompletedProcess[str]]


def sentence(ended: subprocess.CompletedProcess[str]) -> str:
    """The one that was said on stderr."""
    assert "Traceback" not in ended.stderr
    assert "Internal error" not in ended.stderr
    said = [line for line in ended.stderr.splitlines() if line.startswith(("talaria: ", "Error: "))]
    assert len(said) == 1, ended.stderr
    return said[0].partition(": ")[2]


def assert_told_as_json(ended: subprocess.CompletedProcess[str]) -> None:
    told = json.loads(ended.stdout)
    assert (told["ok"], told["error"]["message"]) == (False, sentence(ended))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("modle: {default: x}", ["config.yaml", "'modle'", "did you mean 'model'?"]),
        ("agent: {max_turns: many}", ["config.yaml", "agent.max_turns", "Expected `int`"]),
        ("model: [unclosed", ["config.yaml", "not valid YAML at line"]),
        ("- a list", ["config.yaml", "must hold settings"]),
        ("model: {provider: groq}", ["GROQ_API_KEY", ".env", "talaria config set GROQ_API_KEY"]),
        ("model: {provider: opnai}", ["'opnai'", "did you mean 'openai'?", "model.provider in config.yaml"]),
        ("model: {base_url: 'http://127.0.0.1:9'}", ["No model is set", "model.default", "config.yaml"]),
        ("model: {base_url: 'localhost:9', default: m}", ["not http(s)", "model.base_url", "config.yaml"]),
        ("model: {api_key: '${MISSING}'}", ["config.yaml", "model.api_key", "${MISSING}", ".env"]),
    ],
)
def test_wrong_setting_is_told_with_its_name_and_the_way_out(
    talaria: Talaria, home: Path, config: str, says: list[str]
) -> None:
    home.mkdir()
    (home / "config.yaml").write_text(config)

    ended = talaria("-q", "x", "--output-format", "json")

    assert ended.returncode == 2
    assert all(part in sentence(ended) for part in says), ended.stderr
    assert_told_as_json(ended)
    assert (home / "config.yaml").read_text() == config


@pytest.mark.parametrize(
    ("command", "code"), [(["-q", "x"], 2), (["config", "check"], 2), (["config", "get", "agent.max_turns"], 0)]
)
def test_secrets_that_others_can_read_are_told_by_every_command_that_needs_them(
    talaria: Talaria, home: Path, command: list[str], code: int
) -> None:
    home.mkdir()
    (home / ".env").write_text("GROQ_API_KEY=sk-hush\n")
    (home / ".env").chmod(0o644)

    ended = talaria(*command)

    assert (ended.returncode, ended.stdout) == (code, "" if code else "60\n")
    told = f"{home}/.env can be read by other users; `chmod 600 {home}/.env` makes it private."
    assert sentence(ended).removesuffix(" `talaria doctor` says what to do.") == told
    assert ("talaria doctor" in ended.stderr) == (command == ["-q", "x"])


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("model: {default: 'opennai:gpt-5'}", ["'opennai'", "did you mean 'openai'?"]),
        ("model: {default: 'foo:bar'}", ["There is no provider 'foo' (in 'foo:bar')", "anthropic"]),
        ("model: {default: 'openai:gpt-5'}", ["OPENAI_API_KEY", ".env"]),
        ("model: {default: some-model}", ["model.base_url", "-m provider:model"]),
        ("agent: {max_turns: -3}", ["config.yaml", "agent.max_turns", ">= 1"]),
        ("limits: {turn: {seconds: -1}}", ["config.yaml", "limits.turn.seconds", "> 0"]),
        (
            "{limits: {turn: {cost_usd: 1}}, model: {default: m, base_url: 'http://127.0.0.1:9/v1'}}",
            ["No price is known for m", "providers.custom.models.m.prices", "cost_usd"],
        ),
    ],
)
def test_check_tells_what_would_stop_a_chat(talaria: Talaria, home: Path, config: str, says: list[str]) -> None:
    home.mkdir()
    (home / "config.yaml").write_text(config)
    checked, asked = talaria("config", "check"), talaria("-q", "x")
    assert (checked.returncode, asked.returncode) == (2, 2)
    assert sentence(checked) == sentence(asked).removesuffix(" `talaria doctor` says what to do.")
    assert all(part in sentence(checked) for part in says), checked.stderr


def test_typo_in_the_settings_does_not_lock_conversations_away(talaria: Talaria, home: Path) -> None:
    talaria("-m", "demo", "-q", "hello")
    (home / "config.yaml").write_text("modle: {}")
    ended = talaria("sessions", "list")
    assert (ended.returncode, ended.stderr, ended.stdout.count("hello")) == (0, "", 1)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["-q", ""], 2, ["question is empty"]),
        (["-q", "  "], 2, ["question is empty"]),
        (["-q", "x", "-r", "nope"], 2, ["no session called 'nope'", "talaria sessions list"]),
        (["-q", "x", "--image", "missing.png"], 2, ["Cannot read the image missing.png", "No such file"]),
        (["-q", "x", "--image", "no-image.png"], 2, ["no-image.png is not a PNG, JPEG, GIF or WebP image"]),
        (["--image", "no-image.png"], 2, ["--image needs a question", "-q"]),
        (["-q", "x", "-m", "groq:m"], 2, ["GROQ_API_KEY", ".env"]),
        (["-q", "x", "-m", "some-model"], 2, ["model.base_url", "-m provider:model"]),
        (["-q", "x", "-m", "foo:bar"], 2, ["There is no provider 'foo' (in 'foo:bar')", "ollama", "anthropic"]),
        (["-p", "../up", "-q", "x"], 2, ["'../up' is not a profile name", "letters"]),
        (["nonsense"], 2, ["No such command 'nonsense'"]),
        (["-q", "x", "--max-turns", "0"], 2, ["--max-turns", "0 is not in the range"]),
        (["-q", "x", "--nonsense"], 2, ["No such option", "--nonsense"]),
        (["-q"], 2, ["-q", "requires an argument"]),
        (["config", "get", "model.nonsense"], 2, ["no setting 'model.nonsense'", "talaria config get"]),
        (["config", "set", "agent.max_turns", "x"], 2, ["config.yaml", "agent.max_turns"]),
        (["sessions", "search"], 2, ["Missing argument"]),
    ],
)
def test_wrong_argument_is_told_in_a_sentence(
    talaria: Talaria, environment: dict[str, str], arguments: list[str], code: int, says: list[str]
) -> None:
    Path(environment["PWD"], "no-image.png").write_text("words")
    ended = talaria(*arguments)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert all(part in sentence(ended) for part in says), ended.stderr


@pytest.mark.parametrize(
    "command", [["-q", "x", "-m", "demo"], ["sessions", "list"], ["config", "set", "model.default", "x"]]
)
def test_home_that_cannot_be_made_is_told(talaria: Talaria, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    for home in (tmp_path / "file", tmp_path / "file" / "home", Path("/proc/nope")):
        ended = talaria(*command, env={"TALARIA_HOME": str(home)})
        assert ended.returncode == 2
        assert str(home) in sentence(ended)
        assert "TALARIA_HOME" in sentence(ended)
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.fixture
def unreachable(home: Path) -> Iterator[None]:
    """An endpoint where nobody listens."""
    home.mkdir()
    with reserved_port() as port:
        (home / "config.yaml").write_text(f"model: {{default: m, base_url: 'http://127.0.0.1:{port}/v1'}}\n")
        yield


@pytest.mark.parametrize("format", ["text", "json"])
@pytest.mark.usefixtures("unreachable")
def test_endpoint_that_is_not_there_is_told_and_the_question_is_kept(talaria: Talaria, format: str) -> None:
    ended = talaria("-q", "important question", "--output-format", format)
    assert ended.returncode == 3
    assert re.match(r"Nothing is listening on 127\.0\.0\.1:\d+\. Start the server,", sentence(ended))
    if format == "json":
        assert_told_as_json(ended)
    assert "important question" in talaria("sessions", "list").stdout


@pytest.mark.usefixtures("unreachable")
def test_failing_stream_ends_with_a_line_that_says_so(talaria: Talaria) -> None:
    ended = talaria("-q", "x", "--output-format", "stream-json")
    last = json.loads(ended.stdout.splitlines()[-1])
    assert (ended.returncode, last["type"], last["outcome"]) == (3, "turn_done", "failed")
    assert last["error"] == sentence(ended)


@pytest.mark.parametrize(("status", "says"), [(401, "key"), (404, "404"), (400, "400")])
def test_endpoint_that_says_no_is_told_with_its_reason(
    talaria: Talaria, server: ModelServer, status: int, says: str
) -> None:
    server.say(Failure(status))
    ended = talaria("-q", "x", "--output-format", "json")
    assert ended.returncode == 3
    assert_told_as_json(ended)
    assert says in sentence(ended)


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "garbage%%", "http://", "127.0.0.1:9", "ftp://x:y@z:1"])
def test_proxy_that_is_none_is_told_in_a_sentence(talaria: Talaria, home: Path, proxy: str) -> None:
    home.mkdir()
    (home / "config.yaml").write_text(
        "model: {default: m, base_url: 'https://llm.invalid/v1'}\nlimits: {turn: {seconds: 1}}\n"
    )
    ended = talaria("-q", "x", env={"HTTPS_PROXY": proxy})
    assert ended.returncode in (2, 3)
    assert "llm.invalid" in sentence(ended) or "HTTPS_PROXY" in sentence(ended)


def without_rights_of_root() -> None:
    """In the child: permissions count for root as well."""
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


def test_conversation_on_a_read_only_disk_is_told_and_not_touched(talaria: Talaria, home: Path) -> None:
    id = json.loads(talaria("-m", "demo", "-q", "hello", "--output-format", "json").stdout)["session"]
    before = (home / "state.db").read_bytes()
    for path in (home, *home.iterdir()):
        path.chmod(0o500 if path.is_dir() else 0o400)

    ended = talaria("-m", "demo", "-r", id, "-q", "more", "--output-format", "json", preexec_fn=without_rights_of_root)

    home.chmod(0o700)
    assert ended.returncode == 4
    assert f"Cannot use {home}/state.db" in sentence(ended)
    assert "make it writable" in sentence(ended)
    assert_told_as_json(ended)
    assert (home / "state.db").read_bytes() == before


def test_home_of_a_newer_version_is_told_and_not_touched(talaria: Talaria, home: Path) -> None:
    talaria("-m", "demo", "-q", "hello")
    with closing(sqlite3.connect(home / "state.db")) as database:
        database.execute("PRAGMA user_version = 99")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = (home / "state.db").read_bytes()

    for command in (["-m", "demo", "-q", "x", "--output-format", "json"], ["sessions", "list", "--json"]):
        ended = talaria(*command)
        assert ended.returncode == 4
        assert f"{home}/state.db was written by a newer Talaria (schema 99" in sentence(ended)
        assert "Update Talaria" in sentence(ended)
        assert_told_as_json(ended)
    assert (home / "state.db").read_bytes() == before


def test_damaged_store_is_told_and_not_touched(talaria: Talaria, home: Path) -> None:
    home.mkdir()
    damage = os.urandom(20_000)
    (home / "state.db").write_bytes(damage)

    for command in (["-m", "demo", "-q", "x", "--output-format", "json"], ["sessions", "list", "--json"]):
        ended = talaria(*command)
        assert ended.returncode == 4
        assert f"{home}/state.db is damaged" in sentence(ended)
        assert "restore a backup" in sentence(ended)
        assert_told_as_json(ended)
    assert (home / "state.db").read_bytes() == damage
