"""Restores files, folders and links. It knows what to put where, and nothing about turns or checkpoints."""

import os
import stat
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress

import msgspec

from talaria.core.errors import TalariaError
from talaria.core.trees import Root
from talaria.store.undo_port import PathState


class Target(msgspec.Struct, frozen=True):
    """Something to restore."""

    path: str
    """Absolute."""
    wanted: PathState
    present: PathState
    content: Callable[[], Iterable[bytes]]
    """The wanted content, for a file."""

    @property
    def name(self) -> str:
        return self.path.lstrip("/")

    @property
    def must_go(self) -> bool:
        """The present thing cannot be turned into the wanted one."""
        return bool(self.present.mode) and stat.S_IFMT(self.present.mode) != stat.S_IFMT(self.wanted.mode)


def restore_targets(targets: Sequence[Target], *, was_interrupted: bool = False) -> Mapping[str, str]:
    """The failures, by path. Each file is replaced atomically, so a crash leaves it old or new, and another restore
    finishes the job."""
    failed: dict[str, str] = {}
    with Root.open("/") as root:
        modes = _make_writable(root, targets)
        for target in targets if was_interrupted else ():
            with suppress(OSError):  # its folder is missing or read-only, which is reported elsewhere
                root.remove_unfinished(target.name)
        by_depth = sorted(targets, key=lambda one: one.path.count("/"))
        for target in reversed(by_depth):
            with _note_failure(failed, target):
                if target.must_go and stat.S_ISDIR(target.present.mode):
                    root.remove_folder(target.name)
                elif target.must_go:
                    root.remove(target.name)
        folders = [one for one in by_depth if stat.S_ISDIR(one.wanted.mode)]
        for target in folders:
            with _note_failure(failed, target):
                root.make_folder(target.name).close()
                root.set_mode(target.name, stat.S_IMODE(target.wanted.mode) | 0o700)
        others = [one for one in targets if one.wanted.mode and not stat.S_ISDIR(one.wanted.mode)]
        for target in others:
            if target.path not in failed:
                with _note_failure(failed, target):
                    _put_file(root, target)
        _join_names(root, [one for one in others if one.path not in failed])
        modes |= {one.path: stat.S_IMODE(one.wanted.mode) for one in folders}
        for path in sorted(modes, key=lambda one: one.count("/"), reverse=True):
            try:
                root.set_mode(path.lstrip("/"), modes[path])
            except FileNotFoundError:
                continue  # the turn made it, and it was just removed
            except OSError as fault:
                failed.setdefault(path, fault.strerror or str(fault))
    return failed


@contextmanager
def _note_failure(failed: dict[str, str], target: Target) -> Generator[None]:
    try:
        yield
    except OSError as fault:
        failed.setdefault(target.path, fault.strerror or str(fault))
    except TalariaError as fault:
        failed.setdefault(target.path, str(fault))


def _make_writable(root: Root, targets: Sequence[Target]) -> dict[str, int]:
    """Makes read-only parent folders writable, and returns their former modes."""
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


def _put_file(root: Root, target: Target) -> None:
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
    """Links names that belonged to the same file."""
    groups: dict[int, list[Target]] = {}
    for target in targets:
        if stat.S_ISREG(target.wanted.mode) and target.wanted.links > 1:
            groups.setdefault(target.wanted.inode, []).append(target)
    for first, *others in groups.values():
        for other in others:
            infos = [root.find(one.name) for one in (first, other)]
            if None not in infos and not os.path.samestat(*infos):  # pyright: ignore[reportArgumentType]
                root.replace_by_name(other.name, first.name)
