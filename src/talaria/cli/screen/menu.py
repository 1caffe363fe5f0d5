"""A question in place of the input line: the person chooses an answer, searches for one, or types their own words."""

import asyncio
from collections.abc import Callable, Sequence
from math import ceil
from typing import Literal, NamedTuple

from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text

from talaria.cli.safe import decidable, printable, readable, visible
from talaria.cli.screen.width import cluster_before, cut, width, wrap, wrap_words
from talaria.core.questions import SHORT_LINES
from talaria.core.text import without_blank_runs

Fragments = StyleAndTextTuples
InputMode = Literal["keys", "search", "words"]
"""What typing does: choose an answer by its letter, search the answers, or enter an answer."""

MAX_CHOICES = 10
MAX_LABEL_ROWS = 3
"""For an answer that is chosen by a letter: what it covers is shown in full if there is room."""
MIN_BODY_ROWS = 3
SMALL_ROWS = 16
"""With fewer rows, what is not needed on every page becomes part of the body, which can be scrolled."""
_RULE = "─"
_HINTS: dict[InputMode, str] = {
    "keys": "↑↓ or {letters} · Enter: answer · Esc: no",
    "search": "↑↓ · Enter: select · Esc: cancel",
    "words": "↑↓ · Enter: answer · Esc: no answer",
}


class MenuItem(NamedTuple):
    value: str
    label: str
    preview: str = ""
    """Shown while it is chosen."""
    key: str = ""
    """The letter that chooses it."""
    searched: str = ""
    """More text for the search, besides the label."""


