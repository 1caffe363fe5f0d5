"""What is shown about a command: its last lines while it runs, and afterwards what the sandbox blocked.

Blocked hosts are known exactly, and at the strict level also ports and sockets; blocked paths only as far as the
program's output names them.
"""

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from talaria.tools.base import LiveOutput
from talaria.tools.output import CapturedOutput
from talaria.tools.sandbox.running_command import ExitStatus, OutputSink
from talaria.tools.sandbox_permissions import explain_closed_socket

if TYPE_CHECKING:
    from talaria.tools.workspace import Workspace


PAUSE_S = 0.125
"""Between two updates: a command that prints endlessly costs no more than one that prints a line."""
LIVE_TAIL_BYTES = 4_000


class _NotifyingSink:
    """An `OutputSink` that passes output on and notes that something came."""

    def __init__(self, sink: OutputSink) -> None:
        self._sink = sink
        self.has_output = asyncio.Event()

    def add(self, chunk: bytes) -> None:
        self._sink.add(chunk)
        self.has_output.set()

    def skip(self, size_bytes: int) -> None:
        self._sink.skip(size_bytes)
        self.has_output.set()


@asynccontextmanager
async def show_live(sink: OutputSink, output: CapturedOutput, live: LiveOutput | None) -> AsyncGenerator[OutputSink]:
    """The sink for a command whose output ends up in `output`. Nothing is shown after the block."""
    if live is None:
        yield sink
        return
    notifying = _NotifyingSink(sink)

    async def show() -> None:
        while True:
            await notifying.has_output.wait()
            notifying.has_output.clear()
            start = max(0, output.size_bytes - LIVE_TAIL_BYTES)
            text = output.since(start).decode("utf-8", "replace")
            if tail := (text.partition("\n")[2] or text if start else text):  # from the beginning of a line
                live.show(tail)
            await live.clock.sleep(PAUSE_S)

    showing = asyncio.create_task(show(), name="live output")
    try:
        yield notifying
    finally:
        showing.cancel()


MAX_LINE_CHARS = 500
"""Longer lines are not searched: error messages are shorter."""
SCANNED_CHARS = 20_000
MAX_SENTENCES = 3
MAX_LINKS = 10
_READ_ONLY = re.compile(r"read-only file system|EROFS", re.IGNORECASE)
_DENIED = re.compile(r"permission denied", re.IGNORECASE)
_BUSY = re.compile(r"device or resource busy|EBUSY", re.IGNORECASE)
_GUARDED_IN_PLACE = (
    "git obeys the settings and hooks of repositories, so they are protected: folders that contain them cannot be "
    'removed or moved here; ask for that with needs: ["unsandboxed"]'
)
_MAKES_FOLDER = re.compile(r"mkdir|create (?:leading )?director")
_MARKS = "'\"\u2018\u2019\u201c\u201d`"
_QUOTED = re.compile(f"[{_MARKS}]([^{_MARKS}]*/[^{_MARKS}]*)[{_MARKS}]")
_PLAIN = re.compile(rf"(?<![^\s:=(])((?:/|\.\.?/|~/)[^\s:{_MARKS}]+)")
_LAST = re.compile(r": ((?:(?! /)[^:])+): (?:permission denied|read-only file system)", re.IGNORECASE)
_OWN_HOME = re.compile(r".*/talaria-[0-9a-f]{16}/home(?:/|$)")
"""A session's own home, where nothing can be mounted, so it cannot be opened."""
_REFUSED = re.compile(
    r"(?:127\.0\.0\.1|localhost|\[?::1\]?)\D{0,20}?(?::|port )(\d{2,5})\b.*refused|"
    r"refused.*(?:127\.0\.0\.1|localhost|::1)\]?:(\d{2,5})\b|"
    r"ECONNREFUSED.*:(\d{2,5})\b|"
    r"(?:127\.0\.0\.1|localhost) port (\d{2,5})\b",
    re.IGNORECASE,
)


_BY_ITSELF = re.compile(
    r"(?:could not resolve host(?:name)?:?|could not translate host name|unable to look up|resolve host address|"
    rf"EAI_AGAIN|ENOTFOUND|UnknownHostException:) [{_MARKS}]?([\w-][\w.-]*\w)|\blookup ([\w-]+(?:\.[\w-]+)+)|"
    r"name resolution|name or service not known|network is unreachable|ENETUNREACH",
    re.IGNORECASE,
)
"""Messages of programs that connect without the proxy."""
_NAME_LOOKUP = re.compile("name resolution|name or service not known", re.IGNORECASE)
"""Messages that do not name the host."""
_PATH = f"/[^\\s:,;(){_MARKS}]+"
_SOCKET = re.compile(
    rf"\bsocket\s+[{_MARKS}]?({_PATH})|\bunix(?:://|:|\s+)({_PATH})|(?<![^\s:=({_MARKS}])({_PATH}\.sock(?:et)?)\b"
)
_ASKED_BY_LIBRARIES = ("/run/nscd/", "/var/run/nscd/", "/run/systemd/", "/var/run/systemd/", "/dev/")
_NOT_THERE = re.compile(
    r"no such file|cannot connect|can't connect|could not connect|failed|refused|not permitted|ENOENT|EPERM",
    re.IGNORECASE,
)

