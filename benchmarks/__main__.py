"""`make bench`: measures the rows and prints one table. It is no test: only a row that breaks is a failure."""

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks import (
    api,
    append,
    commands,
    crowd,
    gateway,
    long_conversation,
    memory,
    one_shot,
    piped_chat,
    recording,
    screen,
    search,
    tool_round,
    turns,
    version,
)
from benchmarks.measuring import Plan
from benchmarks.table import Row, header, line

ROWS: Mapping[str, Callable[[Plan], Iterator[Row]]] = {
    "version": version.rows,
    "one-shot": one_shot.rows,
    "screen": screen.rows,
    "turn": turns.rows,
    "piped-chat": piped_chat.rows,
    "long-conversation": long_conversation.rows,
    "tool-round": tool_round.rows,
    "commands": commands.rows,
    "crowd": crowd.rows,
    "gateway": gateway.rows,
    "api": api.rows,
    "memory": memory.rows,
    "append": append.rows,
    "recording": recording.rows,
    "search": search.rows,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"rows to run, of: {', '.join(ROWS)}")
    parser.add_argument("--quick", action="store_true", help="fewer runs and smaller data")
    given = parser.parse_args(arguments)
    unknown = set(given.names) - set(ROWS)
    if unknown:
        parser.error(f"there is no row {', '.join(sorted(unknown))}; known are: {', '.join(ROWS)}")
    _leave_proxies()
    print(header(), flush=True)
    broken = [name for name in given.names or ROWS if not _is_printed(name, Plan(given.quick))]
    return 1 if broken else 0


def _leave_proxies() -> None:
    """All traffic stays on loopback."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        del os.environ[name]


def _is_printed(name: str, plan: Plan) -> bool:
    try:
        for row in ROWS[name](plan):
            print(line(row), flush=True)
    except Exception:  # noqa: BLE001  (the other rows are still worth having)
        print(f"{name} broke:", file=sys.stderr)
        traceback.print_exc()
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
