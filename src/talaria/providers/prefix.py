"""The bytes of a request, in the order that keeps prompt caches warm: what is stable, the history, what may change.

Also the mark that tells some endpoints to keep the prompt up to there.
"""

from collections.abc import Mapping

import msgspec

_encode = msgspec.json.Encoder().encode

MARK = {"type": "ephemeral"}
"""As the value of `cache_control`, on a part of the prompt or on the whole request."""
_MARK_FIELD = b',"cache_control":' + _encode(MARK)


def body(head: Mapping[str, object], name: str, history: bytes, tail: Mapping[str, object]) -> bytes:
    """A JSON object with `history`, items already joined by commas, as the array `name`. `tail` is not empty.

    Of two requests with the same head, the longer history's body begins with the shorter one's up to its last item,
    marks aside.
    """
    return b"".join((_encode(head)[:-1], b',"', name.encode(), b'":[', history, b"],", _encode(tail)[1:]))


def marked(encoded: bytes) -> bytes:
    """Bytes that end with an object's end, with a mark as that object's last field."""
    return encoded[:-1] + _MARK_FIELD + b"}"
