"""A request as a wire is to read it, after its endpoint refused it in full.

`drop_images` and `drop_thinking` are none of a wire's business: the history comes without them.
"""

from typing import Any, cast

import msgspec
from msgspec.structs import replace

from talaria.providers.base import Endpoint, ModelRequest

_encode = msgspec.json.Encoder().encode
_NARROWING = frozenset(
    {
        "$schema",
        "contains",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "maxContains",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minContains",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "pattern",
        "patternProperties",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
    }
)
"""What local servers cannot put into a grammar. Nothing is lost: arguments are checked before a call runs."""
_NAMES = frozenset({"properties", "$defs", "definitions", "dependentSchemas"})
"""Their values map names to schemas, and a name may be any word, also one of the above."""
_DATA = frozenset({"const", "default", "enum", "examples", "required"})


def repaired(request: ModelRequest, endpoint: Endpoint) -> tuple[ModelRequest, Endpoint]:
    if "plain_schemas" in request.repairs:
        plain = (replace(tool, parameters=_plain_schema(tool.parameters)) for tool in request.tools)
        request = replace(request, tools=tuple(plain))
    if "drop_effort" in request.repairs:
        request = replace(request, effort=None)
    if drops_extras(request):
        request, endpoint = replace(request, effort=None), replace(endpoint, caching="off")
    return request, endpoint


def drops_extras(request: ModelRequest) -> bool:
    return "drop_extras" in request.repairs


def _plain_schema(schema: msgspec.Raw) -> msgspec.Raw:
    return msgspec.Raw(_encode(_plain(msgspec.json.decode(schema))))


def _plain(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_plain(each) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    keywords = cast("dict[str, Any]", schema)
    return {name: _plain_value(name, value) for name, value in keywords.items() if not _narrows(name, value)}


def _narrows(keyword: str, value: Any) -> bool:
    return keyword in _NARROWING or (keyword == "additionalProperties" and not isinstance(value, bool))


def _plain_value(keyword: str, value: Any) -> Any:
    if keyword in _DATA:
        return value
    if keyword in _NAMES and isinstance(value, dict):
        return {name: _plain(schema) for name, schema in cast("dict[str, Any]", value).items()}
    return _plain(value)
