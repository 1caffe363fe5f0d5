"""What the tools that change files tell people: the change itself, before and after it is made."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from talaria.core.ids import CallId
from talaria.core.messages import FileChange, ToolCall, ToolResult
from talaria.core.redaction import Redactor
from talaria.tools.base import OpenGate, Scope
from talaria.tools.builtin import file_tools
from talaria.tools.executor import Executor
from talaria.tools.file_content import ReadFiles
from talaria.tools.person import Proposal
from talaria.tools.registry import Toolbox

Use = Callable[..., Awaitable[ToolResult]]


def asked(scope: Scope, name: str, **arguments: object) -> Proposal:
    executor = Executor(Toolbox(file_tools.file_tools(ReadFiles())), OpenGate(), scope)
    question = executor.prepare(ToolCall(CallId("c"), name, json.dumps(arguments))).invocation.question
    assert isinstance(question, Proposal)
    return question


async def test_a_new_file_an_overwrite_and_a_patch_tell_what_they_changed(use: Use, cwd: Path) -> None:
    (cwd / "src").mkdir()
    created = await use("write_file", path="src/a.py", content="a\nb\n")
    assert created.changes == (FileChange("src/a.py", "created", 2, 0, "@@ -0,0 +1,2 @@\n+a\n+b"),)
    replaced = await use("write_file", path="src/a.py", content="a\nc\n")
    assert replaced.changes == (FileChange("src/a.py", "changed", 1, 1, "@@ -1,2 +1,2 @@\n a\n-b\n+c"),)
    assert replaced.text == f"Wrote 4 bytes to {cwd / 'src/a.py'}."
    patched = await use("patch", path="src/a.py", old="c", new="d")
    assert patched.changes == (FileChange("src/a.py", "changed", 1, 1, "@@ -1,2 +1,2 @@\n a\n-c\n+d"),)
    assert patched.text.endswith("--- a.py\n+++ a.py\n@@ -1,2 +1,2 @@\n a\n-c\n+d")
    assert (await use("write_file", path="src/a.py", content="a\nd\n")).changes == ()


async def test_a_file_outside_the_project_has_its_whole_path(use: Use, tmp_path: Path) -> None:
    result = await use("write_file", path=str(tmp_path / "out.txt"), content="x")
    assert [change.path for change in result.changes] == [str(tmp_path / "out.txt")]


async def test_a_change_shows_no_secret(scope: Scope, cwd: Path) -> None:
    secret = "sk-live-0123456789abcdef"
    (cwd / "a").write_text(f"key={secret}\nport=1\n")
    guarded = msgspec.structs.replace(scope, redactor=Redactor([secret]))
    executor = Executor(Toolbox(file_tools.file_tools(ReadFiles())), OpenGate(), guarded)
    arguments = json.dumps({"path": "a", "content": f"key={secret}\nport=2\n"})
    question = asked(guarded, "write_file", **json.loads(arguments))
    result = await executor.call(ToolCall(CallId("c"), "write_file", arguments))
    assert secret not in f"{question}{result.changes}"
    assert result.changes[0].diff == "@@ -1,2 +1,2 @@\n key=•••\n-port=1\n+port=2"


@pytest.mark.parametrize(
    ("before", "after", "content", "noun", "note"),
    [
        (None, "a\n", "a\n", "new content", ""),
        (b"a\r\nb\r\n", "a\nc\n", "@@ -1,2 +1,2 @@\n a\n-b\n+c", "change", "+1 \N{MINUS SIGN}1 lines against the file"),
        (b"a\n", "a\n", "a\n", "new content", "the file already holds exactly this"),
        (b"\0\0\0", "a\n", "a\n", "new content", "binary, 3 bytes before, 2 bytes now"),
        (b"a\n", "a\r\n", "a\r\n", "new content", "line ends LF → CRLF"),
    ],
)
def test_a_person_is_shown_the_difference_or_all_of_it_and_why(
    scope: Scope, cwd: Path, before: bytes | None, after: str, content: str, noun: str, note: str
) -> None:
    if before is not None:
        (cwd / "a").write_bytes(before)
    question = asked(scope, "write_file", path="a", content=after)
    assert (question.headline, question.content, question.noun) == (f"Write {cwd / 'a'}?", content, noun)
    assert question.note.startswith(note)
    assert bool(question.changes) is (before is None or noun == "change")


def test_a_difference_that_nobody_can_be_shown_gives_way_to_the_new_content(scope: Scope, cwd: Path) -> None:
    (cwd / "a").write_text("".join(f"old {number}\n" for number in range(70_000)))
    content = "".join(f"new {number}\n" for number in range(70_000))
    question = asked(scope, "write_file", path="a", content=content)
    assert (question.content, question.changes) == (content, ())
    assert question.note.startswith(
        "+70,000 \N{MINUS SIGN}70,000 lines against the file as it is now; the difference is too long"
    )
