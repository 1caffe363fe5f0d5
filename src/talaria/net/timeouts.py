"""How long to wait for the other side."""

import msgspec


class Timeouts(msgspec.Struct, frozen=True):
    connect_s: float = 15.0
    first_byte_s: float = 180.0
    """From the request to the answer's head. An answer that is not streamed is written by then."""
    chunk_s: float = 180.0
    """The longest silence in the middle of an answer."""
    total_s: float = 1800.0
    """From the request to the answer's end."""
