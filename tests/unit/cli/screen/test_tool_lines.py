"""The lines that a tool call leaves on the screen."""

import json
import re

import pytest

from talaria.cli.screen.turn_view import ToolCallLines
from talaria.cli.screen.width import width
from talaria.cli.tool_outcomes import pick_lines
from talaria.core.ids import CallId
from talaria.core.messages import FileChange, Outcome, ToolResult

STYLE = re.compile(r"\x1b\[[\d;]*m")
ARGUMENTS = json.dumps({"command": "make test"})


def result(text: str, outcome: Outcome | None = None, *, is_error: bool = False, name: str = "terminal") -> ToolResult:
    never_ran = outcome is not None and outcome.kind in ("refused", "invalid")
    return ToolResult(CallId("c"), name, text, is_error, "none" if never_ran else "done", outcome=outcome)


def printed(output: str, how: str = "failed", words: str = "exit 3") -> ToolResult:
    kind = "done" if how == "done" else "failed"
    return result(f"{output}\n[exit code 3]", Outcome(kind, words, output_chars=len(output)))


def shown(made: ToolResult, seconds: float | None = 1.25, columns: int = 60) -> list[str]:
    return STYLE.sub("", ToolCallLines(made.name, ARGUMENTS, made, seconds).render_ended(columns)).split("\n")


@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        (Outcome("done", "exit 0"), "  ✓ terminal  make test  1.2 s"),
        (Outcome("done", "still running"), "  ✓ terminal  make test  still running · 1.2 s"),
        (Outcome("failed", "exit 3"), "  ✗ terminal  make test  exit 3 · 1.2 s"),
        (Outcome("failed", "killed by SIGKILL"), "  ✗ terminal  make test  killed by SIGKILL · 1.2 s"),
        (Outcome("failed", "timed out after 60 s"), "  ✗ terminal  make test  timed out after 60 s · 1.2 s"),
        (Outcome("refused", "the person said no", "person"), "  ✗ terminal  make test  refused: you said no"),
        (Outcome("invalid", "bad path"), "  ✗ terminal  make test  invalid: bad path"),
        (Outcome("cancelled", "stopped"), "  ✗ terminal  make test  stopped · 1.2 s"),
    ],
)
def test_only_success_is_ticked_and_the_rest_says_what_went_wrong(outcome: Outcome, line: str) -> None:
    assert shown(result("", outcome)) == [line]


def test_the_tick_alone_is_green(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    done, wrong = (
        ToolCallLines("t", "", result("", outcome)).render_ended(60) for outcome in (None, Outcome("failed", "exit 1"))
    )
    assert ("\x1b[32m✓" in done, "\x1b[32m" in wrong, "\x1b[31m✗" in wrong) == (True, False, True)


def test_a_long_reason_stands_below_the_line() -> None:
    reason = "nobody is here to allow it: this command removes files outside of the folder of this project"
    assert shown(result("Error: …", Outcome("refused", reason, "nobody"), is_error=True)) == [
        "  ✗ terminal  make test  refused",
        "    nobody is here to allow it: this command removes files",
        "    outside of the folder of this project",
    ]


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (result("out\n[exit code 0]"), "  ✓ terminal  make test"),
        (result("[exit code 0]\nout\n[exit code 7]"), "  ✗ terminal  make test  exit 7"),
        (result("out\n[exit code 2]\n[network: x was refused]"), "  ✗ terminal  make test  exit 2"),
        (result("[stopped after 9 seconds; it did not end by itself]"), "  ✗ terminal  make test  timed out after 9 s"),
        (result("[exit code 9]", name="read_file"), "  ✓ read_file  make test"),
        (result("Error: Not there. Look.", is_error=True), "  ✗ terminal  make test  Not there"),
    ],
)
def test_results_of_earlier_versions_are_as_honest(made: ToolResult, line: str) -> None:
    assert shown(made, None)[0] == line


def test_a_quiet_command_leaves_its_line_alone() -> None:
    assert len(shown(printed("", "done", "exit 0"))) == 1


def test_the_last_lines_of_the_output_stand_below() -> None:
    output = "".join(f"line {number}\n" for number in range(9))
    assert shown(printed(output, "done", "exit 0"))[1:] == [
        *(f"    line {number}" for number in range(4, 9)),
        "    … 4 more lines: Ctrl-O",
    ]


