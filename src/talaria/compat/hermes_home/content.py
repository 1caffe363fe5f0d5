"""What one row says: text, pictures and calls out of the forms in which Hermes has kept them. Pure; never refuses."""

import base64
import binascii
import json
from typing import Any, cast

import msgspec

from talaria.compat.hermes_home.rows import MessageRow, cleaned
from talaria.core.messages import Image, Text

_STRUCTURED = ("\0json:", "\1json:")
"""How content begins that is not plain text."""
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")

Json = Any


class ImportedCall(msgspec.Struct, frozen=True):
    """A call as the row has it; its id may be missing, or used before."""

    id: str
    name: str
    arguments: str


def parts(row: MessageRow) -> tuple[Text | Image, ...]:
    """Without parts that say nothing."""
    content = row.content or ""
    found = map(_part, _listed(_structured(content) if content.startswith(_STRUCTURED) else content))
    return tuple(part for part in found if not isinstance(part, Text) or part.text.strip())


def text(row: MessageRow) -> str:
    """Pictures are only mentioned."""
    return "\n".join(part.text if isinstance(part, Text) else "[image]" for part in parts(row))


def calls(row: MessageRow) -> list[ImportedCall]:
    found = _decoded(row.calls)
    if isinstance(found, str):  # encoded twice
        found = _decoded(found)
    return [_asked(cast("dict[str, Json]", item)) for item in _listed(found) if isinstance(item, dict)]


def _asked(item: dict[str, Json]) -> ImportedCall:
    inner: Json = item.get("function")
    function = cast("dict[str, Json]", inner) if isinstance(inner, dict) else item
    id = _word(item.get("id")) or _word(item.get("call_id"))
    return ImportedCall(id, _word(function.get("name")) or "unknown", _arguments(function.get("arguments")))


def _arguments(given: Json) -> str:
    if isinstance(given, str):
        return cleaned(given)
    return "{}" if given is None else _as_json(given)


def _word(value: Json) -> str:
    return cleaned(value).strip() if isinstance(value, str) else ""


def _structured(content: str) -> Json:
    """What cannot be decoded is taken for text."""
    written = content[len(_STRUCTURED[0]) :]
    found = _decoded(written)
    return written if found is None else found


def _decoded(text: str) -> Json:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _listed(value: Json) -> list[Json]:
    """One or several, as it was written."""
    return cast("list[Json]", value) if isinstance(value, list) else [value]


def _part(item: Json) -> Text | Image:
    if isinstance(item, str):
        return Text(cleaned(item))
    if not isinstance(item, dict):
        return Text(_as_json(item))
    fields = cast("dict[str, Json]", item)
    for name in ("text", "text_summary"):
        if isinstance(fields.get(name), str):
            return Text(cleaned(fields[name]))
    return _picture(fields) or Text(_mentioned(fields))


def _picture(fields: dict[str, Json]) -> Image | None:
    """Only what the row itself holds; nothing is fetched."""
    source: Json = fields.get("source")
    if isinstance(source, dict):
        held = cast("dict[str, Json]", source)
        return _image(held.get("media_type"), held.get("data"))
    media_type, _, data = _address(fields).removeprefix("data:").partition(";base64,")
    return _image(media_type, data)


def _image(media_type: Json, data: Json) -> Image | None:
    if media_type not in _PICTURES or not isinstance(data, str) or not data:
        return None
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    return Image(cast("str", media_type), data)


def _address(fields: dict[str, Json]) -> str:
    given: Json = fields.get("image_url")
    found: Json = cast("dict[str, Json]", given).get("url") if isinstance(given, dict) else given
    return found if isinstance(found, str) else ""


def _mentioned(fields: dict[str, Json]) -> str:
    address = _address(fields)
    if address.startswith(("http://", "https://")):
        return f"[image: {cleaned(address)}]"
    return f"[{_word(fields.get('type')) or 'something that is not text'}]"


def _as_json(value: Json) -> str:
    try:
        return cleaned(json.dumps(value, ensure_ascii=False))
    except (ValueError, RecursionError):
        return ""
