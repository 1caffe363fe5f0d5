"""How much memory commands use together with all that they have started; told by /proc. Imports nothing of ours."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def memory_used(roots: Iterable[int], limit_bytes: int) -> dict[int, int]:
    """In bytes, by the process at the root of each command. What several share counts for each of them, unless they
    would be over the limit: then it is looked at again, and counts once."""
    families = {root: tuple(_descend(root)) for root in roots}
    used = {root: sum(map(_resident, family)) for root, family in families.items()}
    if sum(used.values()) <= limit_bytes:
        return used
    return {root: sum(map(_proportional, family)) for root, family in families.items()}


def _descend(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as file:
                children = file.read().split()
                for child in children:
                    yield from _descend(int(child))


def _resident(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES
    return 0


def _proportional(pid: int) -> int:
    """Of what is shared with others its part; all of it where nobody may look so closely."""
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) << 10 for line in file if line.startswith(("Pss:", "SwapPss:")))
    return _resident(pid)
