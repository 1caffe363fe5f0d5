"""How long to wait for the other side."""

import msgspec


class Timeouts(msgspec.Struct, frozen=True):
    connect_s: float = 15.0
    read_s: float = 300.0
    """The longest silence: before the first byte and between two chunks."""
