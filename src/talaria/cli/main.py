"""The entry point. `--version` loads nothing else; every command loads only what it needs."""

import gc
import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in ("--version", "-V"):
        from talaria import __version__  # noqa: PLC0415

        sys.stdout.write(f"talaria {__version__}\n")
        return 0
    try:
        here = os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        sys.stderr.write("talaria: The working directory no longer exists: change to another.\n")
        sys.exit(2)
    ours = os.path.abspath(f"{__file__}/../../..")  # noqa: PTH100
    if sys.path and sys.path[0] in ("", here) and here != ours:
        del sys.path[0]  # `python -m` searches the working directory first, where a project may have modules like ours
    gc.set_threshold(200_000, 20, 20)  # loading makes about 100,000 objects, and no garbage
    try:
        from talaria.cli.plain_start import read_plain_start  # noqa: PLC0415

        start = read_plain_start(given)
        if start is not None and (start.options.has_screen or start.options.is_one_shot):
            return start.run()
        from talaria.cli.command_tree import run  # noqa: PLC0415  (loads click)

        return run(given)
    finally:
        gc.freeze()  # no need for a last collection before the exit


if __name__ == "__main__":
    sys.exit(main())
