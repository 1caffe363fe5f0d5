"""What a push would do, worked out from the commits themselves. Git reads the repository in a sandbox, and a commit
counts only if it hashes to the name that the server will be sent: no other commit can pass for it, and the person is
told where some may be missing.

Also what a git client announces to the server before it pushes: the start of the pack protocol, read strictly
(gitprotocol-pack).
"""

import hashlib
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from talaria.tools.sandbox.base import ToolHost
from talaria.tools.sandbox.running_command import SandboxCommand

MAX_HEAD_BYTES = 1 << 20
MAX_REFS = 200
_LENGTH = re.compile(rb"[0-9a-fA-F]{4}")
_COMMAND = re.compile(
    r"(?P<old>[0-9a-f]{40}|[0-9a-f]{64}) (?P<new>[0-9a-f]{40}|[0-9a-f]{64}) (?P<ref>refs/[^\x00-\x20\x7f~^:?*\[\\]+)"
)
_SHALLOW = re.compile(r"shallow (?:[0-9a-f]{40}|[0-9a-f]{64})")
_CAPABILITIES = frozenset(
    {
        *("report-status", "report-status-v2", "side-band-64k", "ofs-delta", "atomic", "quiet", "delete-refs"),
        *("object-format", "agent", "session-id"),
    }
)
"""What a client may agree on with the server. Not `push-options`: they make some servers merge, or run things."""


