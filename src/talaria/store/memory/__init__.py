"""The store in memory: the twin of `store.sqlite` for tests and examples. It survives nothing."""

from talaria.store.memory.memory_store import MemoryStore

__all__ = ["MemoryStore"]
