"""How long to wait for the other side, and the settings for the web. Apart from `fetch.py`, so that
reading settings loads nothing else."""

from typing import Annotated, Literal

import msgspec


class Timeouts(msgspec.Struct, frozen=True):
    connect_s: float = 15.0
    first_byte_s: float = 180.0
    """From the request to the answer's head. An answer that is not streamed must be complete by
    then."""
    chunk_s: float = 180.0
    """The longest silence in the middle of an answer."""
    total_s: float = 1800.0
    """From the request to the answer's end."""


SearchBackend = Literal["brave", "tavily", "searxng", "duckduckgo"]


class WebSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    allow_private: tuple[str, ...] = ()
    """Host names, addresses and networks that may be fetched although they are not on the public
    internet."""
    search_backend: SearchBackend | None = None
    """None: the first whose key is set."""
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=32 << 20)] = 5 << 20
    """Of one page, decompressed; longer pages are cut."""
    timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    """From the request to the end of the page, redirects included."""
