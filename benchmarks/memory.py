"""Resident memory of a process after its first turn, and what each further live session adds. Linux only."""

import json
import statistics
from collections.abc import Iterator, Sequence

from benchmarks.application import temporary_home
from benchmarks.measuring import Plan
from benchmarks.model_server import model_server
from benchmarks.programs import PYTHON, ROOT, run
from benchmarks.table import Row

_WARM_UP = 50
"""Sessions after the first that fill what all share."""


def rows(plan: Plan) -> Iterator[Row]:
    runs, sessions = plan.of(5, 1), plan.of(500, 200)
    floor: list[Sequence[int]] = []
    ours: list[Sequence[int]] = []
    with model_server() as server:
        for _ in range(runs):
            floor.append(_sizes("benchmarks.floors.conversations", f"{server}/plain/0", sessions))
            ours.append(_sizes("benchmarks.conversations", f"{server}/plain/0", sessions))
    floor_first, first = (statistics.median(sizes[0] for sizes in side) / 2**20 for side in (floor, ours))
    floor_further, further = (
        statistics.median(sizes[2] - sizes[1] for sizes in side) / sessions / 2**10 for side in (floor, ours)
    )
    yield Row("memory after the first turn / aiohttp, apsw", floor_first, first, "MB", runs, limit=45)
    yield Row(f"memory per live session, {sessions} / their texts", floor_further, further, "KB", runs, limit=30)


def _sizes(program: str, url: str, sessions: int) -> Sequence[int]:
    """Bytes after the first turn, when warm, and with all sessions."""
    counts = [str(count) for count in (1, _WARM_UP, sessions)]
    with temporary_home() as home:
        return json.loads(run(PYTHON, "-m", program, url, str(home), *counts, home=home, cwd=ROOT))
