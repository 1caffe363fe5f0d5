"""Reads other people's files without ever waiting for them, and replaces ours whole or not at all.

The paths are trusted. For folders that other processes can change, see `trees.py`."""

from pathlib import Path

from talaria.core.trees import Root, read_file


def safe_file_name(id: str) -> str:
    """Makes an id safe as the name of a file or folder, because anybody may have chosen it, even the model."""
    return "".join(char if char.isalnum() or char in "-_" else "_" for char in id)[:120]


def read_bytes(path: Path, limit_bytes: int) -> bytes:
    """At most the first `limit_bytes`. Raises `OSError`, also for a folder, device or pipe, which may never end."""
    return read_file(path, limit_bytes)


def read_text(path: Path, limit_bytes: int) -> str | None:
    """The beginning of a file as valid text; None if there is no readable file."""
    try:
        content = read_bytes(path, limit_bytes)
    except OSError:
        return None
    return content.decode("utf-8", "replace")


def replace_file(path: Path, content: bytes, *, mode: int | None) -> None:
    """Durable; a link stays a link. If it raises `OSError`, nothing has changed.

    Without a `mode` the file keeps its own; a new one gets what the umask leaves.
    """
    target = path.resolve()
    with Root.open(target.parent) as folder:
        folder.replace(target.name, content, mode=mode)
