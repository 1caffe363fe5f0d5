"""A session's own folders where its sandbox cannot mount any: a home and a place for temporary files."""

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir


@contextmanager
def scratch() -> Generator[Path]:
    """By its true name: sandboxes that judge by names follow no links. Removed at the end, with all that is in it."""
    folder = Path(gettempdir()).resolve() / f"talaria-{os.urandom(8).hex()}"
    try:
        for place in (folder, folder / "home", folder / "tmp"):
            place.mkdir(mode=0o700)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def surroundings(folder: Path) -> dict[str, str]:
    """What commands find them by."""
    return {"HOME": f"{folder}/home", "TMPDIR": f"{folder}/tmp", "GIT_CONFIG_NOSYSTEM": "1"}  # noqa: S108
