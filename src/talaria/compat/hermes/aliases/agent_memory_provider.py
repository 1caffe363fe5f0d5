"""`agent.memory_provider`: what memory providers derive from."""

from talaria.memory.provider import MemoryProvider

__all__ = ["MemoryProvider"]
