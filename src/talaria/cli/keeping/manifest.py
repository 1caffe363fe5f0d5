"""What a backup holds, and what it says of itself: last in the archive, so one that has a manifest is whole."""

import re

import msgspec

FORMAT = 1
MANIFEST = "manifest.json"
FOLDER = "home"
DATABASE = "state.db"

_ELSEWHERE = re.compile(r"run|logs|cache|platforms|profiles|(state|search)\.db.*")


class Manifest(msgspec.Struct, frozen=True):
    format: int
    version: str
    """Of Talaria."""
    schema: int
    """Of the conversations."""
    created_at: float
    files: dict[str, str]
    """By path inside the home: the SHA-256 of each."""


def is_secret(name: str) -> bool:
    return name.startswith(".env")


def is_elsewhere(name: str) -> bool:
    """Of what is at the top of a home: it is of running processes, can be made anew, or is a home of its own."""
    return _ELSEWHERE.fullmatch(name) is not None


def is_kept(name: str, *, with_secrets: bool) -> bool:
    return not is_elsewhere(name) and (with_secrets or not is_secret(name))
