"""Tools of plugins: described by a JSON schema, run by a handler that takes a dictionary."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from talaria.core.messages import Outcome
from talaria.core.tool_spec import ToolSpec
from talaria.plugin_calls import as_text
from talaria.tools.base import EXCLUSIVE, UNKNOWN, AfterCrash, Claim, Effect, Run, Scope, Shown, Tool, decoded
from talaria.tools.function import DEFAULT_TIMEOUT_S

MAX_OUTCOME_CHARS = 300
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""What every endpoint takes as the name of a tool; one that it does not take spoils the whole request."""

Handler = Callable[[dict[str, Any], Run], Awaitable[str]]


class BadSchema(Exception):
    """`str()` of it says what is wrong."""


def spec_of(schema: object) -> ToolSpec:
    """From `{"name", "description", "parameters"}`, also where that is wrapped as a function. Raises `BadSchema`."""
    given = schema.get("function", schema) if isinstance(schema, Mapping) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(given, Mapping):
        raise BadSchema("a tool's schema is not a mapping")
    fields = cast("Mapping[str, Any]", given)
    name = fields.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadSchema(f"a tool is called {name!r}; endpoints take up to 64 letters, digits, - and _")
    parameters: Any = fields.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping) or cast("Mapping[str, Any]", parameters).get("type", "object") != "object":
        raise BadSchema(f"the parameters of {name} are no JSON schema of an object")
    try:
        encoded = msgspec.json.encode({"type": "object", **parameters})
        return ToolSpec(name, as_text(fields.get("description") or ""), msgspec.Raw(encoded))
    except (TypeError, msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as fault:
        raise BadSchema(f"the parameters of {name} are no JSON: {fault}") from fault


@dataclass(frozen=True, slots=True)
class SchemaTool:
    spec: ToolSpec
    handler: Handler
    after_crash: AfterCrash = "once"
    effect: Effect = EXCLUSIVE
    timeout_s: float | None = DEFAULT_TIMEOUT_S
    claim: Claim = UNKNOWN
    toolset: str = ""

    def prepare(self, arguments: str, scope: Scope) -> "SchemaInvocation":  # noqa: ARG002
        given = decoded(arguments, self.spec.name, dict[str, Any])
        return SchemaInvocation(self.handler, given, self.effect, self.claim)


@dataclass(frozen=True, slots=True)
class SchemaInvocation:
    handler: Handler
    arguments: dict[str, Any]
    effect: Effect
    claim: Claim
    question: str | None = None

    async def run(self, run: Run) -> str | Shown:
        text = await self.handler(self.arguments, run)
        return Shown(text, outcome=Outcome("failed", error)) if (error := _error(text)) else text


class _Failure(msgspec.Struct):
    error: str


def _error(text: str) -> str:
    """What went wrong, in a few words, where a handler says so in the way of plugins: `{"error": …}`."""
    if not text.startswith('{"error":'):
        return ""
    try:
        return msgspec.json.decode(text, type=_Failure).error.partition("\n")[0][:MAX_OUTCOME_CHARS]
    except msgspec.MsgspecError:
        return ""


def tools_of(
    schemas: object, handler: Callable[[str], Handler], toolset: str, claim: Claim = UNKNOWN
) -> tuple[list[Tool], list[str]]:
    """One per schema, whose calls `handler(name)` takes; and what is wrong with the others."""
    tools: dict[str, Tool] = {}
    problems: list[str] = []
    for schema in cast("list[object]", schemas) if isinstance(schemas, list) else ():
        try:
            spec = spec_of(schema)
        except BadSchema as problem:
            problems.append(str(problem))
            continue
        tools.setdefault(spec.name, SchemaTool(spec, handler(spec.name), claim=claim, toolset=toolset))
    return list(tools.values()), problems


def as_result(returned: object) -> str:
    """What a handler returns is JSON text; anything else is made that."""
    if isinstance(returned, str):
        return as_text(returned)
    return "" if returned is None else msgspec.json.encode(returned, enc_hook=str).decode()
