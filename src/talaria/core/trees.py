"""The only way to work in folders that other processes can change meanwhile: projects, workspaces, scratch folders.

A `Root` is a folder that was opened once. Names lead down from its descriptor, never through a link and never out of
it, so it does not matter what somebody puts in the way between two steps. Only regular files are opened.

Uses only the standard library, because the search program is started without site-packages. All functions raise
`OSError`."""

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import BinaryIO, NamedTuple, Self

FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
"""How a folder is opened to work inside it, even one that we may not list."""
MAX_HOPS = 8
"""How many links `follow` follows."""

_LISTING = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READING = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # without NONBLOCK a pipe would wait
_CREATING = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_OUT = "it leads out of its folder"
_NO_FILE = "it is a folder, device or pipe"
_LINK = "it is a link, or leads through one"
_OPENAT2 = 437
_RANDOM_CHARS = 12
_BENEATH_WITHOUT_LINKS = 0x08 | 0x04  # RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS


class Entry(NamedTuple):
    name: str
    is_folder: bool
    is_plain_file: bool
    """Neither: it is a link, pipe, socket or device."""
    inode: int


class Root:
    def __init__(self, descriptor: int, *, path: str = "", is_stepwise: bool = False) -> None:
        """Takes ownership of the descriptor. `is_stepwise`: do not use `openat2`, as if the kernel lacked it."""
        self.descriptor = descriptor
        self.path = path
        """Its real path when it was opened; empty if unknown."""
        self._is_stepwise = is_stepwise

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, is_stepwise: bool = False) -> "Root":
        """Follows links, because the path to a root is the caller's choice, unlike what is below."""
        return cls(
            _listable(os.fspath(path), None, follows=True),
            path=os.path.realpath(path).rstrip("/") or "/",
            is_stepwise=is_stepwise,
        )

    @classmethod
    def make(cls, path: str | os.PathLike[str]) -> "Root":
        """Like `open`, but creates what is missing, for nobody else to see."""
        os.makedirs(path, mode=0o700, exist_ok=True)  # noqa: PTH103
        return cls.open(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def outer(self) -> "Root | None":
        """The parent of the folder that was opened, wherever that is by now; None if it has none. The only way up."""
        around = Root(os.open("..", FOLDER, dir_fd=self.descriptor), is_stepwise=self._is_stepwise)
        if os.path.sameopenfile(around.descriptor, self.descriptor):
            around.close()
            return None
        return around

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode: the same for a folder by any name."""
        found = os.fstat(self.descriptor)
        return found.st_dev, found.st_ino

    def folder(self, name: str) -> "Root":
        """Can also be listed, if we may do that."""
        with self._parent(name) as (parent, last):
            return Root(_listable(last, parent), is_stepwise=self._is_stepwise)

    def make_folder(self, name: str, mode: int = 0o777) -> "Root":
        """Creates the folder, and those on the way to it, where they are missing."""
        parts = _parts(name)
        here = Root(os.dup(self.descriptor), is_stepwise=self._is_stepwise)
        for part in parts:
            with here:
                try:
                    inner = here.folder(part)
                except FileNotFoundError:
                    with suppress(FileExistsError):
                        os.mkdir(part, mode, dir_fd=here.descriptor)
                    inner = here.folder(part)
            here = inner
        return here

    def open_file(self, name: str) -> BinaryIO:
        """For reading. Also refuses folders, devices and pipes, which may never end."""
        with self._parent(name) as (parent, last):
            return os.fdopen(open_in(parent, last), "rb")

    def handle(self, name: str, *, is_socket: bool = False) -> int:
        """A descriptor that only refers to a file or folder, or else to a socket, and cannot read it. Linux only."""
        with self._parent(name) as (parent, last):
            descriptor = os.open(last, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISSOCK(mode) if is_socket else stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            return descriptor
        os.close(descriptor)
        if stat.S_ISLNK(mode):
            raise OSError(errno.ELOOP, _LINK)
        raise OSError(errno.EINVAL, "it is not a socket" if is_socket else _NO_FILE)

    def read(self, name: str, limit_bytes: int) -> bytes:
        """At most the first `limit_bytes` of the file."""
        with self._parent(name) as (parent, last):
            descriptor = open_in(parent, last)
        try:
            return read_all(descriptor, limit_bytes)
        finally:
            os.close(descriptor)

    def info(self, name: str = ".") -> os.stat_result:
        """For a link, about the link itself."""
        with self._parent(name) as (parent, last):
            return os.stat(last, dir_fd=parent, follow_symlinks=False)

    def find(self, name: str) -> os.stat_result | None:
        """Like `info`; None if it does not exist, or if something on the way to it is not a folder."""
        try:
            return self.info(name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as fault:
            if fault.errno == errno.ELOOP:
                return None
            raise

    def read_link(self, name: str) -> str:
        with self._parent(name) as (parent, last):
            return os.readlink(last, dir_fd=parent)

    def follow(self, name: str) -> str:
        """The real name of something in here, through any links, as long as they stay in here. It may change before it
        is opened, which does no harm, because opening follows nothing."""
        waiting, done, hops = name.split("/")[::-1], list[str](), 0
        while waiting:
            match waiting.pop():
                case "" | ".":
                    continue
                case ".." if not done:
                    raise OSError(errno.EXDEV, _OUT)
                case "..":
                    done.pop()
                    continue
                case part:
                    done.append(part)
            found = self.find("/".join(done))
            if found is None or not stat.S_ISLNK(found.st_mode):
                continue
            target, hops = self.read_link("/".join(done)), hops + 1
            done.pop()
            if target.startswith("/"):
                if not self.path or not f"{target}/".startswith(f"{self.path}/"):
                    raise OSError(errno.EXDEV, _OUT)
                done, target = [], target[len(self.path) :]
            if hops > MAX_HOPS:
                raise OSError(errno.ELOOP, _LINK)
            waiting += target.split("/")[::-1]
        return "/".join(done)

    def entries(self) -> list[Entry]:
        """What is in the folder, in no particular order."""
        with os.scandir(self.descriptor) as found:
            return [
                Entry(one.name, one.is_dir(follow_symlinks=False), one.is_file(follow_symlinks=False), one.inode())
                for one in found
            ]

    def descend(
        self, is_entered: Callable[[Entry], bool] = lambda _: True, max_folders: int = 1 << 20
    ) -> Iterator[tuple[str, Entry]]:
        """Everything below, nearest first, with the name of its folder; what cannot be listed is left out."""
        waiting = [""]
        for count, folder in enumerate(waiting, 1):
            try:
                with self.folder(folder) as here:
                    found = here.entries()
            except OSError:
                continue
            for entry in found:
                yield folder, entry
                if entry.is_folder and is_entered(entry):
                    waiting.append(f"{folder}/{entry.name}" if folder else entry.name)
            if count == max_folders:
                return

    def replace(self, name: str, content: bytes | Iterable[bytes], *, mode: int | None) -> None:
        """Replaces a file whole and durably, or changes nothing. Without a `mode` the file keeps its own; a new file
        gets what the umask leaves."""
        with self._parent(name) as (parent, last):
            replace_in(parent, last, content, mode=mode)

    def append(self, name: str, mode: int) -> BinaryIO:
        """For writing at its end; created if it is missing."""
        with self._parent(name) as (parent, last):
            descriptor = os.open(last, _APPENDING, mode, dir_fd=parent)
        try:
            _check(os.fstat(descriptor))
            return os.fdopen(descriptor, "ab", buffering=0)
        except OSError:
            os.close(descriptor)
            raise

    def create(self, name: str, mode: int) -> BinaryIO:
        """A new file, for writing."""
        with self._parent(name) as (parent, last):
            return os.fdopen(os.open(last, _CREATING, mode, dir_fd=parent), "wb", buffering=0)

    def remove_unfinished(self, name: str) -> None:
        """What a crash left behind while a file was replaced."""
        *above, last = _parts(name)
        begin = _temporary(last)[:-_RANDOM_CHARS]
        with self.folder("/".join(above) or ".") as here:
            for entry in here.entries():
                rest = entry.name.removeprefix(begin)
                if rest != entry.name and len(rest) == _RANDOM_CHARS and not rest.strip("0123456789abcdef"):
                    here.remove(entry.name)

    def make_link(self, name: str, target: str) -> None:
        """It may lead anywhere, because nothing here follows it."""
        with self._parent(name) as (parent, last):
            os.symlink(target, last, dir_fd=parent)

    def replace_by_link(self, name: str, target: str) -> None:
        """Replaces anything but a folder by a link, atomically."""
        with self._parent(name) as (parent, last):
            temporary = _temporary(last)
            os.symlink(target, temporary, dir_fd=parent)
            os.replace(temporary, last, src_dir_fd=parent, dst_dir_fd=parent)

    def replace_by_name(self, name: str, other: str) -> None:
        """Replaces anything but a folder by a second name of the regular file `other`, atomically."""
        with self._parent(name) as (parent, last), self._parent(other) as (other_parent, other_last):
            _check(os.stat(other_last, dir_fd=other_parent, follow_symlinks=False))
            temporary = _temporary(last)
            os.link(other_last, temporary, src_dir_fd=other_parent, dst_dir_fd=parent, follow_symlinks=False)
            os.replace(temporary, last, src_dir_fd=parent, dst_dir_fd=parent)

    def make_pipe(self, name: str, mode: int) -> None:
        with self._parent(name) as (parent, last):
            os.mkfifo(last, mode, dir_fd=parent)
        self.set_mode(name, mode)

    def set_mode(self, name: str, mode: int) -> None:
        """For anything but a link, even if we may not open it."""
        with self._parent(name) as (parent, last):
            if os.uname().sysname != "Linux":
                os.chmod(last, mode, dir_fd=parent, follow_symlinks=False)
                return
            descriptor = os.open(last, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            if stat.S_ISLNK(os.fstat(descriptor).st_mode):
                raise OSError(errno.ELOOP, _LINK)
            os.chmod(f"/proc/self/fd/{descriptor}", mode)  # noqa: PTH101
        finally:
            os.close(descriptor)

    def remove(self, name: str) -> None:
        """Removes anything but a folder; for a link, the link itself."""
        with self._parent(name) as (parent, last):
            os.unlink(last, dir_fd=parent)

    def remove_folder(self, name: str) -> None:
        """Removes an empty folder."""
        with self._parent(name) as (parent, last):
            os.rmdir(last, dir_fd=parent)

    def remove_tree(self, name: str) -> None:
        """A folder with all that is in it; links go, and not what they lead to. Whatever is deeper
        is moved up first: commands can make trees that are deeper than a stack or a path can be.
        What can be removed is, before it raises."""
        fault: OSError | None = None
        with self.folder(name) as top:
            waiting = ["."]
            for place in waiting:
                try:
                    with top.folder(place) as here:
                        for entry in here.entries():
                            if entry.is_folder:
                                known = f"{os.urandom(8).hex()}.gone"
                                os.rename(entry.name, known, src_dir_fd=here.descriptor, dst_dir_fd=top.descriptor)
                                waiting.append(known)
                            else:
                                here.remove(entry.name)
                    if place != ".":
                        top.remove_folder(place)
                except OSError as one:
                    fault = fault or one
        if fault is not None:
            raise fault
        self.remove_folder(name)

    def move(self, name: str, to: "Root", new_name: str) -> None:
        """Within one file system; replaces what has the new name."""
        *above, new = _parts(new_name) or (".",)
        with self._parent(name) as (parent, last), to.folder("/".join(above)) as target:
            os.replace(last, new, src_dir_fd=parent, dst_dir_fd=target.descriptor)

    @contextmanager
    def _parent(self, name: str) -> Generator[tuple[int, str]]:
        """The open folder that contains something, and its name there."""
        *above, last = _parts(name) or (".",)
        if not above:
            yield self.descriptor, last
            return
        descriptor = _open_below(self.descriptor, above, is_stepwise=self._is_stepwise)
        try:
            yield descriptor, last
        finally:
            os.close(descriptor)


def open_in(folder: int, name: str) -> int:
    """The descriptor, for reading, of a regular file inside an open folder."""
    _check(os.stat(name, dir_fd=folder, follow_symlinks=False))  # some devices act as soon as they are opened
    descriptor = os.open(name, _READING | os.O_NOFOLLOW, dir_fd=folder)
    try:
        _check(os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_all(descriptor: int, limit_bytes: int) -> bytes:
    """At most `limit_bytes` from an open file, without a buffer of that size, because most files are small."""
    pieces: list[bytes] = []
    left = limit_bytes
    size = os.fstat(descriptor).st_size + 1  # one more, to see its end
    while left > 0:
        try:
            piece = os.read(descriptor, min(left, max(size, 1 << 14)))
        except BlockingIOError:  # a file of the system that has nothing to read yet
            break
        if not piece:
            break
        pieces.append(piece)
        left -= len(piece)
        size -= len(piece)
    return b"".join(pieces)


def replace_in(folder: int, name: str, content: bytes | Iterable[bytes], *, mode: int | None) -> None:
    """Like `Root.replace`, directly inside an open folder."""
    try:
        known = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        known = None
    if known is not None:
        _check(known)
        mode = stat.S_IMODE(known.st_mode) if mode is None else mode
    temporary = _temporary(name)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)  # before the content, so that private content is never readable
            for piece in (content,) if isinstance(content, bytes) else content:
                file.write(piece)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _temporary(name: str) -> str:
    return f".{name[:32]}.{os.urandom(_RANDOM_CHARS // 2).hex()}"


def read_file(path: str | os.PathLike[str], limit_bytes: int) -> bytes:
    """The first bytes of a regular file, wherever its path leads. Only for paths that nobody else can change."""
    descriptor = os.open(path, _READING)
    try:
        _check(os.fstat(descriptor))
        return read_all(descriptor, limit_bytes)
    finally:
        os.close(descriptor)


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts:
        raise OSError(errno.EXDEV, _OUT)
    return parts


def _check(found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, _LINK)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, _NO_FILE)


def _listable(name: str, parent: int | None, *, follows: bool = False) -> int:
    listing = _LISTING & ~os.O_NOFOLLOW if follows else _LISTING
    try:
        return os.open(name, listing, dir_fd=parent)
    except PermissionError:  # it can be used without being listed
        return os.open(name, FOLDER if follows else FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except NotADirectoryError:
        if parent is not None and stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, _LINK) from None
        raise


def _open_below(root: int, parts: list[str], *, is_stepwise: bool) -> int:
    """The descriptor of a folder below, by one system call if the kernel has it, otherwise step by step."""
    if len(parts) > 1 and not is_stepwise and (openat2 := _kernel_walk()) is not None:
        try:
            return openat2(root, "/".join(parts))
        except OSError as fault:
            if fault.errno == errno.ELOOP:
                raise OSError(errno.ELOOP, _LINK) from None
            if fault.errno not in (errno.ENOSYS, errno.EPERM, errno.EAGAIN, errno.EINVAL):
                raise
    here = os.dup(root)
    for part in parts:
        try:
            inner = os.open(part, FOLDER | os.O_NOFOLLOW, dir_fd=here)
        except NotADirectoryError:
            if stat.S_ISLNK(os.stat(part, dir_fd=here, follow_symlinks=False).st_mode):
                raise OSError(errno.ELOOP, _LINK) from None
            raise
        finally:
            os.close(here)
        here = inner
    return here


@cache
def _kernel_walk() -> Callable[[int, str], int] | None:
    """`openat2` that stays below and follows no link; None: this machine does not have it."""
    if os.uname().sysname != "Linux" or os.uname().machine not in ("x86_64", "aarch64"):
        return None
    import ctypes  # noqa: PLC0415  (takes as long to load as the rest of a search)

    class How(ctypes.Structure):
        _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))

    how = How(FOLDER, 0, _BENEATH_WITHOUT_LINKS)
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    given, size = ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how))

    def openat2(root: int, path: str) -> int:
        descriptor = syscall(ctypes.c_long(_OPENAT2), ctypes.c_int(root), os.fsencode(path), given, size)
        if descriptor < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return descriptor

    return openat2
