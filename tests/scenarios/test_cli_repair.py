"""Whatever config.yaml and .env say: the commands that put things right work, and all others say how."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

Talaria = Callable[..., subprocess.CompletedProcess[str]]

FINE = "agent: {max_turns: 7}\nplugins: {enabled: [greeter]}\n"
UNKNOWN = f"streaming: false\nlossless:  # a plugin's\n  threshold: 3\n{FINE}"
DOCTOR = "`talaria doctor` says what to do."


def make_home(home: Path, config: str = FINE, secrets: str | None = None) -> None:
    plugin = home / "plugins" / "greeter"
    plugin.mkdir(parents=True)
    (plugin / "plugin.yaml").write_text("name: greeter\nversion: '1.0'\n")
    (plugin / "__init__.py").write_text("def register(ctx): pass\n")
    home.chmod(0o700)
    (home / "config.yaml").write_text(config)
    if secrets is not None:
        (home / ".env").write_text(secrets)
        (home / ".env").chmod(0o600)


def break_home(home: Path, how: str) -> str:
    """And what is said about it."""
    make_home(home)
    config, secrets = home / "config.yaml", home / ".env"
    if how == "an unknown section":
        config.write_text(UNKNOWN)
        return "there is no setting 'lossless'"
    if how == "a wrong type":
        config.write_text(FINE + "model: {max_tokens: many}\n")
        return "model.max_tokens is wrong"
    if how == "a name that is not set":
        config.write_text(FINE + "model: {api_key: '${NOT_SET}'}\n")
        return "uses ${NOT_SET}, which is not set"
    if how == "a folder for .env":
        secrets.mkdir()
        return f"Cannot read {secrets}: Is a directory."
    secrets.write_text("A_KEY=1\n" if how == "an open .env" else "nonsense\n")
    secrets.chmod(0o644 if how == "an open .env" else 0o600)
    return "can be read by other users" if how == "an open .env" else "line 1: expected NAME=value"


@pytest.mark.parametrize(
    "how",
    [
        *("an unknown section", "a wrong type", "a name that is not set"),
        *("an open .env", "a wrong .env", "a folder for .env"),
    ],
)
def test_settings_and_plugins_can_be_put_right_whatever_is_wrong(talaria: Talaria, home: Path, how: str) -> None:
    says = break_home(home, how)

    asked = talaria("-m", "demo", "-q", "x")
    assert asked.returncode == 2
    assert asked.stderr.startswith(f"talaria: {home}/") or "Cannot read" in asked.stderr
    assert asked.stderr.endswith(f" {DOCTOR}\n")
    assert asked.stderr.count("\n") == 1

    got = talaria("config", "get", "agent.max_turns")
    assert (got.returncode, got.stdout) == (0, "7\n")
    assert says in got.stderr

    listed = talaria("plugins", "list", "--json")
    assert listed.returncode == 0, listed.stderr
    assert [row["status"] for row in json.loads(listed.stdout)["plugins"]] == ["loaded"]
    assert says in listed.stderr

    before = (home / "config.yaml").read_text()
    disabled = talaria("plugins", "disable", "greeter")
    assert (disabled.returncode, disabled.stdout) == (0, "Disabled greeter.\n")
    assert (home / "config.yaml").read_text() == before.replace("enabled: [greeter]", "enabled: []")

    examined = talaria("doctor", "--json")
    findings = [one for one in json.loads(examined.stdout) if one["subject"] == "settings"]
    assert examined.returncode == 2
    assert any(says in one["text"] and one["verdict"] == "fail" and one["remedy"] for one in findings)

    safe = talaria("-m", "demo", "-q", "x", env={"TALARIA_SAFE_MODE": "1"})
    assert safe.returncode == 0, safe.stderr
    assert says in safe.stderr


def test_a_broken_file_is_not_edited_and_safe_mode_is_the_way_round_it(talaria: Talaria, home: Path) -> None:
    broken = FINE + "model: [\n"
    make_home(home, broken)
    for command in (["plugins", "disable", "greeter"], ["plugins", "enable", "greeter"]):
        ended = talaria(*command)
        assert ended.returncode == 2
        assert "is not valid YAML at line 4" in ended.stderr
        assert "TALARIA_SAFE_MODE=1 talaria" in ended.stderr
    changed = talaria("config", "set", "agent.max_turns", "3")
    assert (changed.returncode, "is not valid YAML at line 4" in changed.stderr) == (2, True)
    assert (home / "config.yaml").read_text() == broken
    assert not (home / "plugins.json").exists()

    got = talaria("config", "get", "agent.max_turns")
    assert (got.returncode, got.stdout) == (0, "60\n")
    listed = talaria("plugins", "list")
    assert (listed.returncode, "greeter" in listed.stdout) == (0, True)
    safe = talaria("-m", "demo", "-q", "x", env={"TALARIA_SAFE_MODE": "1"})
    assert safe.returncode == 0, safe.stderr
    assert "is not valid YAML at line 4" in safe.stderr
    assert "fail  settings: " in talaria("doctor").stdout


def test_a_wrong_setting_is_not_told_as_if_it_were_right(talaria: Talaria, home: Path) -> None:
    make_home(home, "model: {max_tokens: many}\n")
    ended = talaria("config", "get", "model.max_tokens")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "model.max_tokens is wrong" in ended.stderr


def test_setting_the_wrong_one_puts_it_right(talaria: Talaria, home: Path) -> None:
    make_home(home, "model: {max_tokens: many}\n")
    ended = talaria("config", "set", "model.max_tokens", "100")
    assert ended.returncode == 0, ended.stderr
    assert "That fixed: " in ended.stderr
    assert talaria("config", "check").stderr == "The settings are valid.\n"


def test_what_is_still_wrong_is_said_after_a_change(talaria: Talaria, home: Path) -> None:
    make_home(home, "model: {max_tokens: many, wire: none}\n")
    ended = talaria("config", "set", "model.max_tokens", "100")
    assert ended.returncode == 0, ended.stderr
    assert "model.wire is wrong" in ended.stderr
    assert talaria("config", "check").returncode == 2


def test_the_doctor_makes_secrets_yours_alone(talaria: Talaria, home: Path) -> None:
    make_home(home, "model: {default: demo}\n", "A_KEY=1\n")
    (home / ".env").chmod(0o644)
    assert "doctor --fix" in talaria("doctor").stdout
    ended = talaria("doctor", "--fix")
    assert ended.returncode == 0, ended.stdout
    assert (home / ".env").stat().st_mode & 0o777 == 0o600
    assert talaria("-q", "x").returncode == 0


def test_the_doctor_moves_what_a_plugin_wrote_into_our_settings_and_leaves_slips_to_the_person(
    talaria: Talaria, home: Path
) -> None:
    """The settings as plugins left them before they had a home of their own."""
    before = f"# mine\nmodel: {{default: demo}}\n{UNKNOWN}agnet: {{max_turns: 3}}\n"
    make_home(home, before)
    told = talaria("doctor").stdout
    assert "there is no setting 'lossless'" in told
    assert "`talaria doctor --fix` moves it to the plugins' settings" in told
    assert (home / "config.yaml").read_text() == before

    fixed = talaria("doctor", "--fix")
    assert "fixed: moved streaming, lossless from " in fixed.stdout
    assert "did you mean 'agent'?" in fixed.stdout
    assert fixed.returncode == 2
    assert (home / "config.yaml").read_text() == f"# mine\nmodel: {{default: demo}}\n{FINE}agnet: {{max_turns: 3}}\n"
    (kept,) = home.glob("config.yaml.before-*")
    assert kept.read_text() == before

    (home / "config.yaml").write_text(FINE + "model: {default: demo}\n")
    assert talaria("-q", "x").returncode == 0
    theirs = yaml.safe_load((home / "hermes" / "config.yaml").read_text())
    assert (theirs["streaming"], theirs["lossless"]) == (False, {"threshold": 3})
    assert "agnet" not in theirs
