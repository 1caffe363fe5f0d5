"""A session's own folders where its sandbox cannot mount any: a home, one for temporary files, one for the state of the
shell."""

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir

from talaria.trees import Root


@contextmanager
def scratch() -> Generator[Path]:
    """By its true name: sandboxes that judge by names follow no links. Removed at the end, with all that is in it."""
    folder = Path(gettempdir()).resolve() / f"talaria-{os.urandom(8).hex()}"
    try:
        for place in (folder, folder / "home", folder / "tmp", folder / "shell"):
            place.mkdir(mode=0o700)
        yield folder
    finally:
        with suppress(OSError), Root.open(folder.parent) as around:
            around.remove_tree(folder.name)


def surroundings(folder: Path) -> dict[str, str]:
    """What commands find them by."""
    return {"HOME": f"{folder}/home", "TMPDIR": f"{folder}/tmp", "GIT_CONFIG_NOSYSTEM": "1"}  # noqa: S108
