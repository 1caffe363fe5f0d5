"""Talaria: a self-hosted AI agent with one durable core.

The library API (`Agent`, `tool`) is loaded on first use, so that `talaria --version` stays instant.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["Agent", "__version__", "tool"]

if TYPE_CHECKING:
    from talaria.app.library import Agent, tool


def __getattr__(name: str) -> object:
    if name in ("Agent", "tool"):
        from talaria.app import library  # noqa: PLC0415  (importing talaria loads nothing)

        return getattr(library, name)
    raise AttributeError(f"module 'talaria' has no attribute {name!r}")
