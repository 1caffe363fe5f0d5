"""How commands are named in what is printed at a terminal."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import talaria
from talaria.cli import command_name
from talaria.cli.command_tree import talaria as root_command
from talaria.cli.notices import complain

SOURCE = Path(talaria.__file__).parent
COMMANDS = "|".join([r"-\w", *root_command.list_commands(root_command.make_context("talaria", ["model"]))])
COMMAND = re.compile(rf"(?<![\w/.-])talaria (?:{COMMANDS})\b")
NOT_SENTENCES = {
    "cli/completion/command.py": "a script for the shell",
    "cli/completion/values.py": "a key of a table",
    "cli/rollback_command.py": "a part of a sentence that is put together elsewhere",
    "cli/usage.py": "the title of calls that are nobody's conversation",
    "gateway/authorization.py": "hashed",
}


@pytest.fixture(autouse=True)
def off_the_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PATH", "/nowhere")
    command_name.name.cache_clear()
    yield
    command_name.name.cache_clear()


@pytest.mark.parametrize(
    "sentence",
    [
        "`{}` begins one.",
        "`{} setup` chooses a real one.",
        "Is one running? ({} gateway status)",
        "Come back with: {} -r 42",
        "its tools are not known yet; to ask for them: {} mcp test x",
        "      → `{} doctor --fix` moves it, `{} doctor` looks",
        "It needs a key:\n  {} config set KEY …",
    ],
)
def test_a_command_in_a_sentence_can_be_typed(sentence: str) -> None:
    assert command_name.name().endswith("/talaria")
    told = command_name.runnable(sentence.replace("{}", "talaria"))
    assert told == sentence.replace("{}", command_name.name())
    assert command_name.runnable(told) == told


@pytest.mark.parametrize(
    "sentence",
    [
        "talaria: There is no session called 'x'.",
        "/home/ann/talaria is not a folder.",
        "Cannot read /srv/talaria agents/x.",
        "Talaria 0.1.0 on Python 3.11",
        "pip install 'talaria-agent[browser]'",
        "`talaria-agent` is the name of the package.",
    ],
)
def test_what_is_not_a_command_stays(sentence: str) -> None:
    assert command_name.runnable(sentence) == sentence


def sentences() -> Iterator[tuple[str, str]]:
    """Every text in the source that names one of our commands; docstrings are for those who read the source."""
    for file in SOURCE.rglob("*.py"):
        tree = ast.parse(file.read_text("utf-8"))
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in docs:
                continue
            if COMMAND.search(node.value):
                yield str(file.relative_to(SOURCE)), node.value


def test_every_hint_in_the_source_is_written_so_that_it_is_recognised() -> None:
    found = [(file, text) for file, text in sentences() if file not in NOT_SENTENCES]
    assert len(found) > 50
    assert [(file, text) for file, text in found if COMMAND.search(command_name.runnable(text))] == []


def test_what_is_said_names_commands_that_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    complain("No gateway runs here; `talaria gateway start` starts one.")
    assert capsys.readouterr().err == (
        f"talaria: No gateway runs here; `{command_name.name()} gateway start` starts one.\n"
    )
