"""What `talaria gateway` and the doctor say where no gateway runs."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Talaria = Callable[..., subprocess.CompletedProcess[str]]
TOKEN = {"TELEGRAM_BOT_TOKEN": "123456:TEST-token"}
SLACK_TOKENS = {"SLACK_BOT_TOKEN": "xoxb-test", "SLACK_APP_TOKEN": "xapp-test"}


@pytest.fixture
def configure(home: Path) -> Callable[..., None]:
    def write(gateway: dict[str, Any]) -> None:
        home.mkdir(mode=0o700, exist_ok=True)
        (home / "config.yaml").write_text(json.dumps({"model": {"provider": "demo"}, "gateway": gateway}))

    return write


def test_platforms_say_what_they_need(talaria: Talaria) -> None:
    rows = {row["name"]: row for row in json.loads(talaria("gateway", "platforms", "--json", env=TOKEN).stdout)}
    assert {"discord", "matrix", "slack", "telegram", "webhook"} <= rows.keys()
    assert (rows["telegram"]["state"], rows["discord"]["state"]) == ("configured", "not set up")
    assert "TELEGRAM_BOT_TOKEN" in rows["telegram"]["variables"]
    lines = talaria("gateway", "platforms").stdout
    assert "not set up  telegram  Telegram; reads TELEGRAM_BOT_TOKEN" in lines
    assert "Send /newbot to @BotFather" in lines


def test_a_platform_without_its_packages_says_how_to_get_them(talaria: Talaria, tmp_path: Path) -> None:
    hiding = tmp_path / "hiding"
    hiding.mkdir()
    (hiding / "sitecustomize.py").write_text(
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'slack_sdk' else find(name, *more)\n"
    )
    without = {"PYTHONPATH": str(hiding)}
    hint = "pip install 'talaria-agent[slack]'"
    assert f"needs: {hint}" in talaria("gateway", "platforms", env=without).stdout
    told = talaria("doctor", env={**without, **SLACK_TOKENS})
    assert f"fail  platform slack: Slack needs slack_sdk: {hint}" in told.stdout
    assert told.returncode == 2


def test_a_platform_that_is_none_is_named(talaria: Talaria, configure: Callable[..., None]) -> None:
    configure({"platforms": {"telegramm": {}}})
    listed = talaria("gateway", "platforms").stdout
    assert "broken      telegramm" in listed
    assert "! There is no platform telegramm" in listed


def test_doctor_says_nothing_of_a_gateway_that_nobody_wants(talaria: Talaria) -> None:
    assert "gateway" not in talaria("doctor").stdout


def test_doctor_looks_at_every_platform(talaria: Talaria, configure: Callable[..., None]) -> None:
    matrix = {"homeserver": "https://example.org", "user_id": "@bot:example.org", "password": "hush"}
    slack = {"bot_token": "xoxb-1", "app_token": "xapp-1", "allowed_users": ["U0123ABCD"]}
    configure(
        {
            "pairing": False,
            "platforms": {
                "discord": {"token": "x" * 60, "allow_all_users": True},
                "matrix": matrix,
                "slack": slack,
                "telegram": {"allowed_users": ["@ann"]},
            },
        }
    )
    told = talaria("doctor", env=TOKEN).stdout
    findings = [one for one in told.splitlines() if "platform" in one and "→" not in one]
    assert [one.partition(": '@ann'")[0] for one in findings] == [
        "warn  gateway: not running, although platforms are set up",
        "fail  platform telegram: gateway.platforms.telegram.allowed_users",
        "warn  platform discord: allow_all_users is on: anyone who finds the bot can command the agent",
        "warn  platform matrix: nobody may talk to it",
        "  ok  platform slack: 1 may talk to it",
    ]


def test_the_unit_is_for_this_home_and_profile(talaria: Talaria, home: Path) -> None:
    talaria("profiles", "create", "work")
    printed = talaria("-p", "work", "gateway", "install", "--print")
    assert printed.returncode == 0
    assert '"-m" "talaria" "-p" "work" "gateway" "run"\n' in printed.stdout
    assert f'Environment="TALARIA_HOME={home}"\n' in printed.stdout
    assert f"WorkingDirectory={home}/profiles/work\n" in printed.stdout


def test_without_systemd_the_unit_is_written_and_what_to_do_is_said(talaria: Talaria, tmp_path: Path) -> None:
    alone = {"PATH": str(tmp_path / "nothing"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    installed = talaria("gateway", "install", env=alone)
    (unit,) = (tmp_path / "config" / "systemd" / "user").iterdir()
    assert installed.stderr.splitlines()[0] == f"Wrote {unit}."
    assert f"systemctl --user enable --now {unit.name}" in installed.stderr
    assert talaria("gateway", "uninstall", env=alone).returncode == 0
    assert not unit.exists()
    assert talaria("gateway", "uninstall", env=alone).returncode == 2


def test_systemd_is_told(talaria: Talaria, tmp_path: Path) -> None:
    told, program = tmp_path / "told", tmp_path / "bin" / "systemctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {told}\n')
    program.chmod(0o755)
    there = {"PATH": f"{program.parent}:/usr/bin:/bin", "XDG_CONFIG_HOME": str(tmp_path / "config"), **TOKEN}
    installed = talaria("gateway", "install", env=there)
    (unit,) = (tmp_path / "config" / "systemd" / "user").iterdir()
    assert "TELEGRAM_BOT_TOKEN is set only in this shell" in installed.stderr
    assert TOKEN["TELEGRAM_BOT_TOKEN"] not in unit.read_text()
    talaria("gateway", "uninstall", env=there)
    orders = [line for line in told.read_text().splitlines() if line != "--user show-environment"]
    assert orders == [
        "--user daemon-reload",
        f"--user enable --now {unit.name}",
        f"--user disable --now {unit.name}",
        "--user daemon-reload",
    ]


def test_there_is_no_log_before_the_first_run(talaria: Talaria) -> None:
    assert talaria("gateway", "logs").returncode == 2
