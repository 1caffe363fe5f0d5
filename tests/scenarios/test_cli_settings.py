"""`talaria config`, profiles and the version."""

import json
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import talaria as package
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Reply, call

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
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "The settings are valid.\n")


def test_profile_has_a_home_of_its_own(talaria: Talaria, home: Path) -> None:
    talaria("profiles", "create", "work")
    talaria("-p", "work", "-m", "demo", "-q", "hello from work")
    talaria("-pwork", "-m", "demo", "-q", "again")
    talaria("chat", "-p", "work", "-m", "demo", "-q", "and again")
    assert (home / "profiles/work/state.db").exists()
    assert not (home / "state.db").exists()
    assert talaria("--profile=work", "sessions", "list").stdout.count("\n") == 3
    assert talaria("sessions", "list").stdout == ""


def test_what_is_set_for_a_project_reaches_its_next_session_and_no_other(
    talaria: Talaria, server: ModelServer, home: Path, environment: dict[str, str]
) -> None:
    work, variables = Path(environment["PWD"]), {"SHOP_MODE": "here", "OTHER_MODE": "everywhere"}
    talaria("config", "set", "terminal.env", "[OTHER_MODE]")
    told = talaria("config", "set", "--project", "terminal.env", "[SHOP_MODE]")
    file = Path(talaria("config", "path", "--project").stdout.strip())
    holds = "It applies to conversations that you start there from now on."
    assert told.stderr == f"Set terminal.env for {work} in {file}. {holds}\n"
    assert file.is_relative_to(home / "projects")
    assert [*work.iterdir()] == []
    assert json.loads(talaria("config", "get", "--project", "terminal.env").stdout) == ["SHOP_MODE"]
    assert json.loads(talaria("config", "get", "terminal.env").stdout) == ["OTHER_MODE"]

    for said in ("[here] []", "[] [everywhere]"):
        server.say(Reply(calls=(call("terminal", command='echo "[$SHOP_MODE] [$OTHER_MODE]"'),)), "ok")
        assert talaria("-q", "x", env=variables).stdout == "ok\n"
        assert said in str(server.requests[-1].body)
        talaria("config", "unset", "--project", "terminal.env")
    assert json.loads(talaria("config", "get", "--project").stdout) == {}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("model.default", "groq:llama", "model.default cannot be set for one project; these can: terminal.read"),
        ("terminal.backend", "local", "terminal.backend cannot be set for one project"),
        ("OPENAI_API_KEY", "sk-1", "OPENAI_API_KEY cannot be set for one project"),
        ("terminal.env", "[GH_TOKEN]", "terminal.env lists 'GH_TOKEN', which is named like a secret"),
        ("terminal.cache_gb", "lots", "terminal.cache_gb is wrong"),
        ("terminal.network", "http://pypi.org/", "'http://pypi.org/' is not the name of a host"),
        ("terminal.network", "{a: b}", "Write a list in brackets"),
        (
            "terminal.network",
            "[localhost]",
            "'localhost' is this machine itself: list the port of the service in `ports`",
        ),
        ("terminal.network", "['https://pypi.org']", "'https://pypi.org' is not the name of a host, such as pypi.org"),
        ("terminal.network", "['']", "'' is not the name of a host"),
        ("terminal.network", "[py*.org]", "'py*.org' is not the name of a host"),
        ("terminal.ports", "[0]", "terminal.ports[0] is wrong: Expected `int` >= 1"),
        ("terminal.ports", "[http]", "terminal.ports[0] is wrong"),
        ("terminal.write", "[../beside]", "write: '../beside' is not a full path; begin it with / or ~/"),
        ("terminal.read", "[~nobody-here/x]", "read: '~nobody-here/x' begins with the name of an unknown user"),
    ],
)
def test_what_cannot_hold_in_one_project_is_refused(
    talaria: Talaria, home: Path, key: str, value: str, said: str
) -> None:
    ended = talaria("config", "set", "--project", key, value)
    assert (ended.returncode, said in ended.stderr, ended.stderr.count("\n")) == (2, True, 1)
    assert not [*home.glob("projects/*/config.yaml")]


def test_one_word_is_a_list_of_one_and_what_is_not_there_yet_is_told(talaria: Talaria) -> None:
    for key, value in (("terminal.network", "pypi.org"), ("terminal.ports", "5432"), ("terminal.read", "/nowhere")):
        told = talaria("config", "set", "--project", key, value)
        assert told.returncode == 0, told.stderr
        assert ("/nowhere does not exist" in told.stderr) is (key == "terminal.read")
    found = json.loads(talaria("config", "get", "--project").stdout)
    assert found == {"terminal": {"network": ["pypi.org"], "ports": [5432], "read": ["/nowhere"]}}
    assert "terminal.env is not set in" in talaria("config", "unset", "--project", "terminal.env").stderr


def test_hosts_and_ports_that_keep_commands_from_running_are_told_at_once(talaria: Talaria) -> None:
    talaria("config", "set", "terminal.backend", "bubblewrap")
    assert "landlock" not in talaria("config", "set", "terminal.network", "pypi.org").stderr
    talaria("config", "set", "terminal.backend", "landlock")
    for option in ((), ("--project",)):
        told = talaria("config", "set", *option, "terminal.ports", "5432")
        assert "Commands cannot run with terminal.ports here: level landlock has no network." in told.stderr
    assert "landlock" not in talaria("config", "set", "terminal.cache_gb", "2").stderr


def test_settings_of_a_project_that_is_gone_are_told(talaria: Talaria, home: Path, environment: dict[str, str]) -> None:
    talaria("config", "set", "--project", "terminal.cache_gb", "2")
    (root,) = home.glob("projects/*/root")
    assert talaria("config", "get", "--project").stderr == ""
    root.write_text(f"{environment['PWD']}-before\n")
    told = talaria("config", "get", "--project").stderr
    assert told.startswith(
        f"There are settings for {environment['PWD']}-before, which no longer exists. If it moved here: "
    )
    examined = talaria("doctor").stdout
    assert f"warn  projects: {environment['PWD']}-before has its own settings" in examined
    assert "how to bring them along; if it was deleted: rm -r " in examined


def test_a_setting_is_taken_out_with_its_empty_section(talaria: Talaria, home: Path) -> None:
    talaria("config", "set", "agent.max_turns", "7")
    assert talaria("config", "unset", "agent.max_turns").returncode == 0
    assert talaria("config", "get", "agent.max_turns").stdout == "60\n"
    assert (home / "config.yaml").read_text() == ""
    assert "agent.max_turns is not set in" in talaria("config", "unset", "agent.max_turns").stderr
