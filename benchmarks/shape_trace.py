"""`python -m benchmarks.shape_trace OUT all|signal ARGUMENTS`: runs `talaria` and notes what it calls of ours.

`all`: from the start to the end. `signal`: between SIGUSR1 and SIGUSR2, after which OUT is written.
"""

import json
import signal
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from types import FrameType


class CallTrace:
    def __init__(self, out: Path, source: str, *, is_on: bool) -> None:
        self._out = out
        self._source = source
        self._is_on = is_on
        self._functions: dict[str, None] = {}
        self._calls = 0

    def note(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not self._is_on:
            return
        self._calls += 1
        code = frame.f_code
        if code.co_filename.startswith(self._source) and not code.co_name.startswith("<"):
            self._functions[f"{code.co_filename[len(self._source) :]}:{code.co_qualname}"] = None

    def start(self, *_: object) -> None:
        self._functions.clear()
        self._calls = 0
        self._is_on = True

    def write(self, *_: object) -> None:
        self._is_on = False
        unfinished = self._out.with_suffix(".part")
        unfinished.write_text(json.dumps({"functions": list(self._functions), "calls": self._calls}), "utf-8")
        unfinished.replace(self._out)


def main() -> int:
    spec = find_spec("talaria")
    assert spec is not None
    assert spec.origin is not None
    trace = CallTrace(Path(sys.argv[1]), f"{Path(spec.origin).parent}/", is_on=sys.argv[2] == "all")
    if sys.argv[2] == "signal":
        signal.signal(signal.SIGUSR1, trace.start)
        signal.signal(signal.SIGUSR2, trace.write)
    threading.setprofile(trace.note)
    sys.setprofile(trace.note)
    from talaria.cli.main import main as talaria

    try:
        return talaria(sys.argv[3:])
    finally:
        if sys.argv[2] == "all":
            trace.write()


if __name__ == "__main__":
    sys.exit(main())
