"""Puts files, folders and links back as they were. It knows what to put where, and nothing of turns or checkpoints."""

import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec

from talaria.core.errors import TalariaError
from talaria.core.trees import Root
from talaria.store.undo import PathState


class Target(msgspec.Struct, frozen=True):
    """Something on its way back."""

    path: str
    """Absolute."""
    wanted: PathState
    present: PathState
    content: Callable[[], Iterable[bytes]]
    """Of a file, as it was."""

    @property
    def name(self) -> str:
        return self.path.lstrip("/")

    @property
    def must_go(self) -> bool:
        """What is there cannot be turned into what is wanted."""
        return bool(self.present.mode) and stat.S_IFMT(self.present.mode) != stat.S_IFMT(self.wanted.mode)


def put_back(targets: Sequence[Target], *, was_interrupted: bool = False) -> Mapping[str, str]:
    """What could not be done, by path. Each file is replaced at once, so a crash leaves it as it was or as it will be;
    doing it again finishes it."""
    failed: dict[str, str] = {}

    def attempt(wanted: Iterable[Target], work: Callable[[Root, Target], None]) -> None:
        for target in wanted:
            try:
                work(root, target)
            except OSError as fault:
                failed.setdefault(target.path, fault.strerror or str(fault))
            except TalariaError as fault:
                failed.setdefault(target.path, str(fault))

    with Root.open("/") as root:
        modes = _make_writable(root, targets)
        for target in targets if was_interrupted else ():
            with suppress(OSError):  # its folder is not there, or cannot be changed: that is told elsewhere
                root.remove_unfinished(target.name)
        by_depth = sorted(targets, key=lambda one: one.path.count("/"))
        attempt((one for one in reversed(by_depth) if one.must_go), _remove)
        folders = [one for one in by_depth if stat.S_ISDIR(one.wanted.mode)]
        attempt(folders, _make_folder)
        others = [one for one in targets if one.wanted.mode and not stat.S_ISDIR(one.wanted.mode)]
        attempt((one for one in others if one.path not in failed), _put)
        _join_names(root, [one for one in others if one.path not in failed])
        modes |= {one.path: stat.S_IMODE(one.wanted.mode) for one in folders}
        for path in sorted(modes, key=lambda one: one.count("/"), reverse=True):
            try:
                root.set_mode(path.lstrip("/"), modes[path])
            except FileNotFoundError:
                continue  # it was made by the turn, and has just gone
            except OSError as fault:
                failed.setdefault(path, fault.strerror or str(fault))
    return failed


def _make_writable(root: Root, targets: Sequence[Target]) -> dict[str, int]:
    """Folders on the way in which nothing can be changed, until it is done; what their modes were."""
    modes: dict[str, int] = {}
    folders = {target.path.rpartition("/")[0] for target in targets}
    above = {"/".join(parts[:count]) for parts in (f.split("/") for f in folders) for count in range(2, len(parts) + 1)}
    for path in sorted(above, key=lambda one: one.count("/")):
        found = root.find(path.lstrip("/"))
        if found is None or not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            continue
        mode = stat.S_IMODE(found.st_mode)
        if mode & 0o700 != 0o700:
            root.set_mode(path.lstrip("/"), mode | 0o700)
            modes[path] = mode
    return modes


def _remove(root: Root, target: Target) -> None:
    if stat.S_ISDIR(target.present.mode):
        root.remove_folder(target.name)
    else:
        root.remove(target.name)


def _make_folder(root: Root, target: Target) -> None:
    root.make_folder(target.name).close()
    root.set_mode(target.name, stat.S_IMODE(target.wanted.mode) | 0o700)


def _put(root: Root, target: Target) -> None:
    wanted, present = target.wanted, target.present
    is_there = bool(present.mode) and not target.must_go
    mode = stat.S_IMODE(wanted.mode)
    if stat.S_ISLNK(wanted.mode):
        if not is_there or present.content != wanted.content:
            root.replace_by_link(target.name, os.fsdecode(wanted.content))
        return
    if stat.S_ISREG(wanted.mode) and not (is_there and present.content == wanted.content):
        if (found := root.find(target.name)) is not None and not stat.S_ISREG(found.st_mode):
            root.remove(target.name)
        root.replace(target.name, target.content(), mode=mode)
        return
    if not is_there:
        root.make_pipe(target.name, mode)
    elif stat.S_IMODE(present.mode) != mode:
        root.set_mode(target.name, mode)


def _join_names(root: Root, targets: Sequence[Target]) -> None:
    """Names of one and the same file are that again."""
    groups: dict[int, list[Target]] = {}
    for target in targets:
        if stat.S_ISREG(target.wanted.mode) and target.wanted.links > 1:
            groups.setdefault(target.wanted.inode, []).append(target)
    for first, *others in groups.values():
        for other in others:
            infos = [root.find(one.name) for one in (first, other)]
            if None not in infos and not os.path.samestat(*infos):  # pyright: ignore[reportArgumentType]
                root.replace_by_name(other.name, first.name)
