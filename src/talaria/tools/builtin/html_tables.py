"""A table's cells as they come, and what they become: a table, or paragraphs where it only served to lay things out."""

from dataclasses import dataclass, field

MAX_CELL_CHARS = 500


@dataclass(slots=True)
class Table:
    rows: list[list[str]] = field(default_factory=list[list[str]])
    is_in_cell: bool = False

    def begin(self, *, is_cell: bool) -> None:
        """A cell, or a row."""
        if not is_cell or not self.rows:
            self.rows.append([])
        self.is_in_cell = is_cell

    def add(self, cell: str) -> None:
        """Ends the cell."""
        self.rows[-1].append(" ".join(cell.split()))
        self.is_in_cell = False

    def blocks(self) -> list[str]:
        """Rows keep their own length: filling them up could take the square of what came."""
        rows = [row for row in self.rows if any(row)]
        if not _is_data(rows):
            return [" ".join(filter(None, row)) for row in rows]
        head, *rest = rows
        lines = [_line(head), "|" + "---|" * len(head), *map(_line, rest)]
        return ["\n".join(lines)]


def _is_data(rows: list[list[str]]) -> bool:
    cells = [cell for row in rows for cell in row]
    has_columns = sum(len(row) > 1 for row in rows) > 1
    return has_columns and max(map(len, cells)) <= MAX_CELL_CHARS


def _line(row: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
