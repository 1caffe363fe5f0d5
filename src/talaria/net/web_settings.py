"""Timeouts, and the settings for the web. Separate from `fetch.py`, so that reading settings loads nothing else."""

from typing import Annotated, Literal

import msgspec


class Timeouts(msgspec.Struct, frozen=True):
    connect_s: float = 15.0
    first_byte_s: float = 180.0
    """From the request to the head of the answer. An answer that is not streamed must be complete by then."""
    chunk_s: float = 180.0
    """The longest pause in the middle of an answer."""
    total_s: float = 1800.0
    """From the request to the end of the answer."""


SearchBackend = Literal["brave", "tavily", "searxng", "duckduckgo"]


class WebSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    allow_private: tuple[str, ...] = ()
    """Host names, addresses and networks that may be fetched although they are not on the public internet."""
    search_backend: SearchBackend | None = None
    """None: the first backend whose key is set."""
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=32 << 20)] = 5 << 20
    """The limit for one page, decompressed; longer pages are cut."""
    timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    """From the request to the end of the page, including redirects."""
