"""What a push would do, told from the commits themselves. Git reads the repository in a sandbox, and what it says
counts only as far as it hashes to the name that the server will be told: no other commits pass for these."""

import hashlib
import shlex
from collections.abc import Mapping
from pathlib import Path

import msgspec

from talaria.tools.broker.packets import RefUpdate
from talaria.tools.sandbox.base import Host
from talaria.tools.sandbox.commands import Command

MAX_COMMITS = 1_000
MAX_LISTED = 12
MAX_OUTPUT_BYTES = 8 << 20
READ_S = 15.0
_GIT = "git --no-replace-objects --git-dir={folder} -c core.commitGraph=false -c core.fsmonitor=false"
_LIST = "{git} rev-list -n {most} {new} {without} 2>/dev/null | GIT_NO_LAZY_FETCH=1 {git} cat-file --batch 2>/dev/null"


class Push(msgspec.Struct, frozen=True):
    """One ref of it."""

    update: RefUpdate
    is_forced: bool
    """The server would lose commits, or nothing is known of those that it has."""
    text: str
    """For people, in lines."""


class _Collected:
    """A command's `Sink`."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.is_whole = True

    def add(self, chunk: bytes) -> None:
        self.content += chunk

    def skip(self, size_bytes: int) -> None:
        self.is_whole = self.is_whole and not size_bytes


async def describe_push(update: RefUpdate, host: Host | None, folder: Path) -> Push:
    """`host`: where the repository can be read; None: nowhere, so nothing is known of its commits."""
    short = f"{update.old[:10]} → {update.new[:10]}"
    if update.is_deletion:
        return Push(update, is_forced=True, text=f"{update.name}: deleted (was {update.old[:10]})")
    commits: Mapping[str, bytes] = {}
    if host is not None:
        commits = await _read_commits(host, folder, update)
    listed = _walk(update.new, commits)
    subjects = [f"    {name[:10]} {_subject(commits[name])}" for name in listed[:MAX_LISTED]]
    if len(listed) > MAX_LISTED:
        subjects.append(f"    … and {len(listed) - MAX_LISTED:,} more")
    if update.is_new:
        return Push(update, is_forced=False, text="\n".join([f"{update.name}: new, {update.new[:10]}", *subjects]))
    is_forced = not any(update.old in _parents(commits[name]) for name in listed)
    how = ", replaces what is there (forced)" if is_forced else ""
    return Push(update, is_forced, "\n".join([f"{update.name}: {short}{how}", *subjects]))


async def _read_commits(host: Host, folder: Path, update: RefUpdate) -> dict[str, bytes]:
    git = _GIT.format(folder=shlex.quote(str(folder)))
    without = "--not --remotes" if update.is_new else f"^{update.old}"
    command = _LIST.format(git=git, most=MAX_COMMITS, new=update.new, without=without)
    collected = _Collected()
    started = host.start(Command(command=command, cwd="/", is_kept=False, limit_bytes=MAX_OUTPUT_BYTES), collected)
    end = await started.awaited(READ_S)
    return _verified(bytes(collected.content)) if end is not None and collected.is_whole else {}


def _verified(listed: bytes) -> dict[str, bytes]:
    """The commits that are what they are called."""
    commits: dict[str, bytes] = {}
    while listed:
        line, _, listed = listed.partition(b"\n")
        words = line.split()
        if len(words) != 3 or words[1] != b"commit" or not words[2].isdigit():
            break
        size = int(words[2])
        content, listed = listed[:size], listed[size + 1 :]
        name = words[0].decode("ascii", "replace")
        algorithm = hashlib.sha256 if len(name) == 64 else hashlib.sha1
        if algorithm(b"commit %d\0" % size + content).hexdigest() == name:
            commits[name] = content
    return commits


def _walk(start: str, commits: Mapping[str, bytes]) -> list[str]:
    """What is known of the history of a commit, itself first."""
    found: dict[str, None] = {start: None} if start in commits else {}
    waiting = [*found]
    for name in waiting:
        for parent in _parents(commits[name]):
            if parent in commits and parent not in found:
                found[parent] = None
                waiting.append(parent)
    return [*found]


def _parents(commit: bytes) -> list[str]:
    head = commit.partition(b"\n\n")[0]
    return [line[7:].decode("ascii", "replace") for line in head.split(b"\n") if line.startswith(b"parent ")]


def _subject(commit: bytes) -> str:
    first = commit.partition(b"\n\n")[2].partition(b"\n")[0]
    return first.decode("utf-8", "replace")[:100]
