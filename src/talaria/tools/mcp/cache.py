"""Listings on disk: what a server offered last, under its entry's content. A file that cannot be used is not there."""

import re
from pathlib import Path

import msgspec

from talaria.files import read_bytes, replace_file
from talaria.tools.mcp.offers import ServerTool
from talaria.tools.mcp.server_entries import ServerEntry, digest

MAX_BYTES = 64 << 20


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
        return msgspec.json.decode(read_bytes(file, MAX_BYTES), type=Listing)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None


def write(file: Path, listing: Listing) -> None:
    """Raises `OSError`."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(file, msgspec.json.encode(listing), mode=0o600)