_NO_SEMAPHORES = (
    "semaphores and shared memory, which multiprocessing uses, are not available at the landlock level: they cannot "
    "be separated from those of other programs. With bubblewrap they are available. Threads work"
)
_NO_NETWORK = "there is no network at the landlock level, and none can be allowed; with bubblewrap there is"
_NO_SIGNING = (
    "commits cannot be signed at the landlock level; they can with bubblewrap, or outside the sandbox with needs: "
    '["unsandboxed"]'
)
_NO_SERVICES = "services cannot be reached at the landlock level; with bubblewrap the person can allow it"
_NO_SOCKET = (
    "no socket of this machine can be reached at the landlock level; ask to run the command outside the sandbox with "
    'needs: ["unsandboxed"]'
)
_ONLY_BY_PROXY = (
    "only programs that use the proxy of HTTP_PROXY and HTTPS_PROXY reach hosts, and this one connects by itself; ask "
    'to run the command outside the sandbox with needs: ["unsandboxed"]'
)
_AT_LANDLOCK = (
    (re.compile(r"SemLock|sem_open|shm_open|/dev/shm"), _NO_SEMAPHORES),
    (re.compile(r"failed to sign|gpg: signing failed|Load key \""), _NO_SIGNING),
    (
        re.compile(
            r"Errno 1\] Operation not permitted|Could not resolve|name resolution|socket: Operation not|EAI_AGAIN|"
            r"\b(?:connect|listen) EPERM\b|socket: operation not permitted|"
            r"unable to access 'http|ssh: connect to host"
        ),
        _NO_NETWORK,
    ),
)
"""Messages of programs at the landlock level, and what they mean."""


def describe_blocked(workspace: "Workspace", output: str, end: ExitStatus | None) -> str:
    """What is added to the output of a command; empty: as far as we can tell, the sandbox blocked nothing."""
    code, tried = (end.code, end.unreachable) if end is not None else (None, None)
    lines: list[str] = []
    for host, reason in workspace.egress.take_refused():
        if "is not on the public internet" in reason:  # a yes to a host does not cover a private address behind it
            name = reason.partition(" ")[0]
            reason = (  # noqa: PLW2901
                f"its address is private. The person can list {name} in web.allow_private of config.yaml, if that is "
                "intended"
            )
        lines.append(f"{host} was blocked: {reason}")
    unreachable = workspace.egress.take_unreachable()
    lines += [
        f"{host} is allowed, so the sandbox is not in the way: {reason}" for host, reason in unreachable if code != 0
    ]
    if code != 0 and workspace.is_confined:
        known = _find_blocked(tried or (), workspace)
        lines += known
        probably = _find_probably_blocked(output[-SCANNED_CHARS:], workspace, has_notes=tried is not None)
        lines += probably[: max(0, MAX_SENTENCES - len(known))]
    return "".join(f"\n[sandbox: {line}]" for line in lines)


def _find_blocked(tried: Sequence[str], workspace: "Workspace") -> list[str]:
    """From what the command tried to connect to outside the sandbox."""
    blocked: dict[str, str] = {}
    for one in tried:
        kind, _, what = one.partition(" ")
        if kind == "port":
            blocked[one] = (
                f"port {what} of this machine was blocked, and nothing in the sandbox listens on its own port {what}; "
                f'if a service of the person listens there, ask for it with needs: ["port {what}"]'
            )
        elif kind == "socket":
            path = Path(what)
            if str(path).startswith(_ASKED_BY_LIBRARIES) or workspace.is_secret(path):
                continue
            with suppress(OSError, RuntimeError):
                if path.is_socket() and not workspace.is_secret(path.resolve()):  # otherwise it is missing outside, too
                    closed = explain_closed_socket(path.resolve())
                    how = closed if closed is not None else f'ask for it with needs: ["socket {what}"]'
                    blocked[one] = f"the socket {what} was blocked; {how}"
        elif kind == "host":
            blocked[what] = f"{what} was blocked: {_ONLY_BY_PROXY}"
    workspace.consent.blocked.extend(blocked)
    return [*blocked.values()][:MAX_SENTENCES]


