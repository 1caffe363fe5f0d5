"""How a secret is written so that it is still the same secret: the encodings that people and programs use. Pure."""

import re
from binascii import b2a_base64
from collections.abc import Iterator
from urllib.parse import quote

import msgspec

_PERCENT = re.compile("%[0-9A-F]{2}")
_UNQUOTED = ("", "/", "!'()*", "/:?#[]@!$&'()*+,;=")
"""What is left as it is by whoever quotes strictly, as a path, as a browser does, or as a whole address."""


def disguises(secret: str) -> frozenset[str]:
    """The secret as it is among them."""
    raw = secret.encode("utf-8", "replace")
    return frozenset(
        (secret, secret[::-1], raw.hex(), raw.hex().upper(), *_base64(raw), *_percent(raw), *_escaped(raw.decode()))
    )


def _base64(raw: bytes) -> Iterator[str]:
    """Wherever it begins among the bytes that are encoded together, and whether they end with it or go on."""
    for before in range(3):
        whole = b2a_base64(bytes(before) + raw, newline=False).decode()[-(-before * 8 // 6) :]
        own = whole[: (len(raw) * 8 - (-before * 8) % 6) // 6]
        for form in (whole, whole.rstrip("="), own):
            yield form
            yield form.replace("+", "-").replace("/", "_")


def _percent(raw: bytes) -> Iterator[str]:
    each = "".join(f"%{byte:02X}" for byte in raw)
    needed = [quote(raw, safe=kept) for kept in _UNQUOTED]
    for form in (each, *needed, *(form.replace("%20", "+") for form in needed)):
        yield form
        yield _PERCENT.sub(lambda found: found[0].lower(), form)


def _escaped(secret: str) -> Iterator[str]:
    """As JSON writes it, and as JSON may write it."""
    needed = msgspec.json.encode(secret).decode()[1:-1]
    ascii_only = "".join(sign if sign.isascii() else f"\\u{ord(sign):04x}" for sign in needed)
    each = "".join(f"\\u{ord(sign):04x}" for sign in secret)
    yield from (needed, needed.replace("/", "\\/"), ascii_only, ascii_only.replace("/", "\\/"))
    yield from (each, each.upper().replace("\\U", "\\u"))
