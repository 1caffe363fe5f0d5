"""`talaria config`, `talaria doctor`, profiles and the version."""

import json
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import talaria as package
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.replies import Failure

Talaria = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize("arguments", [["--version"], ["-V"], ["-p", "work", "--version"]])
def test_version_is_told(talaria: Talaria, arguments: list[str]) -> None:
    ended = talaria(*arguments)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"talaria {package.__version__}\n", "")


@pytest.mark.parametrize("arguments", [["-h"], ["--help"], ["chat", "--help"], ["sessions", "--help"]])
def test_help_is_there(talaria: Talaria, home: Path, arguments: list[str]) -> None:
    ended = talaria(*arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("Usage: talaria")
    assert not home.exists()


def test_path_is_where_the_settings_are(talaria: Talaria, home: Path) -> None:
    assert talaria("config", "path").stdout == f"{home}/config.yaml\n"
    assert talaria("-p", "work", "config", "path").stdout == f"{home}/profiles/work/config.yaml\n"


def test_what_is_set_can_be_read_and_secrets_are_masked(talaria: Talaria, home: Path) -> None:
    assert (
        talaria("config", "set", "model.default", "groq:llama").stderr == f"Set model.default in {home}/config.yaml.\n"
    )
    talaria("config", "set", "model.api_key", "sk-hush")
    assert talaria("config", "get", "model.default").stdout == "groq:llama\n"
    assert talaria("config", "get", "agent.max_turns").stdout == "60\n"
    everything = json.loads(talaria("config", "get").stdout)
    assert (everything["model"]["api_key"], everything["agent"]["max_turns"]) == ("•••", 60)
    assert "sk-hush" not in json.dumps(everything)


def test_headers_are_secrets_too(talaria: Talaria, server: ModelServer, home: Path) -> None:
    with (home / "config.yaml").open("a") as settings:
        settings.write("providers: {custom: {headers: {Authorization: Bearer sk-hush}}}")
    server.say("ok")

    assert talaria("-q", "x").stdout == "ok\n"
    assert server.requests[0].headers["authorization"] == "Bearer sk-hush"
    told = [talaria("config", "get"), talaria("config", "get", "providers.custom.headers"), talaria("doctor")]
    assert json.loads(told[1].stdout) == {"Authorization": "•••"}
    assert not any("sk-hush" in ended.stdout + ended.stderr for ended in told)


def test_key_goes_to_the_file_for_secrets(talaria: Talaria, home: Path) -> None:
    ended = talaria("config", "set", "OPENROUTER_API_KEY", "sk-or-1")
    assert (ended.returncode, ended.stderr) == (0, f"Set OPENROUTER_API_KEY in {home}/.env.\n")
    assert stat.S_IMODE((home / ".env").stat().st_mode) == 0o600
    assert not (home / "config.yaml").exists()
    assert (home / ".env").read_text() == "OPENROUTER_API_KEY=sk-or-1\n"


def test_check_says_that_all_is_well(talaria: Talaria) -> None:
    ended = talaria("config", "check")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "The settings are in order.\n")


def test_profile_has_a_home_of_its_own(talaria: Talaria, home: Path) -> None:
    talaria("-p", "work", "-m", "demo", "-q", "hello from work")
    talaria("-pwork", "-m", "demo", "-q", "again")
    talaria("chat", "-p", "work", "-m", "demo", "-q", "and again")
    assert (home / "profiles/work/state.db").exists()
    assert not (home / "state.db").exists()
    assert talaria("--profile=work", "sessions", "list").stdout.count("\n") == 3
    assert talaria("sessions", "list").stdout == ""


def test_doctor_finds_everything_in_order(talaria: Talaria, server: ModelServer) -> None:
    ended = talaria("doctor")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"  ok  model: custom:test-model answers at {server.base_url}\n" in ended.stdout
    assert "  ok  store: SQLite " in ended.stdout


def test_doctor_tells_a_stand_in_from_a_choice(talaria: Talaria) -> None:
    assert "warn  model: demo: no API key and no local model server found\n" in talaria("doctor").stdout
    talaria("config", "set", "model.default", "demo")
    assert "  ok  model: demo, a scripted stand-in, as you asked for\n" in talaria("doctor").stdout


@pytest.mark.parametrize(("status", "says"), [(401, "did not accept the API key"), (503, "is in trouble")])
def test_doctor_tells_that_the_endpoint_refuses(talaria: Talaria, home: Path, status: int, says: str) -> None:
    with ModelServer(listing=Failure(status)) as server:
        home.mkdir(exist_ok=True)
        (home / "config.yaml").write_text(f"model: {{default: m, base_url: '{server.base_url}'}}")
        ended = talaria("doctor")
    assert ended.returncode == 2
    assert says in ended.stdout


def test_doctor_tells_that_the_endpoint_is_not_there(talaria: Talaria, home: Path) -> None:
    home.mkdir(exist_ok=True)
    (home / "config.yaml").write_text("model: {default: m, base_url: 'http://127.0.0.1:9/v1'}")
    assert "fail  model: Cannot reach 127.0.0.1:9: Connection refused." in talaria("doctor").stdout


def test_doctor_as_json_is_a_list_of_findings(talaria: Talaria, server: ModelServer) -> None:
    findings = json.loads(talaria("doctor", "--json").stdout)
    verdicts = {finding["subject"]: finding["verdict"] for finding in findings}
    verdicts.pop("user", None)  # of root
    assert verdicts == dict.fromkeys(("talaria", "home", "settings", "store", "model", "sandbox"), "ok")


@pytest.mark.parametrize(
    ("config", "subject", "says"),
    [
        ("modle: {}", "settings", "did you mean 'model'?"),
        ("model: {provider: groq}", "model", "GROQ_API_KEY"),
        ("model: [", "settings", "is not valid YAML at line "),
    ],
)
def test_doctor_tells_what_is_wrong_and_goes_on(
    talaria: Talaria, home: Path, config: str, subject: str, says: str
) -> None:
    home.mkdir()
    (home / "config.yaml").write_text(config)
    ended = talaria("doctor", "--json")
    found = {finding["subject"]: finding for finding in json.loads(ended.stdout)}
    assert ended.returncode == 2
    assert (found[subject]["verdict"], found["store"]["verdict"]) == ("fail", "ok")
    assert says in found[subject]["text"]


def test_doctor_tells_of_damage_and_of_a_home_that_is_none(talaria: Talaria, home: Path) -> None:
    home.mkdir()
    (home / "state.db").write_text("Dear diary, " * 1_000)
    damaged = talaria("doctor")
    nowhere = talaria("doctor", env={"TALARIA_HOME": str(home / "state.db" / "home")})
    assert (damaged.returncode, nowhere.returncode) == (2, 2)
    assert f"fail  store: {home}/state.db is damaged" in damaged.stdout
    assert f"fail  home: {home}/state.db is no writable folder; make it one, or set TALARIA_HOME" in nowhere.stdout
    assert (home / "state.db").read_text() == "Dear diary, " * 1_000
