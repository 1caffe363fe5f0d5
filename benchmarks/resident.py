"""The memory of a process."""

import os
from pathlib import Path


def resident_bytes(pid: int | None = None) -> int:
    """What the kernel counts now; the peak that `getrusage` knows would include the parent's. None: of this one."""
    return int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
