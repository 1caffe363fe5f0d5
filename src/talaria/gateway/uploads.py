"""Files on their way out. The agent works where they are and may put a link in their place at any moment: a file is
found once, and what is sent is a copy of it that was made without following any link."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from talaria.platforms.base import Outbound, Rejected
from talaria.tools import places
from talaria.tools.protected import Protected
from talaria.waiting import in_thread

_CHUNK_BYTES = 1 << 20


def shared(named: Path, folder: Path, home: Path) -> Path | None:
    """Where a file is that may be sent from this folder; None: it is elsewhere, no file, or private wherever it is."""
    try:
        real, inside = named.resolve(strict=True), folder.resolve()
    except (OSError, ValueError, RuntimeError):  # gone, no path at all, a loop of links
        return None
    is_ours = real.is_file() and real.is_relative_to(inside)
    return real if is_ours and not Protected(Path.home(), home.resolve()).is_secret(real) else None


@asynccontextmanager
async def copied(message: Outbound, max_bytes: int) -> AsyncGenerator[Outbound]:
    """The message with a copy of its file, if it has one. Raises `Rejected`."""
    if (file := message.file) is None:
        yield message
        return
    with TemporaryDirectory(prefix="talaria-") as folder:
        copy = Path(folder) / file.path.name
        try:
            await in_thread(lambda: _copy(file.path, copy, max_bytes))
        except OSError as fault:
            raise Rejected(f"{file.name} cannot be sent: {fault.strerror}.") from fault
        yield msgspec.structs.replace(message, file=msgspec.structs.replace(file, path=copy))


def _copy(path: Path, to: Path, max_bytes: int) -> None:
    left = max_bytes
    with places.opened(path) as source, to.open("xb") as target:
        while piece := source.read(_CHUNK_BYTES):
            left -= len(piece)
            if left < 0:
                raise Rejected(f"{path.name} cannot be sent: it is larger than {max_bytes:,} bytes.")
            target.write(piece)
