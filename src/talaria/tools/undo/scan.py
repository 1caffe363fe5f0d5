"""Lists what is in a project now: every file, folder and link with its stamp, and what is not recorded.

Commands may change the tree meanwhile, so it goes down from one open folder to the next and follows no link.
"""

import os
import stat
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec

from talaria.core.trees import Root

PathStamp = tuple[int, int, int, int, int, int]
"""Mode with the type, size, mtime and ctime in ns, inode, links. For a folder only the mode: the rest changes with its
content."""

REGENERABLE = frozenset(
    {
        *("node_modules", "bower_components", ".venv", "__pycache__", "__pypackages__", ".tox", ".nox", ".eggs"),
        *(".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints", ".cache", ".gradle"),
        *(".next", ".nuxt", ".svelte-kit", ".parcel-cache", ".turbo", ".angular", ".terraform", ".direnv"),
    }
)
"""Folders that programs can generate again."""
_MARKED = {"venv": "pyvenv.cfg", "env": "pyvenv.cfg", "target": "CACHEDIR.TAG"}
"""People use these names for their own folders as well, so they must contain such a file."""
_TAG = "CACHEDIR.TAG"
_LISTING = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TYPE, _FOLDER = 0o170000, stat.S_IFDIR
_PLAIN = frozenset({stat.S_IFREG, stat.S_IFLNK, stat.S_IFIFO})


class ScanLimits(NamedTuple):
    files: int = 200_000
    file_bytes: int = 256 << 20
    project_bytes: int = 4 << 30


USUAL = ScanLimits()


class TooLarge(Exception):
    """The project cannot be recorded. Its text gives the reason."""


class Scan(NamedTuple):
    stamps: dict[str, PathStamp]
    left_out: dict[str, str]
    """What is not recorded, and why."""


def scan(  # noqa: PLR0915  (one loop that must be fast)
    root: Root, limits: ScanLimits, without: Sequence[tuple[int, int]] = ()
) -> Scan:
    """`without`: folders, by device and inode, that are skipped. Raises `TooLarge`, `OSError`."""
    stamps: dict[str, PathStamp] = {}
    left_out: dict[str, str] = {}
    device, size, most = root.identity[0], 0, limits.file_bytes
    waiting = [("", os.open(".", _LISTING, dir_fd=root.descriptor))]
    try:
        while waiting:
            prefix, folder = waiting.pop()
            inner: list[tuple[str, int]] = []
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        name = entry.name
                        try:
                            info = entry.stat(follow_symlinks=False)
                        except FileNotFoundError:
                            continue  # gone since it was listed
                        mode, path = info.st_mode, prefix + name
                        kind = mode & _TYPE
                        if kind == _FOLDER:
                            reason = _find_exclusion(name, folder, info, device, without)
                            if reason:
                                left_out[path] = reason
                                continue
                            stamps[path] = (mode, 0, 0, 0, 0, 0)
                            try:
                                inner.append((path + "/", os.open(name, _LISTING, dir_fd=folder)))
                            except OSError as fault:
                                left_out[path] = f"cannot be read: {fault.strerror}"
                        elif kind not in _PLAIN:
                            left_out[path] = "a socket or device"
                        elif info.st_size > most:
                            left_out[path] = f"over {most >> 20} MB"
                        else:
                            size += info.st_size
                            times = info.st_mtime_ns, info.st_ctime_ns
                            stamps[path] = (mode, info.st_size, times[0], times[1], info.st_ino, info.st_nlink)
            finally:
                os.close(folder)
                waiting += inner
            if prefix + _TAG in stamps and prefix:
                left_out[prefix[:-1]] = "can be generated again"
                stamps = {path: stamp for path, stamp in stamps.items() if not f"{path}/".startswith(prefix)}
                while waiting and waiting[-1][0].startswith(prefix):
                    os.close(waiting.pop()[1])
            if len(stamps) > limits.files:
                raise TooLarge(f"it has more than {limits.files:,} files")
            if size > limits.project_bytes:
                raise TooLarge(f"its files have more than {limits.project_bytes >> 20:,} MB")
    finally:
        for _, folder in waiting:
            os.close(folder)
    return Scan(stamps, left_out)


def find_path_stamp(root: Root, path: str) -> PathStamp | None:
    """None: nothing is there, or nothing that can be recorded."""
    info = root.find(path)
    if info is None or stat.S_IFMT(info.st_mode) not in {*_PLAIN, stat.S_IFDIR}:
        return None
    return make_path_stamp(info)


def make_path_stamp(info: os.stat_result) -> PathStamp:
    if stat.S_ISDIR(info.st_mode):
        return (info.st_mode, 0, 0, 0, 0, 0)
    return (info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, info.st_nlink)


def _find_exclusion(
    name: str, parent: int, info: os.stat_result, device: int, without: Sequence[tuple[int, int]]
) -> str:
    """Why a folder is not recorded; empty: it is."""
    if name in REGENERABLE:
        return "can be generated again"
    if (info.st_dev, info.st_ino) in without:
        return "Talaria's own"
    if info.st_dev != device:
        return "on another file system"
    marker = _MARKED.get(name)
    if marker is not None:
        try:
            os.stat(f"{name}/{marker}", dir_fd=parent, follow_symlinks=False)
        except OSError:
            return ""
        return "can be generated again"
    return ""


Count = Annotated[int, msgspec.Meta(ge=1)]


class CheckpointSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    enabled: bool = True
    """False: only files that tools write are recorded, not what commands change."""
    keep_days: Count = 30
    max_mb: Count = 4096
    """For all checkpoints together; the oldest are dropped first."""
    max_file_mb: Count = 256
    """Larger files are not recorded."""
    max_files: Count = 200_000
    """A project with more is not recorded."""
    max_project_mb: Count = 4096
    """For all files of a project together. A larger project is not recorded."""
