"""Content-Encoding undone, up to a limit: a bomb costs what the limit costs."""

import zlib

from talaria.core.errors import ToolFailed

ACCEPTED = "gzip, deflate"
MAX_LAYERS = 2
_GZIP = zlib.MAX_WBITS | 16


def unpacked(packed: bytes, codings: str, limit: int) -> tuple[bytes, bool]:
    """At most `limit` bytes, and whether there was more, or should have been. Raises `ToolFailed`."""
    layers = [name for name in (part.strip().lower() for part in codings.split(",")) if name not in ("", "identity")]
    if len(layers) > MAX_LAYERS:
        raise ToolFailed("The page is packed too many times over.")
    is_cut = False
    for layer in reversed(layers):
        packed, is_short = _layer(packed, layer, limit)
        is_cut = is_cut or is_short
    return packed[:limit], is_cut or len(packed) > limit


def _layer(packed: bytes, coding: str, limit: int) -> tuple[bytes, bool]:
    if coding in ("gzip", "x-gzip"):
        bits = _GZIP
    elif coding == "deflate":
        bits = zlib.MAX_WBITS if _has_zlib_head(packed) else -zlib.MAX_WBITS
    else:
        raise ToolFailed(f"The page is packed as {coding[:20]!r}, which was not asked for.")
    inflater = zlib.decompressobj(bits)
    try:
        plain = inflater.decompress(packed, limit)
    except zlib.error as fault:
        raise ToolFailed(f"The page is said to be packed as {coding}, but it is not.") from fault
    is_whole = inflater.eof and not inflater.unused_data
    return plain, bool(packed) and not is_whole


def _has_zlib_head(packed: bytes) -> bool:
    """Some servers send deflate without it, against the standard."""
    return len(packed) > 1 and packed[0] & 0x0F == 8 and int.from_bytes(packed[:2]) % 31 == 0