class Menu:
    """The first choice is the default. The answer is None if the person cancels."""

    def __init__(
        self,
        title: str,
        choices: Sequence[MenuItem],
        *,
        body: str = "",
        render_body: Callable[[int], Sequence[str]] | None = None,
        footer: str = "",
        quoted: str = "",
        facts: Sequence[str] = (),
        mode: InputMode = "keys",
    ) -> None:
        """`body` and labels may come from anywhere; control characters in them are shown. A choice by letter is a
        decision, so every invisible character is shown there.

        `render_body` takes columns and returns harmless rows with colours, which replace `body`. `quoted` is somebody
        else's words, marked on every line and shown last. `facts` about the body are on each of its pages: one
        sentence in several lengths, longest first.
        """
        self.answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._title = visible(title)
        self._body = decidable(body) if mode == "keys" else without_blank_runs(readable(body))
        self._render_body = render_body
        self._footer = visible(footer)
        self._quoted = decidable(quoted)
        self._facts = tuple(map(visible, facts))
        self._choices = tuple(choices)
        self._mode: InputMode = mode
        self._typed = ""
        self._chosen = 0
        self._scrolled = 0
        self._page = 1
        """How many lines of the body a page has."""
        self._rows: tuple[tuple[int, bool], list[str]] = ((0, False), [])
        """The body's rows and what they were rendered for, because rendering a long body takes a while."""
        self._pressed = ""
        self.stray_text = ""
        """Typed text that is not an answer, and was meant for the input line."""
        self._is_sentence = False
        """The person is typing a sentence, so its letters are not answers."""

    def move(self, by: int) -> None:
        self._is_sentence = False
        if self._matches:
            self._chosen = (self._chosen + by) % len(self._matches)

    def scroll(self, pages: int) -> None:
        self._scrolled = max(0, self._scrolled + pages * self._page)

    def type(self, text: str) -> None:
        if self._mode != "keys":
            self._typed += text
            self._chosen = 0
            return
        self._pressed += text
        meant = [place for place, choice in enumerate(self._choices) if choice.key and choice.key == text.lower()]
        self._chosen = 0 if self._is_sentence or not meant else meant[0]
        self._is_sentence = self._is_sentence or not meant
        if self._is_sentence:
            self.stray_text += printable(self._pressed)
            self._pressed = ""

    def erase(self) -> None:
        self._typed = self._typed[: cluster_before(self._typed, len(self._typed))]

    def accept(self) -> None:
        matches = self._matches
        if self._mode == "words" and self._typed.strip():
            self._resolve(self._typed.strip())
        elif matches:
            self._resolve(matches[self._chosen].value)
        elif self._mode != "search":
            self._resolve(None)

    def cancel(self) -> None:
        self._resolve(None)

    def _resolve(self, answer: str | None) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    @property
    def _matches(self) -> Sequence[MenuItem]:
        if self._mode != "search" or not self._typed:
            return self._choices
        words = self._typed.lower().split()
        return [one for one in self._choices if all(word in f"{one.label} {one.searched}".lower() for word in words)]

    def fragments(self, columns: int, rows: int) -> Fragments:
        """What to draw, in at most `rows`."""
        head: Fragments = [
            ("class:question.rule", f"{_RULE * 2} "),
            ("class:question.title", cut(self._title, columns - 4)),
            ("class:question.rule", f" {_RULE * max(0, columns - width(self._title) - 4)}"),
            ("", "\n"),
        ]
        choices = self._render_choices(columns, min(MAX_CHOICES, max(3, rows // 2)))
        facts = (_wrap_text(one, columns) for one in self._facts)
        shortest = [cut(self._facts[-1], columns)] if self._facts else []
        # the longest form that takes at most a sixth of the screen, or one line
        notes = next((lines for lines in facts if len(lines) <= max(1, rows // 6)), shortest)
        footer = self._footer_lines(columns)
        is_in_body = bool(self._body) and (rows < SMALL_ROWS or len(footer) > rows // 4)
        notes += [] if is_in_body else footer
        height = rows - 2 - sum(fragment[1].count("\n") for fragment in choices) - len(notes)
        letters = " ".join(one.key for one in self._choices if one.key)
        return [
            *head,
            *self._render_page(columns, max(MIN_BODY_ROWS, height), has_footer=is_in_body),
            *choices,
            *(("class:question.hint", f"{line}\n") for line in notes),
            ("class:question.hint", cut(_HINTS[self._mode].format(letters=letters), columns)),
        ]

    def _render_page(self, columns: int, rows: int, *, has_footer: bool) -> Fragments:
        if not self._body:
            return []
        if self._rows[0] != (columns, has_footer):
            if self._render_body is not None:
                body = [*self._render_body(columns - 2)]
            else:  # the headline is prose; in the rest each character stays where it is
                headline, newline, rest = self._body.partition("\n")
                body = [*_wrap_text(headline, columns - 2), *(wrap(rest, columns - 2) if newline else [])]
            footer = self._footer_lines(columns - 2) if has_footer else []
            is_short = self._body.count("\n") <= SHORT_LINES
            self._rows = ((columns, has_footer), [*body, *footer] if is_short else [*footer, *body])
        lines = self._rows[1]
        if len(lines) <= rows:
            return [fragment for line in lines for fragment in self._render_line(line)]
        self._page = max(1, rows - 2)  # the last line is seen again on the next page
        last = len(lines) - rows + 1
        self._scrolled = min(self._scrolled, last)
        left = last - self._scrolled
        page, pages = (1 + ceil(scrolled / self._page) for scrolled in (self._scrolled, last))
        more = f"{left:,} more line{'' if left == 1 else 's'}: PageDown" if left else "(end) · PageUp"
        forms = (f"page {page:,} of {pages:,} · {more}", f"{page:,}/{pages:,} · {more}", more)
        place = next((one for one in forms if width(one) <= columns - 2), cut(more, columns - 2))
        shown = lines[self._scrolled : self._scrolled + rows - 1]
        return [
            *(fragment for line in shown for fragment in self._render_line(line)),
            ("class:question.hint", f"  {place}\n"),
        ]

    def _footer_lines(self, columns: int) -> list[str]:
        return [*_wrap_text(self._footer, columns), *(f"│ {line}" for line in _wrap_text(self._quoted, columns - 2))]

    def _render_line(self, line: str) -> Fragments:
        if self._render_body is None:
            return [("class:question.body", f"  {line}\n")]
        return [("class:question.body", "  "), *to_formatted_text(ANSI(line)), ("", "\n")]

    def _render_choices(self, columns: int, rows: int) -> Fragments:
        matches = self._matches
        first = max(0, min(self._chosen - rows // 2, len(matches) - rows))
        drawn: Fragments = []
        show = visible if self._mode == "keys" else readable
        if self._mode != "keys":
            drawn += [("class:question.hint", "search: " if self._mode == "search" else "or your own words: ")]
            drawn += [("", readable(self._typed)), ("class:question.cursor", " "), ("", "\n")]
        labels = [show(" ".join(one.label.split())) for one in matches[first : first + rows]]
        wrapped = [_wrap_text(one, columns - 4) if self._mode == "keys" else [one] for one in labels]
        if any(len(one) > MAX_LABEL_ROWS for one in wrapped) or sum(map(len, wrapped)) > rows:
            wrapped = [[one] for one in labels]
        for place, lines in enumerate(wrapped, first):
            is_chosen = place == self._chosen and not (self._mode == "words" and self._typed)
            label = "\n    ".join(cut(line, columns - 4) for line in lines)
            drawn += [("class:question.chosen", f"▸ {label}\n")] if is_chosen else [("", f"  {label}\n")]
        if not matches and self._choices:
            drawn += [("class:question.hint", "  no matches\n")]
        if matches and (preview := matches[self._chosen].preview):
            shown = [line for part in show(preview).split("\n")[:4] for line in wrap(part, columns - 4)[:2]]
            drawn += [("class:question.preview", f"  │ {line}\n") for line in shown]
        return drawn


def _wrap_text(text: str, columns: int) -> list[str]:
    """Break between words, and a word that is wider than the screen anywhere, so that nothing is cut off."""
    return wrap(wrap_words(text, columns), columns) if text else []
