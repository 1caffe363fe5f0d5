"""Which descriptors this process has open."""

from collections.abc import Iterator
from pathlib import Path

from tests.waiting import until

OPEN = Path("/proc/self/fd")


def opened(*places: Path) -> list[Path]:
    """Those of files at or below these places. Others, which some thread may open at any moment, do not count."""
    return sorted(target for target in _targets() if any(target.is_relative_to(place) for place in places))


def count_descriptors() -> int:
    return len(list(_targets()))


async def descriptors_fall_to(count: int) -> None:
    """Threads that were left behind, or that watch a command, may have one open for a moment."""
    await until(lambda: count_descriptors() <= count)


def _targets() -> Iterator[Path]:
    for descriptor in OPEN.iterdir():
        try:
            yield descriptor.readlink()
        except FileNotFoundError:  # closed by now
            continue
