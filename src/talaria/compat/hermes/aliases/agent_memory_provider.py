"""`agent.memory_provider`: what memory providers derive from."""

from talaria.memory.base import MemoryProvider

__all__ = ["MemoryProvider"]
