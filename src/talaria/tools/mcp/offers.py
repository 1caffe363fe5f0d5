"""What a server offers: its tools, read leniently. One tool that is not right costs only itself."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from talaria.tools.base import EXCLUSIVE, INDEPENDENT, READS, Effect

MAX_TOOLS = 500
MAX_SCHEMA_BYTES = 64_000
MAX_DESCRIPTION_CHARS = 4_000
MAX_NAME_CHARS = 200
_KEPT = ("name", "title", "description", "inputSchema", "annotations")
_UNSEEN = dict.fromkeys((*range(9), *range(11, 32), 127))


class ServerTool(msgspec.Struct, frozen=True):
    """One tool, as its server describes it."""

    name: str
    description: str
    parameters: msgspec.Raw
    is_reading: bool = False
    is_independent: bool = False
    """It only adds, and doing it twice is the same as once: neighbours do not disturb it."""

    @property
    def effect(self) -> Effect:
        if self.is_reading:
            return READS
        return INDEPENDENT if self.is_independent else EXCLUSIVE


def sound(listed: Iterable[Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Those tools of a listing that can be used, without what we do not need, and a word on each of the others."""
    kept: list[dict[str, Any]] = []
    refused: list[str] = []
    for item in listed:
        problem = _problem(item)
        if problem:
            refused.append(problem)
        else:
            kept.append(_trim(item))
    return kept, refused


def _problem(item: Any) -> str:
    if not isinstance(item, Mapping):
        return "a tool is no object"
    tool = cast("Mapping[str, Any]", item)
    name = tool.get("name")
    if not isinstance(name, str) or not name or len(name) > MAX_NAME_CHARS:
        return "a tool has no usable name"
    schema = tool.get("inputSchema", {})
    if not isinstance(schema, Mapping):
        return f"the schema of {name} is no object"
    given = cast("Mapping[str, Any]", schema)
    if given.get("type", "object") != "object" or not isinstance(given.get("properties", {}), Mapping):
        return f"the schema of {name} does not describe an object"
    if len(msgspec.json.encode(given)) > MAX_SCHEMA_BYTES:
        return f"the schema of {name} is longer than {MAX_SCHEMA_BYTES:,} bytes"
    return ""


def _trim(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Output schemas go, too: checking results against them would run a stranger's patterns on our event loop."""
    kept = {name: tool[name] for name in _KEPT if name in tool}
    for name, wanted in (("title", str), ("description", str), ("annotations", dict)):
        if not isinstance(kept.get(name), wanted):
            kept.pop(name, None)
    if "annotations" in kept:
        hints: dict[str, Any] = kept["annotations"]
        kept["annotations"] = {name: hint for name, hint in hints.items() if isinstance(hint, bool)}
    schema: dict[str, Any] = tool.get("inputSchema", {})
    return {**kept, "inputSchema": {"type": "object", **schema}}


def offer(name: str, description: str, schema: Mapping[str, Any], hints: Mapping[str, bool | None]) -> ServerTool:
    is_reading = bool(hints.get("readOnlyHint"))
    is_independent = bool(hints.get("idempotentHint")) and hints.get("destructiveHint") is False
    told = description.translate(_UNSEEN)[:MAX_DESCRIPTION_CHARS]
    return ServerTool(name, told, msgspec.Raw(msgspec.json.encode(schema)), is_reading, is_independent)


def distinct(offers: Iterable[ServerTool]) -> tuple[tuple[ServerTool, ...], list[str]]:
    """A server can be called by name only: of two tools with one name the first counts."""
    named: dict[str, ServerTool] = {}
    refused: list[str] = []
    for one in offers:
        if one.name in named:
            refused.append(f"two tools are called {one.name}")
        elif len(named) < MAX_TOOLS:
            named[one.name] = one
        else:
            return tuple(named.values()), [*refused, f"it has more than {MAX_TOOLS} tools"]
    return tuple(named.values()), refused