def test_one_line_more_is_shown_rather_than_counted() -> None:
    assert len(shown(printed("a\nb\nc\nd\ne\nf\n"))) == 7


def test_output_that_was_not_kept_whole_is_not_counted() -> None:
    output = "a\nb\n\n[… 5,000 bytes left out; all 9,000 are in /home/x/spill/c-output.txt …]\n\n" + "c\n" * 7
    assert shown(printed(output, "done"))[-1] == "    … more than 4 more lines: Ctrl-O"
    assert "/home/x/spill/c-output.txt" in ToolCallLines("terminal", "", printed(output)).render_details(80)


PYTEST = """============================= test session starts ==============================
collected 40 items

tests/test_a.py ....F.......................
....................F...................                                  [100%]
=================================== FAILURES ===================================
E   AssertionError: assert 1 == 2
tests/test_a.py:7: AssertionError
----------------------------- Captured stdout call -----------------------------
one
two
three
FAILED tests/test_a.py::test_x - AssertionError: assert 1 == 2
================== 1 failed, 39 passed in 0.12s =================="""


def test_of_a_failure_the_lines_that_say_what_is_wrong_come_first() -> None:
    lines = [line for line in PYTEST.split("\n") if line]
    told = pick_lines(lines, 5, is_failed=True)
    assert told[-2:] == lines[-2:]
    assert "E   AssertionError: assert 1 == 2" in told
    assert not {"one", "two", "three"} & set(told)
    assert pick_lines([*map(str, range(9)), "error: x", *map(str, range(9))], 3, is_failed=True) == [
        "error: x",
        "7",
        "8",
    ]
    assert pick_lines(["....F....", "a", "-----"], 5, is_failed=True) == ["a"]
    assert pick_lines([*map(str, range(9))], 5, is_failed=True) == [*map(str, range(4, 9))]
    assert pick_lines([f"error {number}" for number in range(9)], 3, is_failed=True) == [
        "error 6",
        "error 7",
        "error 8",
    ]


def test_progress_bars_and_colours_are_as_a_terminal_leaves_them() -> None:
    output = "\x1b[32mgreen\x1b[0m\r\n 10%\r 55%\r100%\n\x1b]0;title\x07a\tb\nodd \x08 sign\n"
    assert shown(printed(output, "done"))[1:] == ["    green", "    100%", "    a       b", "    odd \\x08 sign"]


@pytest.mark.parametrize("columns", [40, 80])
def test_wide_signs_fit_into_narrow_screens(columns: int) -> None:
    assert all(width(line) <= columns for line in shown(printed("漢字🌞" * 40 + "\n" + "x" * 300), columns=columns))


def test_details_have_all_of_the_output() -> None:
    output = "".join(f"line {number}\n" for number in range(1_000))
    told = STYLE.sub("", ToolCallLines("terminal", ARGUMENTS, printed(output)).render_details(80)).split("\n")
    assert told[:3] == ["● terminal", f"    {ARGUMENTS}", "  ─ exit 3"]
    assert told[3:] == [*(f"    line {number}" for number in range(1_000)), "    [exit code 3]"]


def test_what_is_said_of_a_command_besides_its_end_is_shown() -> None:
    text = "out\n[exit code 0]\n[network: example.org was refused]\n\n[This exact call has …]"
    assert shown(result(text, Outcome("done", "exit 0", output_chars=4)))[1:] == [
        "    out",
        "    network: example.org was refused",
    ]


def test_changed_files_are_told_by_the_result_and_not_read_from_a_diff_that_was_printed() -> None:
    diff = "--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y\n"
    assert shown(printed(diff, "done", "exit 0"))[1:] == [f"    {line}" for line in diff.split("\n") if line]
    change = FileChange("a.py", "changed", 1, 1, "@@ -1 +1 @@\n-x\n+y")
    changed = ToolResult(CallId("c"), "patch", "ok", changes=(change,), more_changes=2)
    lines = shown(changed)
    assert {"    a.py  +1 \N{MINUS SIGN}1", "    1 -x", "    1 +y"} <= set(lines)
    assert lines[-1] == "    and 2 more files"
