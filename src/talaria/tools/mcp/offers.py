"""What a server offers and answers: the data that passes between a connection and the wire.

Tools are read leniently: a bad one is left out, and the others stay. The last listing of each server is kept on disk.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from talaria.core.fs import read_bytes, replace_file
from talaria.core.messages import Image
from talaria.tools.base import EXCLUSIVE, INDEPENDENT, READS, Effect
from talaria.tools.mcp.server_entries import ServerEntry, digest

MAX_TOOLS = 500
MAX_SCHEMA_BYTES = 64_000
MAX_DESCRIPTION_CHARS = 4_000
MAX_NAME_CHARS = 200
MAX_CACHE_BYTES = 64 << 20
_KEPT = ("name", "title", "description", "inputSchema", "annotations")
_UNSEEN = dict.fromkeys((*range(9), *range(11, 32), 127))


class ServerUnavailable(Exception):
    """The server cannot be reached. Its text continues a sentence that begins with the server: "did not start"."""

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        """`is_final`: trying again is no use until somebody changes something."""
        super().__init__(reason)
        self.is_final = is_final


class CallNotMade(Exception):
    """The call did not reach the server or was not let in, so it may be made again. Its text is as in
    `ServerUnavailable`."""


class ServerAnswer(msgspec.Struct, frozen=True):
    text: str
    is_error: bool
    images: tuple[Image, ...] = ()


class ServerTool(msgspec.Struct, frozen=True):
    """One tool, as its server describes it."""

    name: str
    description: str
    parameters: msgspec.Raw
    is_reading: bool = False
    is_independent: bool = False
    """It only adds, and doing it twice is the same as once, so it can run in parallel with others."""

    @property
    def effect(self) -> Effect:
        if self.is_reading:
            return READS
        return INDEPENDENT if self.is_independent else EXCLUSIVE


class Listing(msgspec.Struct, frozen=True):
    offers: tuple[ServerTool, ...] = ()
    refused: tuple[str, ...] = ()
    """Why some of its tools are left out."""
    is_known: bool = True
    """False: the server never answered. It was waited for once, and is not waited for again."""


NEVER_ANSWERED = Listing(is_known=False)


def listing_file(home: Path, name: str, entry: ServerEntry) -> Path:
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:40]
    return home / "cache" / "mcp" / f"{readable}-{digest(entry)}.json"


def read_listing(file: Path) -> Listing | None:
    """None also for a file that cannot be used."""
    try:
        return msgspec.json.decode(read_bytes(file, MAX_CACHE_BYTES), type=Listing)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None


def write_listing(file: Path, listing: Listing) -> None:
    """Raises `OSError`."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(file, msgspec.json.encode(listing), mode=0o600)


def select_tools(listed: Iterable[Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """The usable tools of a listing, reduced to what we need, and a reason for each of the others.

    Output schemas are dropped, too: checking results against them would run a stranger's patterns on our event loop.
    """
    kept: list[dict[str, Any]] = []
    refused: list[str] = []
    for item in listed:
        if problem := _find_problem(item):
            refused.append(problem)
            continue
        tool = {name: item[name] for name in _KEPT if name in item}
        for name, wanted in (("title", str), ("description", str), ("annotations", dict)):
            if not isinstance(tool.get(name), wanted):
                tool.pop(name, None)
        if "annotations" in tool:
            hints: dict[str, Any] = tool["annotations"]
            tool["annotations"] = {name: hint for name, hint in hints.items() if isinstance(hint, bool)}
        tool["inputSchema"] = {"type": "object", **item.get("inputSchema", {})}
        kept.append(tool)
    return kept, refused


def _find_problem(item: Any) -> str:
    if not isinstance(item, Mapping):
        return "a tool is not an object"
    tool = cast("Mapping[str, Any]", item)
    name = tool.get("name")
    if not isinstance(name, str) or not name or len(name) > MAX_NAME_CHARS:
        return "a tool has no usable name"
    schema = tool.get("inputSchema", {})
    if not isinstance(schema, Mapping):
        return f"the schema of {name} is not an object"
    given = cast("Mapping[str, Any]", schema)
    if given.get("type", "object") != "object" or not isinstance(given.get("properties", {}), Mapping):
        return f"the schema of {name} does not describe an object"
    if len(msgspec.json.encode(given)) > MAX_SCHEMA_BYTES:
        return f"the schema of {name} is longer than {MAX_SCHEMA_BYTES:,} bytes"
    return ""


def make_tool(name: str, description: str, schema: Mapping[str, Any], hints: Mapping[str, bool | None]) -> ServerTool:
    is_reading = bool(hints.get("readOnlyHint"))
    is_independent = bool(hints.get("idempotentHint")) and hints.get("destructiveHint") is False
    visible = description.translate(_UNSEEN)[:MAX_DESCRIPTION_CHARS]
    return ServerTool(name, visible, msgspec.Raw(msgspec.json.encode(schema)), is_reading, is_independent)


def drop_duplicates(offers: Iterable[ServerTool]) -> tuple[tuple[ServerTool, ...], list[str]]:
    """Tools are called by name, so of two with the same name the first is kept."""
    named: dict[str, ServerTool] = {}
    refused: list[str] = []
    for one in offers:
        if one.name in named:
            refused.append(f"two tools are called {one.name}")
        elif len(named) < MAX_TOOLS:
            named[one.name] = one
        else:
            refused.append(f"it has more than {MAX_TOOLS} tools")
            break
    return tuple(named.values()), refused
