"""Watches folders through the kernel (inotify) for new names, and names that something was moved to.

There is one instance for the whole process: a user may only have 128, and their editor needs some.
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
    """Events of one tree. Folders have the names that the subscriber gives them."""

    def __init__(
        self, events: "FolderEvents", is_wanted: Callable[[str, str], bool], notify: Callable[[], None]
    ) -> None:
        """`is_wanted` is asked about (folder, name) of anything but folders; `notify` is called from the loop."""
        self._events = events
        self._is_wanted = is_wanted
        self.notify = notify
        self._names: set[str] = set()
        self.is_complete = True
        """False: events were lost, so the whole tree must be searched."""

    def watch(self, folder: Root, name: str) -> None:
        """Watch one more folder, or an earlier one under a new name. Raises `OSError`."""
        self._events.add(self, folder, name)

    def note(self, folder: str, name: str, *, is_folder: bool) -> bool:
        if not (is_folder or self._is_wanted(folder, name)):
            return False
        self._names.add(f"{folder}/{name}" if folder else name)
        return True

    def take_names(self) -> set[str]:
        """All names that have appeared since the last call."""
        self._events.read()
        names, self._names = self._names, set()
        return names

    def close(self) -> None:
        self._events.remove(self)


class FolderEvents:
    """Raises `OSError` where the kernel has no inotify, or none left for this user. Used from any thread."""

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise OSError(errno.ENOSYS, "only Linux has inotify")
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._check(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._lock = threading.RLock()
        self._watched: dict[int, dict[Subscription, str]] = {}

    def subscribe(self, is_wanted: Callable[[str, str], bool], notify: Callable[[], None]) -> Subscription:
        return Subscription(self, is_wanted, notify)

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Subscribers are notified on this loop as soon as something appears."""
        loop.add_reader(self._descriptor, self._notify_subscribers)

    def add(self, subscription: Subscription, folder: Root, name: str) -> None:
        with self._lock:
            path = f"/proc/self/fd/{folder.descriptor}".encode()  # not its name: another folder could be put there
            watch = self._check(self._libc.inotify_add_watch(self._descriptor, path, _ADDED))
            self._watched.setdefault(watch, {})[subscription] = name

    def remove(self, subscription: Subscription) -> None:
        with self._lock:
            for watch, names in list(self._watched.items()):
                if names.pop(subscription, None) is not None and not names:
                    self._libc.inotify_rm_watch(self._descriptor, watch)
                    del self._watched[watch]

    def read(self) -> set[Subscription]:
        """Pass on all events; returns the subscriptions that got any."""
        notified: set[Subscription] = set()
        with self._lock:
            while True:
                try:
                    data = os.read(self._descriptor, _READ_BYTES)
                except BlockingIOError:
                    return notified
                at = 0
                while at < len(data):
                    watch, mask, _, size = _EVENT.unpack_from(data, at)
                    at += _EVENT.size + size
                    if mask & _LOST:
                        for one in {one for names in self._watched.values() for one in names}:
                            one.is_complete = False
                            notified.add(one)
                    elif mask & _GONE:
                        self._watched.pop(watch, None)
                    else:
                        name, is_folder = os.fsdecode(data[at - size : at].rstrip(b"\0")), bool(mask & _IS_FOLDER)
                        for one, folder in self._watched.get(watch, {}).items():
                            if one.note(folder, name, is_folder=is_folder):
                                notified.add(one)

    def _notify_subscribers(self) -> None:
        for subscription in self.read():
            subscription.notify()

    def close(self) -> None:
        with suppress(RuntimeError):  # the loop has ended
            asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _check(self, result: int) -> int:
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result