def _find_unwritable(lines: Sequence[str], workspace: "Workspace") -> dict[str, str]:
    """Paths that programs failed to write, each with the folder to open, as `needs` takes it: a missing folder ends
    with a slash and would be created. Empty: it cannot be opened."""
    has_no_mounts = workspace.level in ("landlock", "seatbelt")
    paths: dict[str, str] = {}
    for line in lines:
        if not _READ_ONLY.search(line) and not (has_no_mounts and _DENIED.search(line)):
            continue
        named = _QUOTED.findall(line) or _LAST.findall(line) or _PLAIN.findall(line)
        if not named or not named[-1].isprintable():
            continue
        given = Path(workspace.cwd, re.sub("^~(?=/)", str(Path.home()), named[-1]))
        path = _follow_inside(Path(os.path.normpath(given)), workspace.roots)
        if any(path.is_relative_to(root) for root in workspace.roots):
            continue
        folder = path if _MAKES_FOLDER.search(line) else path.parent
        missing = [one for one in (folder, *folder.parents) if not one.exists()]
        nearest = missing[-1] if missing else folder
        is_closed = _OWN_HOME.match(str(path)) or len(nearest.parts) < 3 or not workspace.can_be_opened(nearest)
        paths[str(path)] = "" if is_closed else f"{nearest}/" if missing else str(nearest)
    return paths


def _follow_inside(path: Path, roots: Sequence[Path]) -> Path:
    """Follows links that commands can read. They must not learn where links outside lead."""
    for _ in range(MAX_LINKS):
        inside = (one for one in (*reversed(path.parents), path) if any(one.is_relative_to(root) for root in roots))
        link = next((one for one in inside if one.is_symlink()), None)
        if link is None:
            break
        path = Path(os.path.normpath(link.parent / link.readlink() / path.relative_to(link)))
    return path


def _find_probably_blocked(output: str, workspace: "Workspace", *, has_notes: bool) -> list[str]:
    """The kernel does not report which file it was, so this is read from the program's output. `has_notes`: its
    connection attempts are known already."""
    found = [sentence for message, sentence in _AT_LANDLOCK if workspace.level == "landlock" and message.search(output)]
    if workspace.level == "strict" and _BUSY.search(output):
        found.append(_GUARDED_IN_PLACE)
    lines = [line for line in output.splitlines() if len(line) <= MAX_LINE_CHARS]
    paths = _find_unwritable(lines, workspace)
    refused = [] if has_notes else [*filter(None, map(_REFUSED.search, lines))]
    ports = {port for match in refused for port in match.groups() if port is not None}
    sockets: dict[str, None] = {}
    own = (*map(str, workspace.roots), "/tmp", "/dev/shm")  # noqa: S108  (programs make sockets there themselves)
    for line in () if has_notes else lines:
        match = _SOCKET.search(line)
        named = next(filter(None, match.groups()), "") if match and _NOT_THERE.search(line) else ""
        path = os.path.normpath(named).rstrip(".") if named.isprintable() and named else ""
        if path and not any(f"{path}/".startswith(f"{place}/") for place in own):
            sockets[path] = None
    by_itself = [*filter(None, map(_BY_ITSELF.search, lines))] if workspace.level == "strict" else []
    hosts = dict.fromkeys(host for match in by_itself for host in match.groups() if host)
    is_name_lookup = any(_NAME_LOOKUP.search(match.group()) for match in by_itself)
    if hosts or is_name_lookup or (by_itself and not has_notes):
        found.append(f"{' and '.join(hosts) or 'a host'} was probably blocked: {_ONLY_BY_PROXY}")
    asked_for = (*(f"port {port}" for port in sorted(ports)), *(f"socket {path}" for path in sockets), *hosts)
    workspace.consent.probably_blocked.extend((*paths, *asked_for))
    by_folder: dict[str, list[str]] = {}
    for path, folder in paths.items():
        by_folder.setdefault(folder, []).append(path)
    scratch = "/tmp" if workspace.level == "strict" else "$TMPDIR"  # noqa: S108
    found += [
        f"writing {' and '.join(inside)} was probably blocked; write in the project or {scratch} instead"
        + (f', or ask for the folder with needs: ["write {folder}"]' if folder else "")
        for folder, inside in by_folder.items()
    ]
    found += [
        f"port {port} of this machine was probably blocked; {_NO_SERVICES}"
        if workspace.level == "landlock"
        else f"port {port} of this machine was probably blocked; if a service of the person listens there, ask for it "
        f'with needs: ["port {port}"]'
        for port in sorted(ports)
    ]
    found += [
        f"the socket {path} was probably blocked; {_NO_SOCKET}"
        if workspace.level == "landlock"
        else f'the socket {path} was probably blocked; ask for it with needs: ["socket {path}"]'
        for path in sockets
    ]
    return found[:MAX_SENTENCES]