class OddPush(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(f"This push was refused: {reason}.")


class RefUpdate(msgspec.Struct, frozen=True):
    old: str
    new: str
    ref: str

    @property
    def is_new(self) -> bool:
        return not self.old.strip("0")

    @property
    def is_deletion(self) -> bool:
        return not self.new.strip("0")

    @property
    def name(self) -> str:
        """For people."""
        kind, _, rest = self.ref.removeprefix("refs/").partition("/")
        return {"heads": rest, "tags": f"tag {rest}"}.get(kind, self.ref)


class PushHead:
    """Collects what the client sends until it is known which refs would be updated."""

    def __init__(self) -> None:
        self.received = bytearray()
        """Everything so far, to be passed on."""
        self.updates: list[RefUpdate] = []
        self.is_complete = False
        self._read_bytes = 0

    @property
    def is_decided(self) -> bool:
        """Whether the rest can be passed on unread. Never if no ref was named: nothing may follow then."""
        return self.is_complete and bool(self.updates)

    def feed(self, chunk: bytes) -> None:
        """Raises `OddPush`."""
        self.received += chunk
        while not self.is_complete:
            head = bytes(self.received[self._read_bytes : self._read_bytes + 4])
            if len(head) < 4:
                break
            if not _LENGTH.fullmatch(head):
                raise OddPush("it does not follow git's protocol")
            size = int(head, 16)
            if size == 0:
                self.is_complete = True
                self._read_bytes += 4
                break
            if size < 5:
                raise OddPush("it does not follow git's protocol")
            if len(self.received) - self._read_bytes < size:
                break
            line = bytes(self.received[self._read_bytes + 4 : self._read_bytes + size])
            self._read_bytes += size
            self._read_line(line)
        if self.is_complete and not self.updates and len(self.received) > self._read_bytes:
            raise OddPush("it names no ref, yet sends more")
        if self._read_bytes > MAX_HEAD_BYTES or (not self.is_complete and len(self.received) > MAX_HEAD_BYTES):
            raise OddPush("it names too many refs")

    def end(self) -> None:
        """No more input. Raises `OddPush`."""
        if not self.is_complete:
            raise OddPush("it ends too early")

    def _read_line(self, line: bytes) -> None:
        command, _, agreed = line.removesuffix(b"\n").partition(b"\0")
        try:
            words, capabilities = command.decode(), agreed.decode().split()
        except UnicodeDecodeError:
            raise OddPush("the name of a ref is not UTF-8") from None
        if any(one.startswith("push-options") for one in capabilities):
            raise OddPush("options for the server (git push -o) are not supported")
        if unknown := [one for one in capabilities if one.partition("=")[0] not in _CAPABILITIES]:
            raise OddPush(f"it asks the server for {unknown[0][:40]!a}, which is not supported")
        if _SHALLOW.fullmatch(words) and not self.updates:
            return
        update = _COMMAND.fullmatch(words)
        if update is None or not words.isprintable():
            raise OddPush("signed pushes and refs with unusual names are not supported")
        if len(self.updates) >= MAX_REFS:
            raise OddPush(f"it names more than {MAX_REFS} refs")
        self.updates.append(RefUpdate(update["old"], update["new"], update["ref"]))


MAX_COMMITS = 2_000
"""For all refs of a push together."""
MAX_LISTED = 12
MAX_SUBJECT_CHARS = 100
MAX_OUTPUT_BYTES = 8 << 20
READ_S = 15.0
_PARENTS = re.compile(rb"tree [0-9a-f]+\n((?:parent [0-9a-f]+\n)*)|(object [0-9a-f]+\n)")
_GIT = "git --no-replace-objects --git-dir={folder} -c core.commitGraph=false -c core.fsmonitor=false"
_LIST = (
    "export GIT_NO_LAZY_FETCH=1; { printf '%s\\n' NAMES; GIT rev-list --ignore-missing -n MOST NAMES; } 2>/dev/null | "
    "GIT cat-file --batch 2>/dev/null"
)
"""Nothing is left out because the repository says that the server has it: only the commits themselves tell that."""


class Push(msgspec.Struct, frozen=True):
    """What it does to one ref."""

    update: RefUpdate
    is_forced: bool
    """The server would lose commits, or nothing is known about those that it has."""
    text: str
    """For people, in lines."""

    @property
    def granted_ref(self) -> str:
        """As a permission names it. A loss of commits gets a name of its own, so that no other grant covers it."""
        mark = ":" if self.update.is_deletion else "+" if self.is_forced else ""
        return f"{mark}{self.update.ref}"


class _Collected:
    """A command's `Sink`."""

    def __init__(self) -> None:
        self.content = bytearray()

    def add(self, chunk: bytes) -> None:
        self.content += chunk

    def skip(self, size_bytes: int) -> None:
        """What follows does not hash to its name, and so does not count."""


async def read_commits(host: ToolHost, folders: Collection[Path], updates: Sequence[RefUpdate]) -> dict[str, bytes]:
    """The commits and tags on both sides of a push that can be read, by name. `folders`: where to look for them."""
    names = dict.fromkeys(name for one in updates for name in (one.new, one.old) if name.strip("0"))
    commits: dict[str, bytes] = {}
    for folder in folders if names else ():
        git = _GIT.format(folder=shlex.quote(str(folder)))
        command = _LIST.replace("NAMES", " ".join(names)).replace("MOST", str(MAX_COMMITS)).replace("GIT ", f"{git} ")
        collected = _Collected()
        started = host.start(
            SandboxCommand(command=command, cwd="/", is_kept=False, limit_bytes=MAX_OUTPUT_BYTES), collected
        )
        if await started.wait_within(READ_S) is None:
            break
        commits |= _parse_verified(bytes(collected.content))
    return commits


def describe_push(update: RefUpdate, commits: Mapping[str, bytes]) -> Push:
    if update.is_deletion:
        return Push(update, is_forced=True, text=f"{update.name}: deleted (was {update.old})")
    ours = _walk(update.new, commits)
    theirs = frozenset[str]() if update.is_new else frozenset((update.old, *_walk(update.old, commits)))
    listed = [name for name in ours if name not in theirs]
    is_forced = False
    what = f"{update.name}: new, at {update.new}; its latest commits:"
    if not update.is_new:
        is_forced = update.ref.startswith("refs/tags/") or not any(update.old in _parents(commits[one]) for one in ours)
        how = ", replaces what is there (forced)" if is_forced else ""
        what = f"{update.name}: {update.old} → {update.new}{how}"
    lines = [what]
    for name in listed[:MAX_LISTED]:
        subject = commits[name].partition(b"\n\n")[2].lstrip().partition(b"\n")[0].decode("utf-8", "replace")
        shown = subject if len(subject) <= MAX_SUBJECT_CHARS else f"{subject[:MAX_SUBJECT_CHARS]}…"
        lines.append(f"    {name[:10]} {shown}")
    if len(listed) > MAX_LISTED:
        lines.append(f"    … and {len(listed) - MAX_LISTED:,} more")
    if update.new not in commits:
        lines.append("    its commits cannot be read here")
    elif any(parent not in commits and parent not in theirs for one in listed for parent in _parents(commits[one])):
        lines.append("    there may be more, which cannot be read here")
    return Push(update, is_forced, "\n".join(lines))


def _parse_verified(listed: bytes) -> dict[str, bytes]:
    """The commits and tags that hash to their names."""
    commits: dict[str, bytes] = {}
    at = 0
    while (end := listed.find(b"\n", at)) >= 0:
        words = listed[at:end].split()
        at = end + 1
        if words[1:] == [b"missing"]:
            continue
        if len(words) != 3 or not words[2].isdigit():
            break
        size = int(words[2])
        content = listed[at : at + size]
        at += size + 1
        name = words[0].decode("ascii", "replace")
        algorithm = hashlib.sha256 if len(name) == 64 else hashlib.sha1
        is_known = words[1] in (b"commit", b"tag")
        if is_known and algorithm(words[1] + b" %d\0" % size + content).hexdigest() == name:
            commits[name] = content
    return commits


def _walk(start: str, commits: Mapping[str, bytes]) -> list[str]:
    """The known history of a commit, starting with itself."""
    found: dict[str, None] = {start: None} if start in commits else {}
    waiting = [*found]
    for name in waiting:
        for parent in _parents(commits[name]):
            if parent in commits and parent not in found:
                found[parent] = None
                waiting.append(parent)
    return [*found]


def _parents(commit: bytes) -> list[str]:
    """As git reads them: right after the tree, and nowhere else. For a tag: the object that it names."""
    found = _PARENTS.match(commit)
    return re.findall("[0-9a-f]{40,}", (found[1] or found[2] or b"").decode()) if found else []
