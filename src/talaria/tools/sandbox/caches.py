"""The package caches of one project, in Talaria's home: tools find them where they look, and they are kept from one
session to the next. The person's own caches are neither visible nor changed.

Commands write into `cache/NAME`, never into the folder around it: what is mounted is always a folder that we made.
"""

import fcntl
import logging
import os
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import structs

from talaria.core.trees import Root
from talaria.tools.sandbox.base import Bind, SandboxPolicy

MEASURED_AGAIN_S = 600
_LOCK, _SIZES, _GONE = ".lock", ".sizes", ".gone-"
_SPLIT = "cache"
"""Shared by many tools; the folder of each is emptied by itself."""
_MAX_SIZES_BYTES = 1 << 20

log = logging.getLogger(__name__)


class _Cache(msgspec.Struct, frozen=True):
    name: str
    at: str = ""
    """Below the home, for sandboxes that can mount; empty: not needed there."""
    variables: Mapping[str, str] = {}
    """Lead tools there in other sandboxes; {} is its path."""


_CACHES = (
    _Cache(
        _SPLIT,
        ".cache",
        {
            "XDG_CACHE_HOME": "{}",
            "PIP_CACHE_DIR": "{}/pip",
            "UV_CACHE_DIR": "{}/uv",
            "GOCACHE": "{}/go-build",
            "PRE_COMMIT_HOME": "{}/pre-commit",
        },
    ),
    _Cache("npm", ".npm", {"npm_config_cache": "{}"}),
    _Cache("pnpm", ".local/share/pnpm/store", {"pnpm_config_store_dir": "{}"}),
    _Cache("go", "go/pkg", {"GOMODCACHE": "{}/mod"}),
    _Cache("cargo-registry", ".cargo/registry"),
    _Cache("cargo-git", ".cargo/git"),
    _Cache("cargo-home", variables={"CARGO_HOME": "{}"}),
    _Cache("maven", ".m2/repository", {"MAVEN_ARGS": "-Dmaven.repo.local={}"}),
    _Cache("gradle", ".gradle/caches"),
    _Cache("gradle-wrapper", ".gradle/wrapper/dists"),
    _Cache("gradle-home", variables={"GRADLE_USER_HOME": "{}"}),
)
_ALWAYS = {"UV_LINK_MODE": "copy", "GOFLAGS": "-modcacherw"}
"""A cache is not on the project's file system, so nothing can be linked; and read-only modules could not be removed."""
_PNPM_SETTINGS = "pnpm-rc"
"""Without it, pnpm puts its store into a project that is on another file system than the home."""


@contextmanager
def use_caches(folder: Path, limit_bytes: int) -> Generator[None]:
    """While a session of a project runs commands; `folder` is what we keep for the project. Before that, caches above
    the limit are emptied, the least recently used first, unless another session of the project could be using them."""
    for place in (folder.parent, folder):  # each is private to this user
        Root.make(place).close()
    with Root.make(folder / "cache") as root, root.append(_LOCK, 0o600) as lock:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            sizes = _load_sizes(root)
            total = sum(size for size, _ in sizes.values())
            for name in sorted(sizes, key=lambda name: sizes[name][1]):
                if total <= limit_bytes:
                    break
                with suppress(OSError):  # this is quick; what was moved away is deleted later
                    root.move(name, root, f"{_GONE}{os.urandom(8).hex()}")
                total -= sizes[name][0]
                with suppress(OSError):
                    root.remove(_SIZES)  # so that they are measured again
        fcntl.flock(lock, fcntl.LOCK_SH)
        for cache in _CACHES:
            root.make_folder(cache.name, 0o700).close()
        tidying = threading.Thread(target=_tidy, args=(folder / "cache",), name="package caches", daemon=True)
        tidying.start()
        yield


