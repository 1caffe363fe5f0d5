"""`talaria config`, profiles and the version."""

import json
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import talaria as package
from talaria.testing.servers.model_server import ModelServer

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
    talaria("profiles", "create", "work")
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
    talaria("profiles", "create", "work")
    talaria("-p", "work", "-m", "demo", "-q", "hello from work")
    talaria("-pwork", "-m", "demo", "-q", "again")
    talaria("chat", "-p", "work", "-m", "demo", "-q", "and again")
    assert (home / "profiles/work/state.db").exists()
    assert not (home / "state.db").exists()
    assert talaria("--profile=work", "sessions", "list").stdout.count("\n") == 3
    assert talaria("sessions", "list").stdout == ""
