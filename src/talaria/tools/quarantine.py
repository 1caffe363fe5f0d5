"""The quarantine: suspicious files that appear in a project while commands run are moved there, and never deleted.

A command may have put links on the way to them, or may replace them during the move. So everything goes through open
folders; what cannot be moved stays and is reported.
"""

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec

from talaria.core.fs import safe_file_name
from talaria.core.ids import SessionId
from talaria.core.trees import Root

MAX_COPIED_BYTES = 16 << 20
MAX_COPIED_FILES = 1_000
MAX_COPIED_DEPTH = 20
NOTES = "moved.txt"


def quarantine_folder(home: Path, session: SessionId) -> Path:
    return home / "quarantine" / safe_file_name(session)


class QuarantinedFile(msgspec.Struct, frozen=True):
    name: str
    """Below the project."""
    to: Path | None
    """None: it could not be moved and is still in place."""
    reason: str = ""


class Quarantine:
    """For one session: `quarantine/SESSION` in Talaria's home. All methods block."""

    def __init__(self, home: Path, session: SessionId) -> None:
        self._folder = quarantine_folder(home, session)

    def move(self, project: Root, names: Sequence[str]) -> tuple[QuarantinedFile, ...]:
        """Move those that exist; if a link is on the way to one, move the link."""
        found = dict.fromkeys(unexpected for name in names if (unexpected := find_unexpected(project, name)))
        moved: list[QuarantinedFile] = []
        for name in found:
            new = f"{os.urandom(4).hex()}-{safe_file_name(name.lstrip('.')) or 'it'}"
            try:
                with Root.make(self._folder.parent) as home, home.make_folder(self._folder.name, 0o700) as folder:
                    # Before it is moved, so that whoever finds it knows where it belongs.
                    with folder.append(NOTES, 0o600) as notes:
                        notes.write(f"{new} was {name}\n".encode("utf-8", "backslashreplace"))
                    try:
                        project.move(name, folder, new)
                    except OSError as fault:
                        if fault.errno != errno.EXDEV:
                            raise
                        _CopyingMove().move(project, name, folder, new, MAX_COPIED_DEPTH)
                moved.append(QuarantinedFile(name, self._folder / new))
            except OSError as fault:
                moved.append(QuarantinedFile(name, None, fault.strerror or str(fault)))
        return tuple(moved)

    def read_contents(self, new: str) -> dict[str, bytes]:
        """The contents of plain files, by name in the moved folder; the name is empty if a single file was moved."""
        with Root.open(self._folder) as folder:
            if not stat.S_ISDIR(folder.info(new).st_mode):
                return {"": folder.read(new, MAX_COPIED_BYTES)} if stat.S_ISREG(folder.info(new).st_mode) else {}
            with folder.folder(new) as inner:
                names = [f"{above}/{one.name}".lstrip("/") for above, one in inner.descend() if one.is_plain_file]
                return {name: inner.read(name, MAX_COPIED_BYTES) for name in names[:MAX_COPIED_FILES]}

    def release(self, new: str, project: Root, name: str) -> None:
        """Move it back, replacing what is there. Raises `OSError`."""
        with Root.open(self._folder) as folder:
            above, _, last = name.rpartition("/")
            with project.make_folder(above) as target:
                try:
                    folder.move(new, target, last)
                except OSError as fault:
                    if fault.errno != errno.EXDEV:
                        raise
                    if target.find(last) is not None:
                        target.remove(last)
                    _CopyingMove().move(folder, new, target, last, MAX_COPIED_DEPTH)


def find_unexpected(project: Root, name: str) -> str | None:
    """This name if it exists, or the first link on the way to it; None: nothing is there."""
    parts = name.split("/")
    for count in range(1, len(parts) + 1):
        found = project.find(here := "/".join(parts[:count]))
        if found is None:
            return None
        if stat.S_ISLNK(found.st_mode):
            return here
    return name


class _CopyingMove:
    """Moves to another file system file by file: nothing is removed before it was copied."""

    def __init__(self) -> None:
        self._bytes = MAX_COPIED_BYTES
        self._files = MAX_COPIED_FILES

    def move(self, source: Root, name: str, target: Root, new: str, depth: int) -> None:
        """Raises `OSError`; what is left stays where it is."""
        found = source.info(name)
        self._files -= 1
        if self._files < 0 or depth < 0:
            raise OSError(errno.EFBIG, "it is too large")
        if stat.S_ISDIR(found.st_mode):
            with source.folder(name) as inner, target.make_folder(new, 0o700) as made:
                for entry in inner.entries():
                    self.move(inner, entry.name, made, entry.name, depth - 1)
            source.remove_folder(name)
            return
        if stat.S_ISLNK(found.st_mode):
            target.make_link(new, source.read_link(name))
        else:
            content = source.read(name, self._bytes + 1)
            self._bytes -= len(content)
            if self._bytes < 0:
                raise OSError(errno.EFBIG, "it is too large")
            with target.create(new, stat.S_IMODE(found.st_mode) & 0o777) as made:
                made.write(content)
        source.remove(name)
