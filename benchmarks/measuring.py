"""What every row measures with."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    is_quick: bool

    def of(self, usual: int, quick: int) -> int:
        return quick if self.is_quick else usual


@dataclass(slots=True)
class Lap:
    """Times what stands inside `with`, again and again; the first `warm_up` laps do not count."""

    warm_up: int = 0
    laps: list[float] = field(default_factory=list[float])
    _began: float = 0.0

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.laps.append(time.perf_counter() - self._began)

    @property
    def counted(self) -> Sequence[float]:
        return self.laps[self.warm_up :]

    @property
    def median_s(self) -> float:
        return statistics.median(self.counted)

    @property
    def median_ms(self) -> float:
        return self.median_s * 1000


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
