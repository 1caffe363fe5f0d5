"""Listings on disk: what a server offered last, under its entry's content. A file that cannot be used is not there.

Entries of config.yaml that an earlier version ran outside of the sandbox: they stay there until the person decides.

They are recorded once, when this version first sees them; an entry with another command is a new one.
"""

import hashlib
import logging
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from talaria.core.fs import read_bytes, replace_file
from talaria.tools.mcp.offers import ServerTool
from talaria.tools.mcp.server_entries import ServerEntry, digest

MAX_CACHE_BYTES = 64 << 20


class Listing(msgspec.Struct, frozen=True):
    offers: tuple[ServerTool, ...] = ()
    refused: tuple[str, ...] = ()
    """Why some of its tools are not among them."""
    is_known: bool = True
    """False: it was waited for once, in vain, and is not waited for again."""


NEVER_ANSWERED = Listing(is_known=False)


def file_for(home: Path, name: str, entry: ServerEntry) -> Path:
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:40]
    return home / "cache" / "mcp" / f"{readable}-{digest(entry)}.json"


def read(file: Path) -> Listing | None:
    try:
        return msgspec.json.decode(read_bytes(file, MAX_CACHE_BYTES), type=Listing)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None


def write(file: Path, listing: Listing) -> None:
    """Raises `OSError`."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(file, msgspec.json.encode(listing), mode=0o600)


FILE = "mcp-earlier.json"
MAX_EARLIER_BYTES = 1 << 20

log = logging.getLogger(__name__)


def earlier(configured: Mapping[str, ServerEntry], home: Path) -> frozenset[str]:
    """The names of those that run outside because they did before. Looks at the file system: not on the loop."""
    started = {name: entry for name, entry in configured.items() if entry.command is not None}
    if not started:
        return frozenset()
    recorded = _read_record(home)
    if recorded is None:
        recorded = {name: _digest(one) for name, one in started.items() if file_for(home, name, one).exists()}
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(home / FILE, msgspec.json.format(msgspec.json.encode(recorded)), mode=0o600)
        except OSError as fault:
            log.warning("cannot write %s: %s", home / FILE, fault.strerror)
    return frozenset(
        name for name, entry in started.items() if entry.sandbox is None and recorded.get(name) == _digest(entry)
    )


def _read_record(home: Path) -> dict[str, str] | None:
    """None: this version has not looked yet. A file that cannot be used names nobody."""
    try:
        return msgspec.json.decode(read_bytes(home / FILE, MAX_EARLIER_BYTES), type=dict[str, str])
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, RecursionError):
        return {}


def _digest(entry: ServerEntry) -> str:
    return hashlib.sha256(msgspec.json.encode([entry.command, *entry.args])).hexdigest()[:32]
