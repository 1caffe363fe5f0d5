"""`@path` in what a person says."""

import base64
import os
from pathlib import Path

import pytest

from talaria.cli.references import MAX_FILE_BYTES, MAX_FILES, read_image, with_references
from talaria.core.errors import BadInput
from talaria.core.messages import Context, Image, Text, User, user

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("print(1)\n")
    (tmp_path / "my notes.txt").write_text("buy milk")
    (tmp_path / "pixel.png").write_bytes(PIXEL)
    (tmp_path / "blob").write_bytes(b"\0\1")
    (tmp_path / "long.log").write_text("x" * (MAX_FILE_BYTES + 1))
    return tmp_path


def added(text: str, folder: Path) -> list[str]:
    message = with_references(user(text), folder)
    assert Text(text) in message.parts
    return [part.text for part in message.parts if isinstance(part, Context)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("explain @src/a.py", ["[The file src/a.py:]\nprint(1)\n"]),
        ("explain @src/a.py.", ["[The file src/a.py:]\nprint(1)\n"]),
        ("(@src/a.py) and @src/a.py again", ["[The file src/a.py:]\nprint(1)\n"]),
        ('read @"my notes.txt"', ["[The file my notes.txt:]\nbuy milk"]),
        ("what is in @src?", ["[The folder src:]\na.py"]),
        ("@blob", ["[The file blob is not text.]"]),
        ("@long.log", ["[The file long.log is long; read the parts you need.]"]),
        ("mail me@src/a.py or @nobody, @", []),
    ],
)
def test_files_that_are_there_go_along(folder: Path, text: str, expected: list[str]) -> None:
    assert added(text, folder) == expected


def test_an_image_is_shown_to_the_model(folder: Path) -> None:
    message = with_references(user("look at @pixel.png"), folder)
    assert [part.media_type for part in message.parts if isinstance(part, Image)] == ["image/png"]


def test_a_message_without_any_stays_the_same(folder: Path) -> None:
    message = User((Text("hello @ll"),))
    assert with_references(message, folder) is message


def test_too_many_are_told(folder: Path) -> None:
    for number in range(MAX_FILES + 1):
        (folder / f"f{number}").touch()
    with pytest.raises(BadInput, match=f"A message can have at most {MAX_FILES} files"):
        with_references(user(" ".join(f"@f{number}" for number in range(MAX_FILES + 1))), folder)


def test_a_file_that_cannot_be_read_is_told(folder: Path) -> None:
    (folder / "loop").symlink_to("/proc/self/mem")
    with pytest.raises(BadInput, match="Cannot read loop"):
        with_references(user("@loop"), folder)


@pytest.mark.parametrize("name", ["notes.md", "linked/id"])
def test_a_link_that_leads_out_of_the_folder_is_told_and_not_followed(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    """A command may have made it; what the person names elsewhere, they mean."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "id").write_text("a key")
    (folder / "notes.md").symlink_to(outside / "id")
    (folder / "linked").symlink_to(outside)
    assert (folder / name).read_text() == "a key"  # the control
    with pytest.raises(BadInput, match=f"Cannot read {name}: it leads out of its folder"):
        with_references(user(f"see @{name}"), folder)
    assert added(f"see @{outside}/id", folder) == [f"[The file {outside}/id:]\na key"]


def test_links_inside_of_the_folder_lead_where_they_lead(folder: Path) -> None:
    (folder / "deep/er").mkdir(parents=True)
    (folder / "deep/er/x.txt").write_text("content of x")
    (folder / "short").symlink_to("deep/er")
    (folder / "x").symlink_to("short/x.txt")
    assert added("@short/x.txt and @x", folder) == [
        "[The file short/x.txt:]\ncontent of x",
        "[The file x:]\ncontent of x",
    ]


def test_a_pipe_in_place_of_an_image_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "picture.png")
    with pytest.raises(BadInput, match="Cannot read the image"):
        read_image(tmp_path / "picture.png")
