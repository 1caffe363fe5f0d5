"""`talaria doctor`: every kind of finding, what it says to do, and what `--fix` does."""

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from talaria.cli.health.check_models import check_clock
from talaria.cli.health.checks import check_space
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Failure, Faults, Reply

Talaria = Callable[..., subprocess.CompletedProcess[str]]

KEY = "sk-hush-0123456789-abcdef"
NOWHERE = "http://127.0.0.1:9/v1"
NOT_RUNNING = "Nothing is listening on 127.0.0.1:9. Start the server, or check base_url in config.yaml."


def configure(home: Path, text: str) -> None:
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "config.yaml").write_text(text)


def found(ended: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """By their subject."""
    return {finding["subject"]: finding for finding in json.loads(ended.stdout)}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_everything_is_in_order(talaria: Talaria, server: ModelServer) -> None:
    ended = talaria("doctor")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"  ok  model: custom:test-model answers at {server.base_url}\n" in ended.stdout
    assert "  ok  store: SQLite " in ended.stdout


def test_json_is_a_list_of_findings(talaria: Talaria, server: ModelServer) -> None:
    findings = found(talaria("doctor", "--json"))
    findings.pop("user", None)  # of root
    subjects = ("talaria", "home", "disk", "settings", "store", "keys", "model", "clock", "sandbox")
    assert {subject: one["verdict"] for subject, one in findings.items()} == dict.fromkeys(subjects, "ok")
    assert {(one["remedy"], one["fixed"]) for one in findings.values()} == {("", False)}


def test_whatever_is_not_in_order_says_what_to_do(talaria: Talaria, home: Path) -> None:
    configure(home, f"model: {{default: m, base_url: '{NOWHERE}'}}\nterminal: {{backend: local}}\n")
    home.chmod(0o755)
    ended = talaria("doctor", "--json", env={"TELEGRAM_BOT_TOKEN": "123456:TEST-token"})
    ill = [one for one in found(ended).values() if one["verdict"] != "ok"]
    assert {"home", "model", "sandbox", "gateway"} <= {one["subject"] for one in ill}
    assert all(one["remedy"] for one in ill)
    assert f"\n      → {found(ended)['model']['remedy']}\n" in talaria("doctor").stdout


# home


def test_what_others_can_read_is_told_and_closed(talaria: Talaria, home: Path, server: ModelServer) -> None:
    server.say("ok")
    talaria("-q", "x")
    (home / ".env").write_text(f"GROQ_API_KEY={KEY}\n")
    modes = {home: 0o755, home / ".env": 0o640, home / "state.db": 0o644, home / "state.db-wal": 0o604}
    for path, open_mode in modes.items():
        path.chmod(open_mode)

    told = talaria("doctor")
    assert told.returncode == 2  # such an .env is not read
    for path in modes:
        assert f"warn  {'home' if path == home else path.name}: other users can " in told.stdout
    assert told.stdout.count("      → `talaria doctor --fix` makes it private\n") == len(modes)
    assert {path: mode(path) for path in modes} == modes

    fixed = talaria("doctor", "--fix", "--json")
    assert fixed.returncode == 0
    findings = found(fixed)
    for path, open_mode in modes.items():
        one = findings["home" if path == home else path.name]
        assert (one["verdict"], one["fixed"], one["remedy"]) == ("ok", True, "")
        assert one["text"].startswith(f"fixed: {path} was {open_mode:04o} and is now {mode(path):04o}: ")
    assert [mode(path) for path in modes] == [0o700, 0o600, 0o600, 0o600]
    assert KEY not in told.stdout + fixed.stdout
    assert not any(one["fixed"] for one in found(talaria("doctor", "--json")).values())


def test_folder_that_is_not_ours_alone_is_not_closed(talaria: Talaria, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    tmp_path.chmod(0o755)
    for folder in (shared, tmp_path):  # the latter is the person's own
        told = found(talaria("doctor", "--fix", "--json", env={"TALARIA_HOME": str(folder)}))["home"]
        assert (told["verdict"], told["fixed"]) == ("warn", False)
        assert "set TALARIA_HOME to a folder of its own" in told["remedy"]
    assert (mode(shared), mode(tmp_path)) == (0o1777, 0o755)


def test_half_written_files_are_told_and_removed_once_they_are_old(talaria: Talaria, home: Path) -> None:
    configure(home, "model: {default: demo}\n")
    old, young, foreign = home / "..env.0123456789ab", home / ".config.yaml.ba9876543210", home / ".notes.0123456789ab"
    for path in (old, young, foreign):
        path.write_text("X=1")
    long_ago = time.time() - 7200
    for path in (old, foreign):
        os.utime(path, (long_ago, long_ago))

    assert f"warn  leftovers: half-written files in {home}: {old.name}\n" in talaria("doctor").stdout
    assert old.exists()
    assert f"  ok  leftovers: fixed: removed {old.name}\n" in talaria("doctor", "--fix").stdout
    assert [path.exists() for path in (old, young, foreign)] == [False, True, True]


def test_home_that_cannot_be_one_is_told(talaria: Talaria, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = talaria("doctor", env={"TALARIA_HOME": str(tmp_path / "file" / "home")})
    assert ended.returncode == 2
    assert f"fail  home: {tmp_path}/file is not a writable folder\n" in ended.stdout
    assert "      → make it one, or set TALARIA_HOME to another folder\n" in ended.stdout


@pytest.mark.parametrize(
    ("free_bytes", "verdict"), [(49_999_999, "fail"), (50_000_000, "warn"), (499_999_999, "warn"), (500_000_000, "ok")]
)
def test_little_room_is_told(free_bytes: int, verdict: str) -> None:
    told = check_space(free_bytes, Path("/here"))
    assert (told.verdict, bool(told.remedy)) == (verdict, verdict != "ok")


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap makes the small disk")
def test_full_disk_is_told(home: Path, environment: dict[str, str]) -> None:
    home.mkdir(mode=0o700)
    small = ("bwrap", "--dev-bind", "/", "/", "--size", "20000000", "--tmpfs", str(home))
    command = [*small, sys.executable, "-m", "talaria.cli.main", "doctor", "--json"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    told = found(ended)["disk"]
    assert (ended.returncode, told["verdict"], told["remedy"]) == (2, "fail", "free up space on that disk")
    assert told["text"].endswith(f" MB free at {home}")


# store


def test_damaged_store_is_told_and_left_as_it_is(talaria: Talaria, home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "state.db").write_text("Dear diary, " * 1_000)
    (home / "state.db").chmod(0o600)
    ended = talaria("doctor", "--fix")
    assert ended.returncode == 2
    assert f"fail  store: {home}/state.db is damaged" in ended.stdout
    assert "      → restore a backup\n" in ended.stdout
    assert "model" not in ended.stdout  # nothing is wrong there
    assert (home / "state.db").read_text() == "Dear diary, " * 1_000


def test_interrupted_conversation_is_told_with_the_way_to_finish_it(
    environment: dict[str, str], talaria: Talaria, server: ModelServer
) -> None:
    server.say(Reply(faults=Faults(hang=True)), "finished")
    command = [sys.executable, "-m", "talaria.cli.main", "-q", "wait"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL) as process:
        server.wait_for_requests(1)
        process.kill()
    told = found(talaria("doctor", "--fix", "--json"))["conversations"]
    assert (told["verdict"], told["text"], told["fixed"]) == ("warn", "1 interrupted conversation(s)", False)
    id = told["remedy"].split("`")[1].rpartition(" ")[2]
    assert talaria("-r", id).stdout == "finished\n"
    assert "conversations" not in found(talaria("doctor", "--json"))


def test_search_index_is_made_anew(talaria: Talaria, home: Path, server: ModelServer) -> None:
    server.say("zebra", "yak")
    talaria("-q", "which animal?")
    assert "zebra" in talaria("sessions", "search", "zebra").stdout
    (home / "search.db").write_bytes(b"nonsense" * 1_000)
    told = talaria("doctor", "--fix")
    assert (told.returncode, told.stderr) == (0, "")
    assert "  ok  search: fixed: rebuilt the index (2 entries)\n" in told.stdout
    assert told.stdout.endswith("\nFixed: search.\n")
    assert "zebra" in talaria("sessions", "search", "zebra").stdout


# settings and models


@pytest.mark.parametrize(
    ("config", "subject", "says"),
    [
        ("modle: {}", "settings", "did you mean 'model'?"),
        ("model: {provider: groq}", "model", "GROQ_API_KEY"),
        ("model: [", "settings", "is not valid YAML at line "),
    ],
)
def test_what_is_wrong_is_told_and_the_rest_is_looked_at(
    talaria: Talaria, home: Path, config: str, subject: str, says: str
) -> None:
    configure(home, config)
    ended = talaria("doctor", "--json")
    told = found(ended)
    assert ended.returncode == 2
    assert (told[subject]["verdict"], told["store"]["verdict"]) == ("fail", "ok")
    assert says in told[subject]["text"]
    assert told[subject]["remedy"]


def test_stand_in_is_told_from_a_choice(talaria: Talaria) -> None:
    told = talaria("doctor").stdout
    assert "warn  model: demo: no API key and no local model server found\n      → run `talaria setup` " in told
    talaria("config", "set", "model.default", "demo")
    assert "  ok  model: demo, a scripted stand-in, as configured\n" in talaria("doctor").stdout


def test_keys_are_counted_and_nothing_of_them_is_shown(talaria: Talaria, home: Path) -> None:
    configure(
        home, f"model: {{default: demo}}\nproviders: {{minted: {{base_url: '{NOWHERE}', key_command: 'true'}}}}\n"
    )
    (home / ".env").write_text(f"GROQ_API_KEY={KEY}\nGROQ_API_KEY_2={KEY[::-1]}\n")
    (home / ".env").chmod(0o600)
    told = talaria("doctor", env={"MISTRAL_API_KEY": KEY})
    assert "  ok  keys: groq (2), mistral (1), minted (by command)\n" in told.stdout
    assert not any(KEY[at : at + 6] in told.stdout for at in range(len(KEY) - 6))


@pytest.mark.parametrize(
    ("status", "says", "to_do"),
    [
        (401, "did not accept the API key", "run `talaria setup` to enter another key"),
        (503, "is having problems", "model try"),
    ],
)
def test_endpoint_that_refuses_is_told(talaria: Talaria, home: Path, status: int, says: str, to_do: str) -> None:
    with ModelServer(listing=Failure(status)) as server:
        configure(home, f"model: {{default: m, base_url: '{server.base_url}'}}")
        ended = talaria("doctor", "--json")
    told = found(ended)["model"]
    assert (ended.returncode, told["verdict"]) == (2, "fail")
    assert says in told["text"]
    assert to_do in told["remedy"]


def test_endpoint_that_is_not_there_is_told(talaria: Talaria, home: Path) -> None:
    configure(home, f"model: {{default: m, base_url: '{NOWHERE}'}}")
    told = talaria("doctor").stdout
    assert f"fail  model: {NOT_RUNNING}\n      → start it, or run `talaria setup`" in told


def test_each_fallback_is_asked(talaria: Talaria, home: Path, server: ModelServer) -> None:
    with (home / "config.yaml").open("a") as config:
        config.write(
            f"providers: {{near: {{base_url: '{server.base_url}'}}, gone: {{base_url: '{NOWHERE}'}}}}\n"
            "fallback_providers: [near:m, gone:m, groq:m]\n"
        )
    ended = talaria("doctor")
    assert ended.returncode == 0
    assert "  ok  model: custom:test-model answers at " in ended.stdout
    assert f"  ok  fallback: near:m answers at {server.base_url}\n" in ended.stdout
    assert f"warn  fallback: {NOT_RUNNING}\n" in ended.stdout
    assert "warn  left out: The fallback groq is left out: " in ended.stdout


@pytest.mark.parametrize(
    ("off_s", "says"), [(0, "  ok  clock: matches "), (-7200, "warn  clock: 7,2"), (7200, "warn  clock: 7,")]
)
def test_clock_is_held_against_the_date_of_an_answer(talaria: Talaria, home: Path, off_s: float, says: str) -> None:
    date = formatdate(time.time() + off_s, usegmt=True)
    with ModelServer(listing=Failure(404, headers={"Date": date})) as server:
        configure(
            home, f"model: {{default: m, base_url: '{server.base_url}'}}\nproviders: {{custom: {{api_key: {KEY}}}}}"
        )
        told = talaria("doctor").stdout
    assert says in told
    direction = {0: "matches", -7200: "s ahead of", 7200: "s behind"}[int(off_s)]
    assert f"{direction} {server.url.removeprefix('http://')}\n" in told
    asked = [request.headers.get("authorization") for request in server.requests]
    assert asked == [f"Bearer {KEY}", None]  # nobody needs a key to be told the time


@pytest.mark.parametrize(
    ("now", "told", "verdict"),
    [
        (1_800_000_060.0, "Fri, 15 Jan 2027 08:00:00 GMT", "ok"),
        (1_800_000_061.0, "Fri, 15 Jan 2027 08:00:00 GMT", "warn"),
        (1_799_999_939.0, "Fri, 15 Jan 2027 08:00:00 GMT", "warn"),
        (1_800_000_000.0, None, "ok"),
        (1_800_000_000.0, "noonish", "ok"),
        (0.0, None, "warn"),
    ],
)
def test_a_minute_off_is_near_enough_and_without_a_date_the_year_must_do(
    now: float, told: str | None, verdict: str
) -> None:
    finding = check_clock(now, told, "there")
    assert (finding.verdict, bool(finding.remedy)) == (verdict, verdict != "ok")


def test_package_of_a_version_that_cannot_be_used_is_told(talaria: Talaria, tmp_path: Path) -> None:
    for name, version in (("slack_sdk", "2.9.9"), ("click", "8.2.0"), ("msgspec", "0.20")):
        about = tmp_path / "packages" / f"{name}-{version}.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    told = talaria("doctor", env={"PYTHONPATH": str(tmp_path / "packages")}).stdout
    packages = [line for line in told.splitlines() if " package " in line]
    assert packages == ["warn  package slack-sdk: 2.9.9 is installed, but <4,>=3.46 is needed"]
    assert "      → pip install 'slack-sdk<4,>=3.46'\n" in told


def test_security_and_fix_do_not_go_together(talaria: Talaria) -> None:
    ended = talaria("doctor", "--security", "--fix")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "run `talaria doctor --fix`" in ended.stderr


def test_security_passes_only_what_it_has_tried(talaria: Talaria, tmp_path: Path) -> None:
    """Without gcc and git there is nothing to try those with."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("python3", "bash"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    ended = talaria("doctor", "--security", env={"PATH": str(programs)})
    lines = {text: word for word, _, text in (line.strip().partition("  ") for line in ended.stdout.splitlines())}
    assert lines["use gcc: not tried: gcc is not installed"] == "SKIP"
    assert lines["open kernel settings for writing: fails"] == "PASS"
    assert lines["change the limits of another process: fails"] == "PASS"
    assert lines["use more memory than allowed: fails"] == "PASS"
    assert lines["keep running when the disk is nearly full: fails"] == "PASS"
    assert lines["trick a search into leaving the project: fails"] == "PASS"
    assert lines["disk: commands are stopped when less than 256 MiB is free; fast ones may use some of that"] == "WARN"


def test_security_says_which_limits_the_level_does_not_have(talaria: Talaria, home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text("model: {provider: demo}\nterminal: {backend: landlock, limits: {memory: 2G}}\n")
    lines = talaria("doctor", "--security").stdout.splitlines()
    weak = {name for word, _, name in (line.partition("  ") for line in lines) if word == "WARN"}
    assert any(one.startswith("use up the user's inotify instances: SUCCEEDS (not limited") for one in weak)
    assert any(one.startswith("fill the temporary folder: SUCCEEDS") for one in weak)
    assert any(" memory: " in line and " 2 GiB" in line for line in lines)


def test_what_keeps_commands_from_running_at_landlock_is_told(talaria: Talaria, home: Path) -> None:
    configure(home, "model: {provider: demo}\nterminal: {backend: landlock, network: [pypi.org]}\n")
    set_here = talaria("config", "set", "--project", "terminal.ports", "[5432]")
    assert set_here.returncode == 0, set_here.stderr
    ended = talaria("doctor")
    assert ended.returncode == 2
    why = "but level landlock has no network"
    for told in (
        f"fail  terminal: commands cannot run: terminal.network lists pypi.org, {why}",
        "bubblewrap), or `talaria config unset terminal.network`",
        f"fail  terminal: commands cannot run here: terminal.ports lists 5432, {why}",
        "bubblewrap), or `talaria config unset --project terminal.ports`",
    ):
        assert told in ended.stdout
    for option, key in ((), "terminal.network"), (("--project",), "terminal.ports"):
        talaria("config", "unset", *option, key)
    assert "terminal:" not in talaria("doctor").stdout


def test_settings_that_others_can_change_are_told_and_put_right(talaria: Talaria, home: Path) -> None:
    home.mkdir(mode=0o700)
    config = home / "config.yaml"
    config.write_text("model: {provider: demo}\n")
    config.chmod(0o666)
    assert talaria("-q", "hello").stderr == (
        f"talaria: Other users can change {config}, and so what Talaria does; run: chmod go-w {config} "
        "`talaria doctor` says what to do.\n"
    )
    assert f"fail  config.yaml: other users can change {config} (0666)" in talaria("doctor").stdout
    assert "Fixed: config.yaml" in talaria("doctor", "--fix").stdout
    assert talaria("-q", "hello").returncode == 0
