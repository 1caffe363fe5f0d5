"""The table: what | floor | ours | ratio | allowed | holds."""

from dataclasses import dataclass
from typing import Literal

Unit = Literal["ms", "s", "MB", "KB", "turns/s", "msg/s"]

_WIDTHS = (47, 14, 14, 7, 22, 5)


@dataclass(frozen=True, slots=True)
class Row:
    """`times` is the ratio to the floor that is allowed, `limit` the absolute figure; keeping either is enough."""

    what: str
    floor: float
    ours: float
    unit: Unit
    runs: int
    times: float | None = None
    limit: float | None = None

    @property
    def ratio(self) -> float:
        return self.ours / self.floor

    @property
    def holds(self) -> bool | None:
        """None: there is no limit, the row only informs."""
        verdicts = [
            measured >= allowed if self._more_is_better else measured <= allowed
            for measured, allowed in ((self.ratio, self.times), (self.ours, self.limit))
            if allowed is not None
        ]
        return any(verdicts) if verdicts else None

    @property
    def allowed(self) -> str:
        sign = "≥" if self._more_is_better else "≤"
        figures = [f"{self.times:g}x"] if self.times is not None else []
        figures += [_figure(self.limit, self.unit)] if self.limit is not None else []
        return f"{sign} {' or '.join(figures)}" if figures else "-"

    @property
    def _more_is_better(self) -> bool:
        return self.unit.endswith("/s")


def header() -> str:
    titles = _aligned("what (median of so many runs of each)", "floor", "ours", "ratio", "allowed", "holds")
    return f"{titles}\n{'-' * len(titles)}"


def line(row: Row) -> str:
    verdict = {True: "holds", False: "over", None: "-"}[row.holds]
    floor, ours = _figure(row.floor, row.unit), _figure(row.ours, row.unit)
    return _aligned(f"{row.what} ({row.runs})", floor, ours, f"{row.ratio:.2f}x", row.allowed, verdict)


def _figure(value: float, unit: Unit) -> str:
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f} {unit}"


def _aligned(what: str, *figures: str) -> str:
    first, *rest = _WIDTHS
    return "  ".join([f"{what:<{first}}", *(f"{figure:>{width}}" for figure, width in zip(figures, rest, strict=True))])
