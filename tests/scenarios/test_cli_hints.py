"""What is printed as a command can be typed as it is printed, however the program was started."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.scenarios.conftest import without_root_warning

SCRIPT = Path(sys.executable).parent / "talaria"
HINT = re.compile(r"`([^`]*talaria[^`]*)`")
SYSTEM = "/usr/bin:/bin"


@pytest.fixture
def checkout(environment: dict[str, str]) -> Path:
    """A working directory with `.venv/bin/talaria`, as `make run` leaves it, and nothing on the path."""
    environment["PATH"] = SYSTEM
    if shutil.which("talaria", path=SYSTEM):
        pytest.skip("talaria is installed for the whole system here")
    folder = Path(environment["PWD"])
    (folder / ".venv").symlink_to(SCRIPT.parents[1])
    return folder


def typed(command: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """In a shell."""
    ended = subprocess.run(
        ["bash", "-c", command],
        env=environment,
        cwd=environment["PWD"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    return without_root_warning(ended)


@pytest.mark.usefixtures("checkout")
def test_hints_work_as_they_are_printed_after_make_run(environment: dict[str, str], home: Path) -> None:
    first = typed(".venv/bin/talaria -q hello", environment)
    assert first.returncode == 0
    assert "Run `.venv/bin/talaria setup` to choose a real model." in first.stderr
    assert "- run `.venv/bin/talaria setup`, which asks" in first.stdout
    unknown = typed(".venv/bin/talaria -r nope", environment)
    (home / "config.yaml").write_text("modle: {}\n")
    broken = typed(".venv/bin/talaria -q hello", environment)
    hints = HINT.findall(first.stderr + first.stdout + unknown.stderr + broken.stderr)
    assert sorted(set(hints)) == [f".venv/bin/talaria {name}" for name in ("doctor", "sessions list", "setup")]
    ends = {hint: typed(hint, environment) for hint in set(hints)}
    assert "hello" in ends[".venv/bin/talaria sessions list"].stdout
    assert "did you mean 'model'?" in ends[".venv/bin/talaria doctor"].stdout
    assert all("command not found" not in ended.stderr for ended in ends.values())


def test_elsewhere_the_whole_path_is_named_and_on_the_path_the_name_alone(
    environment: dict[str, str], checkout: Path
) -> None:
    inside = checkout / "inside"
    inside.mkdir()
    told = typed("cd inside && ../.venv/bin/talaria -r nope", environment).stderr
    assert f"`{checkout}/.venv/bin/talaria sessions list` shows them" in told
    told = typed("talaria -r nope", {**environment, "PATH": f"{checkout}/.venv/bin:{SYSTEM}"}).stderr
    assert "`talaria sessions list` shows them" in told
    (checkout / "bin").mkdir()
    (checkout / "bin" / "talaria").symlink_to(SCRIPT)
    told = typed("bin/talaria -r nope", {**environment, "PATH": f"{checkout}/bin:{SYSTEM}"}).stderr
    assert "`talaria sessions list` shows them" in told


def test_another_program_of_that_name_is_not_recommended(environment: dict[str, str], checkout: Path) -> None:
    other = checkout / "other"
    other.mkdir()
    (other / "talaria").write_text("#!/bin/sh\n")
    (other / "talaria").chmod(0o755)
    told = typed(".venv/bin/talaria -r nope", {**environment, "PATH": f"{other}:{SYSTEM}"}).stderr
    assert "`.venv/bin/talaria sessions list` shows them" in told


@pytest.mark.usefixtures("checkout")
def test_help_and_mistakes_of_usage_name_the_program_as_it_is_typed(environment: dict[str, str]) -> None:
    told = typed(".venv/bin/talaria --help; .venv/bin/talaria chat --nonsense; .venv/bin/talaria what", environment)
    assert "Usage: .venv/bin/talaria [OPTIONS]" in told.stdout
    assert re.search(r"`.venv/bin/talaria\s+chat --help`", told.stdout)
    assert "Try '.venv/bin/talaria chat --help' for help." in told.stderr
    assert "To ask a question: .venv/bin/talaria -q what" in told.stderr


ADVICE = f"{SCRIPT.parent}/python -m talaria.cli.command_name"
"""What `make run` ends with."""


@pytest.mark.usefixtures("checkout")
def test_a_link_is_offered_that_makes_the_name_a_command(environment: dict[str, str]) -> None:
    bins = Path(environment["HOME"]) / ".local" / "bin"
    advice = typed(ADVICE, environment).stdout
    assert "(~/.local/bin is not on your PATH yet: add it in your shell's startup file)" in advice
    command = advice.partition("a command: ")[2].partition(" (~")[0]
    assert command.startswith("mkdir -p ~/.local/bin && ln -s /")
    assert typed(command, environment).returncode == 0
    assert "~/.local/bin is not on your PATH yet" in typed(ADVICE, environment).stdout
    listed = {**environment, "PATH": f"{bins}:{SYSTEM}"}
    assert typed("talaria --version", listed).returncode == 0
    assert typed(ADVICE, listed).stdout == ""


@pytest.mark.usefixtures("checkout")
def test_a_file_of_somebody_else_is_not_replaced_by_the_link(environment: dict[str, str]) -> None:
    bins = Path(environment["HOME"]) / ".local" / "bin"
    bins.mkdir(parents=True)
    command = typed(ADVICE, environment).stdout.partition("a command: ")[2].partition(" (~")[0]
    (bins / "talaria").write_text("mine")
    assert typed(command, environment).returncode != 0
    assert (bins / "talaria").read_text() == "mine"
    assert (
        typed(ADVICE, environment).stdout == f"~/.local/bin/talaria is a different program. To run this one: {SCRIPT}\n"
    )


@pytest.mark.usefixtures("checkout")
def test_setup_ends_with_what_to_type_next(environment: dict[str, str]) -> None:
    told = typed(".venv/bin/talaria setup --provider demo", environment).stderr
    assert "Start with `.venv/bin/talaria`; `.venv/bin/talaria gateway platforms` shows how" in told
    assert f"ln -s {environment['PWD']}/.venv/bin/talaria ~/.local/bin/talaria" in told
