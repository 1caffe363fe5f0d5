"""One question, one answer: from the start of the program to its exit, in a home that has been used before."""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.application import temporary_home
from benchmarks.measuring import Lap, Plan
from benchmarks.model_server import model_server
from benchmarks.programs import PYTHON, TALARIA, run
from benchmarks.table import Row

_FLOORS = Path(__file__).with_name("floors")
_WARM_UP = 2


def rows(plan: Plan) -> Iterator[Row]:
    runs = plan.of(21, 5)
    httpx, stdlib, ours = Lap(_WARM_UP), Lap(_WARM_UP), Lap(_WARM_UP)
    with temporary_home() as home, model_server() as server:
        url = f"{server}/plain/0"
        (home / "config.yaml").write_text(f"model:\n  base_url: {url}\n")
        for _ in range(runs + _WARM_UP):
            with httpx:
                expected = _floor("one_shot_httpx.py", url, home)
            with stdlib:
                _floor("one_shot_stdlib.py", url, home)
            with ours:
                said = run(TALARIA, "chat", "-q", "hi", "-m", "custom:test", home=home)
            if said.split() != expected.split():
                raise RuntimeError(f"ours answered {said!r}, the floor {expected!r}")
    yield Row("one-shot / httpx and a commit", httpx.median_ms, ours.median_ms, "ms", runs, times=1.2)
    yield Row("one-shot / standard library", stdlib.median_ms, ours.median_ms, "ms", runs, times=4)


def _floor(program: str, url: str, home: Path) -> str:
    return run(PYTHON, str(_FLOORS / program), f"{url}/chat/completions", str(home / f"{program}.db"), home=home)
