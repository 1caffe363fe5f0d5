import asyncio
from pathlib import Path


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def assert_descriptors_fall_to(count: int) -> None:
    """Threads that were left behind, or that watch a command, may have one open for a moment."""
    for _ in range(6000):
        if count_descriptors() <= count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{count_descriptors()} descriptors are open; there were {count}")