def with_caches(view: SandboxPolicy, folder: Path, *, can_mount: bool) -> SandboxPolicy:
    """The policy with the caches that exist. If the sandbox can mount, they are where tools look for them: what is
    shown below one of them appears in it, and none covers what can be written, or is in what is read-only. Otherwise
    variables lead tools to them."""
    cache = folder / "cache"
    try:
        with Root.open(cache) as root:
            folders = {entry.name for entry in root.entries() if entry.is_folder}
    except OSError:
        return view
    there = [one for one in _CACHES if one.name in folders]
    variables, binds = dict(_ALWAYS), list[Bind]()
    if not can_mount:
        for one in there:
            variables |= {name: text.format(cache / one.name) for name, text in one.variables.items()}
        binds += (Bind(cache / one.name, cache / one.name, is_writable=True) for one in there if one.variables)
    else:
        writable = (view.project, *view.writes)

        def is_free(at: Path) -> bool:
            return not any(at.is_relative_to(place) for place in (*writable, *view.reads))

        for one in there:
            at = view.home / one.at
            if one.at and is_free(at) and not any(place.is_relative_to(at) for place in writable):
                binds.append(Bind(cache / one.name, at, is_writable=True))
        shown = tuple(binds)
        binds += (Bind(place, place) for place in view.reads if any(place.is_relative_to(one.at) for one in shown))
        store, settings = view.home / ".local/share/pnpm/store", view.home / ".config/pnpm/rc"
        if any(one.at == store for one in shown) and is_free(settings):
            variables["pnpm_config_store_dir"] = str(store)  # pnpm 11 and later; older ones read its settings file
            with suppress(OSError), Root.open(folder) as root:
                if root.find(_PNPM_SETTINGS) is None:
                    root.replace(_PNPM_SETTINGS, f"store-dir={store}\n".encode(), mode=0o600)
                binds.append(Bind(folder / _PNPM_SETTINGS, settings))
    return structs.replace(view, binds=(*binds, *view.binds), environment={**variables, **view.environment})


def read_sizes(folder: Path) -> dict[str, int]:
    """In bytes, by name of the cache, as last measured; `folder` as in `use_caches`. Not on the loop."""
    try:
        with Root.open(folder / "cache") as root:
            return {name.partition("/")[2] or name: size for name, (size, _) in _load_sizes(root).items()}
    except OSError:
        return {}


def _load_sizes(root: Root) -> dict[str, tuple[int, float]]:
    """By name: bytes, and when it was last used. Empty before the first measurement."""
    try:
        return msgspec.json.decode(root.read(_SIZES, _MAX_SIZES_BYTES), type=dict[str, tuple[int, float]])
    except (OSError, msgspec.DecodeError):
        return {}


def _tidy(folder: Path) -> None:
    """In a thread of its own, while commands run: nobody waits for it, and the next session does what it leaves."""
    try:
        with Root.open(folder) as root:
            for entry in root.entries():
                if not entry.name.startswith(_GONE):
                    continue
                if not entry.is_folder:
                    root.remove(entry.name)
                    continue
                with suppress(OSError):
                    root.remove_tree(entry.name)
                    continue
                with root.folder(entry.name) as gone:  # it has read-only folders, as Go makes them
                    for place, inner in gone.descend():
                        if inner.is_folder:
                            gone.set_mode(f"{place}/{inner.name}".lstrip("/"), 0o700)
                root.remove_tree(entry.name)
            known = root.find(_SIZES)
            if known is not None and time.time() - known.st_mtime <= MEASURED_AGAIN_S:
                return
            units = [cache.name for cache in _CACHES if cache.name != _SPLIT]
            with root.folder(_SPLIT) as inner:
                units += (f"{_SPLIT}/{entry.name}" for entry in inner.entries())
            sizes = {name: _measure(root, name) for name in units}
            root.replace(_SIZES, msgspec.json.encode(sizes), mode=0o600)
    except OSError as fault:
        log.info("package caches in %s were not measured: %s", folder, fault)


def _measure(root: Root, name: str) -> tuple[int, float]:
    """Its bytes on the disk, and when something in it was last used."""
    top = root.info(name)
    total, used_at = top.st_blocks * 512, top.st_mtime
    waiting = [name]
    for place in waiting:
        with suppress(OSError), root.folder(place) as here:
            for entry in here.entries():
                found = here.info(entry.name)
                total += found.st_blocks * 512
                used_at = max(used_at, found.st_mtime, 0 if entry.is_folder else found.st_atime)
                if entry.is_folder:
                    waiting.append(f"{place}/{entry.name}")
    return total, used_at
