"""What a backup holds, and what it says of itself: last in the archive, so one that has a manifest is whole."""

import re
from pathlib import Path

import msgspec

from talaria.config.paths import plugin_home

FORMAT = 1
MANIFEST = "manifest.json"
FOLDER = "home"
DATABASE = "state.db"
PLUGIN_HOME = plugin_home(Path()).name

_ELSEWHERE = re.compile(r"run|logs|cache|mcp|platforms|profiles|(state|search|undo)\.db.*")


class BackupManifest(msgspec.Struct, frozen=True):
    format: int
    version: str
    """Of Talaria."""
    schema: int
    """Of the conversations."""
    created_at: float
    files: dict[str, str]
    """By path inside the home: the SHA-256 of each."""


def is_secret(name: str) -> bool:
    """Of a path inside a home: at its top, or at the top of that of plugins."""
    return name.removeprefix(f"{PLUGIN_HOME}/").startswith(".env")


def secrets_in(home: Path) -> list[str]:
    """Their paths inside it."""
    inner = plugin_home(home)
    theirs = inner.iterdir() if inner.is_dir() and not inner.is_symlink() else ()
    plain = [path for path in theirs if not path.is_symlink()]
    found = [str(path.relative_to(home)) for path in (*home.iterdir(), *plain)]
    return sorted(name for name in found if is_secret(name))


def is_elsewhere(name: str) -> bool:
    """Of what is at the top of a home: it is of running processes, can be made anew, or is a home of its own."""
    return _ELSEWHERE.fullmatch(name) is not None


def is_cache(path: Path) -> bool:
    """Of a path inside a home: the package caches of projects are downloaded again."""
    return path.parts[:1] == ("projects",) and path.parts[2:3] == ("cache",)


def is_kept(name: str, *, with_secrets: bool) -> bool:
    return not is_elsewhere(name) and (with_secrets or not is_secret(name))
