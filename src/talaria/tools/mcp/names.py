"""What the model calls the tools of servers: `mcp_<server>_<tool>`, in signs that every wire takes, each name once."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from itertools import count

MAX_CHARS = 64
MARK_CHARS = 6
_STRANGE = re.compile(r"[^A-Za-z0-9_-]")


def named(tools: Iterable[tuple[str, str]]) -> list[str]:
    """For pairs of server and tool, in order. Who comes first keeps a plain name; a mark tells the others apart."""
    taken: set[str] = set()
    names: list[str] = []
    for server, tool in tools:
        name = next(name for name in _candidates(server, tool) if name not in taken)
        taken.add(name)
        names.append(name)
    return names


def _candidates(server: str, tool: str) -> Iterator[str]:
    """The same in every process: a session's tools keep their names."""
    plain = _STRANGE.sub("_", f"mcp_{server}_{tool}")
    if len(plain) <= MAX_CHARS:
        yield plain
    for attempt in count():
        mark = hashlib.sha256(f"{attempt}\0{server}\0{tool}".encode()).hexdigest()[:MARK_CHARS]
        yield f"{plain[: MAX_CHARS - MARK_CHARS - 1]}_{mark}"
