"""How a command ended, in a few words for people."""

import pytest

from talaria.core.messages import Outcome
from talaria.tools.processes import make_outcome, make_result
from talaria.tools.sandbox.running_command import LOST, ExitStatus


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (ExitStatus(0), Outcome("done", "exit 0")),
        (ExitStatus(1), Outcome("failed", "exit 1")),
        (ExitStatus(137), Outcome("failed", "killed by SIGKILL")),
        (ExitStatus(143), Outcome("failed", "killed by SIGTERM")),
        (ExitStatus(128), Outcome("failed", "exit 128")),
        (ExitStatus(148), Outcome("failed", "exit 148")),
        (ExitStatus(0, "disk"), Outcome("failed", "stopped, the disk is nearly full")),
        (ExitStatus(137, "memory", limit_bytes=2 << 30), Outcome("failed", "out of memory, the limit is 2 GiB")),
        (LOST, Outcome("failed", "lost with its sandbox")),
        (None, Outcome("failed", "timed out after 60 s")),
    ],
)
def test_exit_codes_signals_limits_and_time(end: ExitStatus | None, outcome: Outcome) -> None:
    assert make_outcome(end, 60) == outcome


@pytest.mark.parametrize(("output", "chars"), [("", 0), ("\n\n", 0), ("a\n", 2), ("\na", 1), ("漢字", 2)])
def test_the_output_is_told_apart_from_what_is_said_of_it(output: str, chars: int) -> None:
    shown = make_result(output, ExitStatus(0), 60, "\n[network: x was refused]")
    assert shown.outcome is not None
    assert shown.outcome.output_chars == chars
    assert shown.text[chars:].lstrip("\n") == "[exit code 0]\n[network: x was refused]"
