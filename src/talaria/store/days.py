"""The day that people would say a moment belongs to. Shared by all stores."""

import time


def local_day(at: float) -> str:
    """In local time, e.g. `2026-01-31`."""
    return time.strftime("%Y-%m-%d", time.localtime(at))
