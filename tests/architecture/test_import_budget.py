"""What a command loads: start-up time is a promise, and every import spends it."""

import subprocess
import sys
from pathlib import Path

import pytest

from talaria.platforms.loader import manifests

SCRIPT = """
import sys
before = set(sys.modules)
{work}
print(*sorted(set(sys.modules) - before), sep="\\n", file=sys.stderr)
"""


def loaded(work: str, home: Path) -> set[str]:
    """The modules that `work` brought in."""
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(work=work)],
        env={"TALARIA_HOME": str(home), "HOME": str(home), "PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=True,
    )
    return set(ended.stderr.split())


def run(*arguments: str) -> str:
    return f"from talaria.cli.main import main\nassert main({list(arguments)!r}) == 0"


def packages(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


def test_importing_talaria_imports_only_itself(tmp_path: Path) -> None:
    assert packages(loaded("import talaria", tmp_path)) <= {"talaria", "typing", "__future__"} | set(
        sys.stdlib_module_names
    )
    assert {name for name in loaded("import talaria", tmp_path) if name.startswith("talaria")} == {"talaria"}


def test_version_loads_nothing_of_weight(tmp_path: Path) -> None:
    modules = loaded(run("--version"), tmp_path)
    assert not packages(modules) & {"click", "asyncio", "msgspec", "aiohttp", "apsw", "yaml", "logging"}
    assert {name for name in modules if name.startswith("talaria")} == {"talaria", "talaria.cli", "talaria.cli.main"}


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (["sessions", "list"], {"aiohttp", "yaml", "ruamel", "readline", "prompt_toolkit", "rich"}),
        (["-m", "demo", "-q", "hello"], {"aiohttp", "yaml", "ruamel", "readline", "prompt_toolkit", "rich"}),
        (["-h"], {"asyncio", "msgspec", "aiohttp", "apsw", "yaml"}),
        (["usage"], {"aiohttp", "yaml", "ruamel"}),
        (["config", "path"], {"aiohttp", "yaml", "ruamel"}),
        (["config", "set", "agent.max_turns", "3"], {"aiohttp"}),
    ],
    ids=["sessions", "demo", "help", "usage", "config path", "config set"],
)
def test_command_does_not_load_what_it_does_not_need(tmp_path: Path, arguments: list[str], unwanted: set[str]) -> None:
    assert not packages(loaded(run(*arguments), tmp_path)) & unwanted


@pytest.mark.parametrize(
    "module", ["talaria.cli.sessions.session_commands", "talaria.app.library", "talaria.app.build"]
)
def test_module_does_not_load_the_http_client(tmp_path: Path, module: str) -> None:
    assert "aiohttp" not in packages(loaded(f"import {module}", tmp_path))


@pytest.mark.parametrize("platform", manifests())
def test_settings_of_a_platform_are_read_without_its_client(tmp_path: Path, platform: str) -> None:
    modules = loaded(f"import talaria.platforms.{platform}.config as one\none.SETTINGS, one.check", tmp_path)
    assert not packages(modules) & {"aiohttp", "nio", "slack_sdk", "markdown_it"}
