"""Which files are offered after an @."""

from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from talaria.cli.screen.line_input import LineCompleter


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("@src/", ["src/__main__/", "src/notes/"]),
        ("@src/n", ["src/notes/"]),
        ("@src/__", ["src/__main__/"]),
        ("@src/__py", ["src/__pycache__/"]),
        ("@src/.", ["src/.gitignore"]),
        ("@src/.git", ["src/.git/", "src/.gitignore"]),
        ("@src/node_modules/", ["src/node_modules/wings.pyc"]),
        ("@wings", ["src/__main__/wings.pyc", "src/notes/wings.pyc"]),
    ],
)
def test_folders_that_programs_fill_are_offered_to_whoever_names_them(
    tmp_path: Path, typed: str, offered: list[str]
) -> None:
    for folder in ("__pycache__", "__main__", "node_modules", "notes", "x.egg-info", ".git"):
        (tmp_path / "src" / folder).mkdir(parents=True)
        (tmp_path / "src" / folder / "wings.pyc").touch()
    (tmp_path / "src" / ".gitignore").touch()
    found = LineCompleter(tmp_path).get_completions(Document(typed), CompleteEvent())
    assert [one.text for one in found] == offered


def test_a_name_is_shown_with_what_is_hidden_in_it_and_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "pay\u200dpal.md").touch()
    (found,) = LineCompleter(tmp_path).get_completions(Document("@pay"), CompleteEvent())
    assert (found.text, found.display_text) == ("pay\u200dpal.md", "pay\\u200dpal.md")
