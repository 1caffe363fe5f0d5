"""`--version`, which is answered before anything is loaded."""

from collections.abc import Iterator

from benchmarks.measuring import Lap, Plan
from benchmarks.programs import PYTHON, TALARIA, run
from benchmarks.table import Row


def rows(plan: Plan) -> Iterator[Row]:
    runs = plan.of(31, 7)
    floor, ours = Lap(warm_up=2), Lap(warm_up=2)
    for _ in range(runs + 2):
        with floor:
            run(PYTHON, "-c", "pass")
        with ours:
            run(TALARIA, "--version")
    yield Row("--version / bare Python", floor.median_ms, ours.median_ms, "ms", runs, times=2.5)
