"""A file on its way from a service to our disk: it is whole, or it is not there."""

from collections.abc import AsyncIterable
from pathlib import Path
from typing import IO

from talaria.core.aio import completed, in_thread
from talaria.platforms.base import Rejected

PIECE_BYTES = 1 << 18


async def save(pieces: AsyncIterable[bytes], to: Path, max_bytes: int) -> None:
    """Raises `Rejected` as soon as it is too much, whatever size was announced."""
    file = await in_thread(lambda: to.open("wb"))
    try:
        with file:
            await _copy(pieces, file, max_bytes)
    except BaseException:
        await completed(in_thread(lambda: to.unlink(missing_ok=True)))
        raise


async def _copy(pieces: AsyncIterable[bytes], file: IO[bytes], max_bytes: int) -> None:
    size = 0
    async for piece in pieces:
        size += len(piece)
        if size > max_bytes:
            raise Rejected(f"The file is larger than {max_bytes:,} bytes.")
        await in_thread(lambda part=piece: file.write(part))
