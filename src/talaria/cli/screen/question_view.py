"""A question about changes of files, as a person at a terminal reads it before they decide. Nothing is left out."""

from talaria.cli.safe import decidable
from talaria.cli.screen import palette
from talaria.cli.screen.change_view import paint_change, without_codes
from talaria.cli.screen.painting import has_colour
from talaria.cli.screen.width import wrapped
from talaria.tools.person import Question


def question_rows(question: Question, columns: int, *, is_plain: bool = False) -> list[str]:
    """No row is wider than `columns`. `is_plain`: they are text and nothing else, also where there are colours."""
    colours = palette.current() if has_colour() else palette.CAREFUL
    place = f"\n(in {question.place})" if question.place else ""
    rows = wrapped(decidable(f"{question.headline}{place}"), columns)
    for change in question.changes:
        painted = paint_change(change, columns, colours, most_rows=None, has_colour=has_colour())
        rows += [*painted.header.split("\n"), *painted.rows]
    return [without_codes(row) for row in rows] if is_plain else rows
