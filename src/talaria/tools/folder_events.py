"""What is made in folders, as the kernel tells it (inotify): new names, and names that something was moved to.

One instance for the whole process, whoever asks: a person has only 128 of them, and their editor wants some.
"""

import asyncio
import ctypes
import errno
import os
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from talaria.core.trees import Root

_EVENT = struct.Struct("iIII")
_CREATE, _MOVED_TO, _LOST, _GONE, _IS_FOLDER = 0x100, 0x80, 0x4000, 0x8000, 0x40000000
_ONLY_FOLDERS = 0x01000000
_ADDED = _CREATE | _MOVED_TO | _ONLY_FOLDERS
_READ_BYTES = 1 << 16


class Subscription:
    """The news of one tree. Folders are named as the subscriber names them."""

    def __init__(self, events: "FolderEvents", is_wanted: Callable[[str, str], bool], tell: Callable[[], None]) -> None:
        """`is_wanted` is asked about (folder, name) of whatever is not a folder; `tell` is called from the loop."""
        self._events = events
        self._is_wanted = is_wanted
        self.tell = tell
        self._names: set[str] = set()
        self.is_complete = True
        """False: something was missed, so the whole tree must be looked at."""

    def watch(self, folder: Root, name: str) -> None:
        """What is made in it from now on; again: under the new name. Raises `OSError`."""
        self._events.add(self, folder, name)

    def note(self, folder: str, name: str, *, is_folder: bool) -> bool:
        if not (is_folder or self._is_wanted(folder, name)):
            return False
        self._names.add(f"{folder}/{name}" if folder else name)
        return True

    def take(self) -> set[str]:
        """All that has been made since the last time."""
        self._events.read()
        names, self._names = self._names, set()
        return names

    def close(self) -> None:
        self._events.remove(self)


class FolderEvents:
    """Raises `OSError` where the kernel has no inotify, or no more of it for this user. Any thread."""

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise OSError(errno.ENOSYS, "only Linux has inotify")
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._lock = threading.RLock()
        self._watched: dict[int, dict[Subscription, str]] = {}

    def subscribe(self, is_wanted: Callable[[str, str], bool], tell: Callable[[], None]) -> Subscription:
        return Subscription(self, is_wanted, tell)

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Subscribers are told on this loop as soon as something is made."""
        loop.add_reader(self._descriptor, self._notify)

    def add(self, subscription: Subscription, folder: Root, name: str) -> None:
        with self._lock:
            path = f"/proc/self/fd/{folder.descriptor}".encode()  # no name: nobody can put another in its place
            watch = self._checked(self._libc.inotify_add_watch(self._descriptor, path, _ADDED))
            self._watched.setdefault(watch, {})[subscription] = name

    def remove(self, subscription: Subscription) -> None:
        with self._lock:
            for watch, names in list(self._watched.items()):
                if names.pop(subscription, None) is not None and not names:
                    self._libc.inotify_rm_watch(self._descriptor, watch)
                    del self._watched[watch]

    def read(self) -> set[Subscription]:
        """Passes on what has come; returns whom it concerned."""
        told: set[Subscription] = set()
        with self._lock:
            while True:
                try:
                    data = os.read(self._descriptor, _READ_BYTES)
                except BlockingIOError:
                    return told
                at = 0
                while at < len(data):
                    watch, mask, _, size = _EVENT.unpack_from(data, at)
                    at += _EVENT.size + size
                    told |= self._dispatch(watch, mask, os.fsdecode(data[at - size : at].rstrip(b"\0")))

    def _dispatch(self, watch: int, mask: int, name: str) -> set[Subscription]:
        if mask & _LOST:
            everybody = {one for names in self._watched.values() for one in names}
            for one in everybody:
                one.is_complete = False
            return everybody
        if mask & _GONE:
            self._watched.pop(watch, None)
            return set()
        concerned = self._watched.get(watch, {})
        is_folder = bool(mask & _IS_FOLDER)
        return {one for one, folder in concerned.items() if one.note(folder, name, is_folder=is_folder)}

    def _notify(self) -> None:
        for subscription in self.read():
            subscription.tell()

    def close(self) -> None:
        with suppress(RuntimeError):  # there is no loop any more
            asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _checked(self, result: int) -> int:
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result
