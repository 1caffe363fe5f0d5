"""The bytes of a request, in the order that keeps prompt caches warm: what is stable, the history, what may change."""

from collections.abc import Mapping

import msgspec

_encode = msgspec.json.Encoder().encode


def body(head: Mapping[str, object], name: str, history: bytes, tail: Mapping[str, object]) -> bytes:
    """A JSON object with `history`, items already joined by commas, as the array `name`. `tail` is not empty.

    Of two requests with the same head, the longer history's body begins with the shorter one's up to its last item.
    """
    return b"".join((_encode(head)[:-1], b',"', name.encode(), b'":[', history, b"],", _encode(tail)[1:]))
