"""Files of others, read without ever waiting for them; files of ours, replaced whole or not at all.

Their paths are trusted. For those that other processes can change see `trees.py`."""

from pathlib import Path

from talaria.core.trees import Root, read_file


def safe_file_name(id: str) -> str:
    """As the name of a file or folder: an id may be anybody's choice, the model's too."""
    return "".join(sign if sign.isalnum() or sign in "-_" else "_" for sign in id)[:120]


def read_bytes(path: Path, limit_bytes: int) -> bytes:
    """The first `limit_bytes` at most. Raises `OSError`, also for a folder, device or pipe: those
    may never end."""
    return read_file(path, limit_bytes)


def read_text(path: Path, limit_bytes: int) -> str | None:
    """The beginning of a file as valid text; None if there is no file to be read."""
    try:
        content = read_bytes(path, limit_bytes)
    except OSError:
        return None
    return content.decode("utf-8", "replace")


def replace_file(path: Path, content: bytes, *, mode: int | None) -> None:
    """Durable, and a link stays one. Raises `OSError`, and then nothing has changed.

    Without a `mode` the file keeps its own; a new one gets what the umask leaves.
    """
    target = path.resolve()
    with Root.open(target.parent) as folder:
        folder.replace(target.name, content, mode=mode)
