"""A question in place of the line: one of several answers is chosen, found by typing, or put in own words."""

import asyncio
from collections.abc import Callable, Sequence
from math import ceil
from typing import Literal, NamedTuple

from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text

from talaria.cli.safe import decidable, printable, readable, visible
from talaria.cli.screen.width import cluster_before, cut, paragraphs, width, wrapped
from talaria.core.text import without_blank_runs
from talaria.tools.person import SHORT_LINES

Fragments = StyleAndTextTuples
Typing = Literal["keys", "search", "words"]
"""What typing does: choose by a letter, search among the answers, or answer in own words."""

MOST_ROWS = 10
MOST_LABEL_ROWS = 3
"""Of an answer that is chosen by a letter: what it covers is seen whole, if there is room."""
MIN_BODY_ROWS = 3
SMALL_ROWS = 16
"""With fewer of them all that is not needed on every page is part of the body, which can be scrolled."""
_RULE = "─"


class MenuItem(NamedTuple):
    value: str
    label: str
    preview: str = ""
    """Shown while it is the chosen one."""
    key: str = ""
    """The letter that chooses it."""
    searched: str = ""
    """What is searched besides the label."""


class Menu:
    """The first choice is the default. None as its answer: it was left."""

    def __init__(
        self,
        title: str,
        choices: Sequence[MenuItem],
        *,
        body: str = "",
        painted: Callable[[int], Sequence[str]] | None = None,
        footer: str = "",
        quoted: str = "",
        facts: Sequence[str] = (),
        typing: Typing = "keys",
    ) -> None:
        """`body` and labels may come from anywhere; control signs in them are shown. What is chosen by a letter is
        a decision, so every invisible character is shown there.

        `painted`: the rows of the body for so many columns, harmless and with colours; shown in its place.
        `quoted`: somebody else's words, marked on every line and shown last.
        `facts` are about the body, on every page of it: one sentence in several lengths, the longest first.
        """
        self.answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._title = visible(title)
        self._body = decidable(body) if typing == "keys" else without_blank_runs(readable(body))
        self._painted = painted
        self._footer = visible(footer)
        self._quoted = decidable(quoted)
        self._facts = tuple(map(visible, facts))
        self._choices = tuple(choices)
        self._typing: Typing = typing
        self._typed = ""
        self._at = 0
        self._scrolled = 0
        self._page = 1
        """How many lines of the body are shown."""
        self._rows: tuple[tuple[int, bool], list[str]] = ((0, False), [])
        """Those of the body, and of what they were made: of a long one that is not done at every drawing."""
        self._pressed = ""
        self.beside = ""
        """What was typed and is no answer: it was meant for the line."""
        self._is_in_words = False
        """Somebody types a sentence: its letters are no answers."""

    def move(self, by: int) -> None:
        self._is_in_words = False
        if self._found:
            self._at = (self._at + by) % len(self._found)

    def scroll(self, pages: int) -> None:
        self._scrolled = max(0, self._scrolled + pages * self._page)

    def type(self, text: str) -> None:
        if self._typing != "keys":
            self._typed += text
            self._at = 0
            return
        self._pressed += text
        meant = [place for place, choice in enumerate(self._choices) if choice.key and choice.key == text.lower()]
        self._at = 0 if self._is_in_words or not meant else meant[0]
        self._is_in_words = self._is_in_words or not meant
        if self._is_in_words:
            self.beside += printable(self._pressed)
            self._pressed = ""

    def erase(self) -> None:
        self._typed = self._typed[: cluster_before(self._typed, len(self._typed))]

    def accept(self) -> None:
        found = self._found
        if self._typing == "words" and self._typed.strip():
            self._settle(self._typed.strip())
        elif found:
            self._settle(found[self._at].value)
        elif self._typing != "search":
            self._settle(None)

    def leave(self) -> None:
        self._settle(None)

    def _settle(self, answer: str | None) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    @property
    def _found(self) -> Sequence[MenuItem]:
        if self._typing != "search" or not self._typed:
            return self._choices
        words = self._typed.lower().split()
        return [one for one in self._choices if all(word in f"{one.label} {one.searched}".lower() for word in words)]

    def fragments(self, columns: int, rows: int) -> Fragments:
        """As it is drawn, no higher than `rows`."""
        head: Fragments = [
            ("class:question.rule", f"{_RULE * 2} "),
            ("class:question.title", cut(self._title, columns - 4)),
        ]
        head += [("class:question.rule", f" {_RULE * max(0, columns - width(self._title) - 4)}"), ("", "\n")]
        answers = self._answers(columns, min(MOST_ROWS, max(3, rows // 2)))
        told = self._lines_of_facts(columns, rows)
        footer = self._lines_of_footer(columns)
        is_below = bool(self._body) and (rows < SMALL_ROWS or len(footer) > rows // 4)
        told += [] if is_below else footer
        foot: Fragments = [("class:question.hint", f"{line}\n") for line in told]
        height = rows - 2 - sum(fragment[1].count("\n") for fragment in answers) - len(foot)
        return [
            *head,
            *self._lines_of_body(columns, max(MIN_BODY_ROWS, height), has_footer=is_below),
            *answers,
            *foot,
            ("class:question.hint", self._hint(columns)),
        ]

    def _lines_of_body(self, columns: int, rows: int, *, has_footer: bool) -> Fragments:
        if not self._body:
            return []
        if self._rows[0] != (columns, has_footer):
            self._rows = ((columns, has_footer), self._wrapped_body(columns - 2, has_footer=has_footer))
        lines = self._rows[1]
        if len(lines) <= rows:
            return [fragment for line in lines for fragment in self._drawn(line)]
        self._page = max(1, rows - 2)  # the last line is seen again
        last = len(lines) - rows + 1
        self._scrolled = min(self._scrolled, last)
        left = last - self._scrolled
        page, pages = (1 + ceil(scrolled / self._page) for scrolled in (self._scrolled, last))
        more = f"{left:,} more line{'' if left == 1 else 's'}: PageDown" if left else "(the end) PageUp"
        told = (f"page {page:,} of {pages:,} · {more}", f"{page:,}/{pages:,} · {more}", more)
        place = next((one for one in told if width(one) <= columns - 2), cut(more, columns - 2))
        shown = lines[self._scrolled : self._scrolled + rows - 1]
        return [
            *(fragment for line in shown for fragment in self._drawn(line)),
            ("class:question.hint", f"  {place}\n"),
        ]

    def _wrapped_body(self, columns: int, *, has_footer: bool) -> list[str]:
        body = self._plain_body(columns) if self._painted is None else [*self._painted(columns)]
        footer = self._lines_of_footer(columns) if has_footer else []
        return [*body, *footer] if self._body.count("\n") <= SHORT_LINES else [*footer, *body]

    def _plain_body(self, columns: int) -> list[str]:
        """The headline is prose; of everything else each character stands where it stands."""
        headline, newline, rest = self._body.partition("\n")
        return [*_broken(headline, columns), *(wrapped(rest, columns) if newline else [])]

    def _lines_of_footer(self, columns: int) -> list[str]:
        return [*_broken(self._footer, columns), *(f"│ {line}" for line in _broken(self._quoted, columns - 2))]

    def _drawn(self, line: str) -> Fragments:
        if self._painted is None:
            return [("class:question.body", f"  {line}\n")]
        return [("class:question.body", "  "), *to_formatted_text(ANSI(line)), ("", "\n")]

    def _lines_of_facts(self, columns: int, rows: int) -> list[str]:
        """Of a long screen they may take a sixth, and at least one line of any."""
        fitting = (_broken(one, columns) for one in self._facts)
        return next(
            (lines for lines in fitting if len(lines) <= max(1, rows // 6)),
            [cut(self._facts[-1], columns)] if self._facts else [],
        )

    def _answers(self, columns: int, rows: int) -> Fragments:
        found = self._found
        first = max(0, min(self._at - rows // 2, len(found) - rows))
        drawn: Fragments = []
        shown_as = visible if self._typing == "keys" else readable
        if self._typing != "keys":
            drawn += [("class:question.hint", "search: " if self._typing == "search" else "or in your words: ")]
            drawn += [("", readable(self._typed)), ("class:question.cursor", " "), ("", "\n")]
        labels = [shown_as(" ".join(one.label.split())) for one in found[first : first + rows]]
        broken = [_broken(one, columns - 4) if self._typing == "keys" else [one] for one in labels]
        if any(len(one) > MOST_LABEL_ROWS for one in broken) or sum(map(len, broken)) > rows:
            broken = [[one] for one in labels]
        for place, lines in enumerate(broken, first):
            is_chosen = place == self._at and not (self._typing == "words" and self._typed)
            label = "\n    ".join(cut(line, columns - 4) for line in lines)
            drawn += [("class:question.chosen", f"▸ {label}\n")] if is_chosen else [("", f"  {label}\n")]
        if not found and self._choices:
            drawn += [("class:question.hint", "  nothing fits\n")]
        if found and (preview := found[self._at].preview):
            shown = [line for part in shown_as(preview).split("\n")[:4] for line in wrapped(part, columns - 4)[:2]]
            drawn += [("class:question.preview", f"  │ {line}\n") for line in shown]
        return drawn

    def _hint(self, columns: int) -> str:
        letters = " ".join(one.key for one in self._choices if one.key)
        how = {"keys": f"↑↓ · {letters} choose · Enter answers · Esc no", "search": "↑↓ · Enter takes it · Esc leaves"}
        return cut(how.get(self._typing, "↑↓ · Enter answers · Esc no answer"), columns)


def _broken(text: str, columns: int) -> list[str]:
    """Between words, and a word that is wider than the screen anywhere: nothing of it is cut off."""
    return wrapped(paragraphs(text, columns), columns) if text else []
