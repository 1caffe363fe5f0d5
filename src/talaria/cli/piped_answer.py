"""An answer into a pipe or a file: line by line, as it comes. At the end of a turn without mishaps the output is the
answer and a line break, as if it had been printed at once.

What is printed cannot be taken back. So a line is printed once it is complete: the words with which a model announces a
tool call are mostly one line, and those are dropped. When a model is asked again, the new answer goes on after what it
has in common with the old one, or begins on a line of its own; then stderr says that what came before is void.
"""

from typing import TextIO

from talaria.cli.notices import say
from talaria.core.events import AnswerRestarted, Event, RoundEnded, TextDelta
from talaria.runtime.turn_runner import Report

LONGEST_HELD_CHARS = 1_000
"""A line that becomes longer is printed as it comes."""
VOID = "What was printed of the answer so far is void; the whole answer follows."
NOT_YET = "What was printed so far was not the answer yet; it follows."


class PipedAnswer:
    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._text = ""
        """Of the round that is under way, or was the last."""
        self._printed_chars = 0
        """Of `_text`."""
        self._void = ""
        """What was printed of an answer that is given again."""
        self._is_round_over = False

    def show(self, event: Event) -> None:
        match event:
            case TextDelta(text):
                if self._is_round_over:
                    self._disown(NOT_YET)
                self._add(text)
            case AnswerRestarted():
                self._void = self._void or self._text[: self._printed_chars]
                self._text, self._printed_chars, self._is_round_over = "", 0, False
            case RoundEnded(message) if message.calls:
                self._disown(NOT_YET)
            case RoundEnded():
                self._is_round_over = True
            case _:
                pass

    def finish(self, report: Report) -> None:
        """A turn that did not come to its end leaves what was printed, to the end of what came."""
        printed = self._void or self._text[: self._printed_chars]
        if report.outcome != "completed":
            if self._printed_chars:
                self._write(self._text[self._printed_chars :])
                self._printed_chars = len(self._text)
            self._end_line()
        elif report.text.startswith(printed):
            self._write(f"{report.text[len(printed) :]}\n")
        else:
            self._disown(VOID)
            self._write(f"{report.text}\n")

    def _add(self, text: str) -> None:
        self._text += text
        if self._void:
            if not self._void.startswith(self._text[: len(self._void)]):
                text = self._text
                self._disown(VOID)
                self._text = text
            elif len(self._text) < len(self._void):
                return  # says the same again, so far
            else:
                self._printed_chars, self._void = len(self._void), ""
        end = self._text.rfind("\n", self._printed_chars) + 1
        if not end and len(self._text) - self._printed_chars > LONGEST_HELD_CHARS:
            end = len(self._text)
        if end:
            self._write(self._text[self._printed_chars : end])
            self._printed_chars = end

    def _disown(self, why: str) -> None:
        """The next text is another one; whoever has seen something of this one is told."""
        if self._void or self._printed_chars:
            self._end_line()
            say(why)
        self._text, self._printed_chars, self._void, self._is_round_over = "", 0, "", False

    def _end_line(self) -> None:
        printed = self._void or self._text[: self._printed_chars]
        if printed and not printed.endswith("\n"):
            self._write("\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
