"""Turns from the journal, painted as they were when they ran."""

from collections.abc import Sequence
from typing import NamedTuple

from talaria.cli.conversation import INTERRUPTED
from talaria.cli.safe import readable
from talaria.cli.screen.painting import BOLD, CYAN, DIM, RED, YELLOW, styled
from talaria.cli.screen.screen import PROMPT
from talaria.cli.screen.turn_view import TurnView
from talaria.cli.screen.width import paragraphs
from talaria.cli.sessions.remarks import remark_on
from talaria.core.clock import Clock
from talaria.core.entries import MessageAdded, Recorded, TurnEnded, TurnStarted
from talaria.core.events import RoundEnded, ThinkingDelta, ToolBegan, ToolEnded
from talaria.core.messages import Assistant, Thinking, ToolResult, User

MOST_ECHOED_LINES = 12


class PastTurns(NamedTuple):
    lines: Sequence[str]
    is_all: bool
    """False: something was before these lines."""
    last: TurnView | None
    tokens: int | None
    """That the conversation took in its last round."""


class _Sheet:
    """A screen as far as a turn needs one; keeps what is printed."""

    menu = None

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.lines: list[str] = []

    def print(self, text: str) -> None:
        self.lines += text.split("\n")


def paint_past_turns(entries: Sequence[Recorded], columns: int, most_lines: int, clock: Clock) -> PastTurns:
    """The last turns that fit, the very last one at least in part. Takes a moment: markdown is painted."""
    starts = [place for place, one in enumerate(entries) if isinstance(one.entry, TurnStarted) and place]
    turns = [entries[begin:end] for begin, end in zip([0, *starts], [*starts, len(entries)], strict=True)]
    lines: list[str] = []
    last: TurnView | None = None
    tokens: int | None = None
    left = len(turns) if entries else 0
    while left and len(lines) < most_lines:
        used: list[int] = []
        sheet = _Sheet(columns)
        view = TurnView(sheet, clock, lambda count, _, used=used: used.append(count))
        _paint(turns[left - 1], view, sheet)
        if last is not None and len(sheet.lines) + len(lines) > most_lines:
            break
        lines = [*sheet.lines, *lines]
        if last is None:
            last, tokens = view, used[-1] if used else None
        left -= 1
    is_all = not left and len(lines) <= most_lines and (not entries or entries[0].seq == 1)
    return PastTurns(lines[-most_lines:], is_all, last, tokens)


def _paint(turn: Sequence[Recorded], view: TurnView, sheet: _Sheet) -> None:
    called_at: dict[str, float] = {}
    for one in turn:
        match one.entry:
            case MessageAdded(User(author="person") as said):
                sheet.print(paint_words(said.text, sheet.columns))
            case MessageAdded(User(author="steering") as said):
                sheet.print(styled(f"  ↪ {readable(said.text)}", CYAN))
            case MessageAdded(User()):
                pass  # of the host; people are not shown it
            case MessageAdded(Assistant() as message):
                view.show(ThinkingDelta("".join(part.text for part in message.parts if isinstance(part, Thinking))))
                view.show(RoundEnded(message))
                for call in message.calls:
                    view.show(ToolBegan(call.id, call.name, call.arguments))
                    called_at[call.id] = one.at
            case MessageAdded(ToolResult() as result):
                view.show(ToolEnded(result, max(0.0, one.at - called_at.get(result.call_id, one.at))))
            case TurnEnded(_, outcome, _, error):
                view.end()
                if outcome != "completed":
                    failure = styled(paragraphs(readable(error), sheet.columns), RED)
                    sheet.print(failure if error else styled(INTERRUPTED, YELLOW))
                sheet.print("")
            case entry:
                if remark := remark_on(entry):
                    sheet.print(styled(paragraphs(f"  {readable(remark)}", sheet.columns), YELLOW))


def paint_words(line: str, columns: int) -> str:
    """What the person has said, or the beginning of it."""
    first, *others = paragraphs(readable(line), columns - len(PROMPT)).split("\n")
    kept = others[: MOST_ECHOED_LINES - 1]
    left = len(others) - len(kept)
    more = [styled(f"  … {left} more lines", DIM)] if left else []
    return "\n".join([styled(PROMPT, CYAN, BOLD) + styled(first, BOLD), *(f"  {one}" for one in kept), *more])
