"""The one way to work in folders that other processes can change meanwhile: projects, workspaces,
scratch folders.

A `Root` is a folder that was opened once. Names lead down from its descriptor, never through a link
and never out of it, so it does not matter what somebody puts on the way between two steps. Only
plain files are opened.

Only the standard library: the search program is started without site-packages. All functions raise
`OSError`."""

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import BinaryIO, NamedTuple, Self

FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
"""How a folder is opened to work inside it, also one that must not be listed."""
MAX_HOPS = 8
"""From link to link."""

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
    """Neither: a link, pipe, socket or device."""
    inode: int


class Root:
    def __init__(self, descriptor: int, *, path: str = "", is_stepwise: bool = False) -> None:
        """Takes the descriptor over. `is_stepwise`: do not use `openat2`, as where the kernel lacks
        it."""
        self.descriptor = descriptor
        self.path = path
        """By its true name when it was opened; empty: not known."""
        self._is_stepwise = is_stepwise

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, is_stepwise: bool = False) -> "Root":
        """Follows links: the path to a root is the caller's choice, what is below is not."""
        return cls(
            _listable(os.fspath(path), None, follows=True),
            path=os.path.realpath(path).rstrip("/") or "/",
            is_stepwise=is_stepwise,
        )

    @classmethod
    def make(cls, path: str | os.PathLike[str]) -> "Root":
        """As `open`; it is made where it is missing, for nobody else to see."""
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
        """The folder around the one that was opened, wherever that is by now; None: there is none.
        The only way up."""
        around = Root(os.open("..", FOLDER, dir_fd=self.descriptor), is_stepwise=self._is_stepwise)
        if os.path.sameopenfile(around.descriptor, self.descriptor):
            around.close()
            return None
        return around

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode: the same folder by any name."""
        found = os.fstat(self.descriptor)
        return found.st_dev, found.st_ino

    def folder(self, name: str) -> "Root":
        """Also to be listed, if we may."""
        with self._parent(name) as (parent, last):
            return Root(_listable(last, parent), is_stepwise=self._is_stepwise)

    def make_folder(self, name: str, mode: int = 0o777) -> "Root":
        """It and those on the way to it are made where they are missing."""
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
        """To be read. Also refuses folders, devices and pipes: those may never end."""
        with self._parent(name) as (parent, last):
            return os.fdopen(open_in(parent, last), "rb")

    def handle(self, name: str, *, is_socket: bool = False) -> int:
        """A descriptor of a file or folder, or else of a socket, that holds on to it and reads nothing:
        Linux only."""
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
        """Its beginning, of so many bytes at most."""
        with self._parent(name) as (parent, last):
            descriptor = open_in(parent, last)
        try:
            return read_all(descriptor, limit_bytes)
        finally:
            os.close(descriptor)

    def info(self, name: str = ".") -> os.stat_result:
        """Of a link: of itself."""
        with self._parent(name) as (parent, last):
            return os.stat(last, dir_fd=parent, follow_symlinks=False)

    def find(self, name: str) -> os.stat_result | None:
        """As `info`; None: it is not there, or there is something else on the way than a folder."""
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
        """The true name of something in here, whatever links lead to it, as long as they stay in
        here. It may change before it is opened, which is no harm: opening follows nothing."""
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
        """What is in it, in no order."""
        with os.scandir(self.descriptor) as found:
            return [
                Entry(one.name, one.is_dir(follow_symlinks=False), one.is_file(follow_symlinks=False), one.inode())
                for one in found
            ]

    def descend(
        self, is_entered: Callable[[Entry], bool] = lambda _: True, max_folders: int = 1 << 20
    ) -> Iterator[tuple[str, Entry]]:
        """All that is below, the nearest first, with the name of the folder it is in; what cannot
        be listed is left out."""
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
        """Whole and durable, or nothing has changed. Without a `mode` the file keeps its own; a new
        one gets what the umask leaves."""
        with self._parent(name) as (parent, last):
            replace_in(parent, last, content, mode=mode)

    def append(self, name: str, mode: int) -> BinaryIO:
        """To be written at its end; it is made where it is missing."""
        with self._parent(name) as (parent, last):
            descriptor = os.open(last, _APPENDING, mode, dir_fd=parent)
        try:
            _check(os.fstat(descriptor))
            return os.fdopen(descriptor, "ab", buffering=0)
        except OSError:
            os.close(descriptor)
            raise

    def create(self, name: str, mode: int) -> BinaryIO:
        """A new file, to be written."""
        with self._parent(name) as (parent, last):
            return os.fdopen(os.open(last, _CREATING, mode, dir_fd=parent), "wb", buffering=0)

    def remove_unfinished(self, name: str) -> None:
        """What a crash has left of replacing a file."""
        *above, last = _parts(name)
        begin = _temporary(last)[:-_RANDOM_CHARS]
        with self.folder("/".join(above) or ".") as here:
            for entry in here.entries():
                rest = entry.name.removeprefix(begin)
                if rest != entry.name and len(rest) == _RANDOM_CHARS and not rest.strip("0123456789abcdef"):
                    here.remove(entry.name)

    def make_link(self, name: str, target: str) -> None:
        """To anywhere: nothing follows it here."""
        with self._parent(name) as (parent, last):
            os.symlink(target, last, dir_fd=parent)

    def replace_by_link(self, name: str, target: str) -> None:
        """What is not a folder becomes a link, at once."""
        with self._parent(name) as (parent, last):
            temporary = _temporary(last)
            os.symlink(target, temporary, dir_fd=parent)
            os.replace(temporary, last, src_dir_fd=parent, dst_dir_fd=parent)

    def replace_by_name(self, name: str, other: str) -> None:
        """What is not a folder becomes a second name of the plain file `other`, at once."""
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
        """Of what is not a link, also if we may not open it."""
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
        """What is not a folder; of a link: itself."""
        with self._parent(name) as (parent, last):
            os.unlink(last, dir_fd=parent)

    def remove_folder(self, name: str) -> None:
        """If it is empty."""
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
        """Within one file system; what has the new name is replaced."""
        *above, new = _parts(new_name) or (".",)
        with self._parent(name) as (parent, last), to.folder("/".join(above)) as target:
            os.replace(last, new, src_dir_fd=parent, dst_dir_fd=target.descriptor)

    @contextmanager
    def _parent(self, name: str) -> Generator[tuple[int, str]]:
        """The open folder in which something is, and its name there."""
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
    """The descriptor of a plain file inside an open folder, to be read."""
    _check(os.stat(name, dir_fd=folder, follow_symlinks=False))  # some devices act as soon as they are opened
    descriptor = os.open(name, _READING | os.O_NOFOLLOW, dir_fd=folder)
    try:
        _check(os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_all(descriptor: int, limit_bytes: int) -> bytes:
    """From an open file, so many bytes at most. Not by a buffer of that size: most files are small."""
    pieces: list[bytes] = []
    left = limit_bytes
    size = os.fstat(descriptor).st_size + 1  # one more, to see its end
    while left > 0:
        try:
            piece = os.read(descriptor, min(left, max(size, 1 << 14)))
        except BlockingIOError:  # of the system, with nothing to say yet
            break
        if not piece:
            break
        pieces.append(piece)
        left -= len(piece)
        size -= len(piece)
    return b"".join(pieces)


def replace_in(folder: int, name: str, content: bytes | Iterable[bytes], *, mode: int | None) -> None:
    """As `Root.replace`, right inside an open folder."""
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
                os.fchmod(descriptor, mode)  # before the content: what is private never was anything else
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
    """The first bytes of a plain file, wherever its path leads: of a path that nobody else can
    change."""
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
    except PermissionError:  # of use without being listed, too
        return os.open(name, FOLDER if follows else FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except NotADirectoryError:
        if parent is not None and stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, _LINK) from None
        raise


def _open_below(root: int, parts: list[str], *, is_stepwise: bool) -> int:
    """The descriptor of a folder below: by one call of the kernel if it can, else step by step."""
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
    """`openat2` that stays below and follows no link; None: not on this machine."""
    if os.uname().sysname != "Linux" or os.uname().machine not in ("x86_64", "aarch64"):
        return None
    import ctypes  # noqa: PLC0415  (takes as long to load as all the rest of a search)

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
