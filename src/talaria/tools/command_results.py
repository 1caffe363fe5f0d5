"""What is shown of a command: its last lines while it runs, and afterwards what the sandbox blocked.

Hosts are known exactly, and at the strict level ports and sockets, too; paths only as far as the output of the program
says.
"""

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from talaria.tools.base import LiveOutput
from talaria.tools.output import CapturedOutput
from talaria.tools.sandbox.running_command import ExitStatus, OutputSink
from talaria.tools.sandbox_permissions import explain_closed_socket

if TYPE_CHECKING:
    from talaria.tools.workspace import Workspace


PAUSE_S = 0.125
"""Between two looks: a command that prints without end costs no more than one that prints a line."""
LIVE_TAIL_BYTES = 4_000


class _NotifyingSink:
    """Passes on what a command prints, and notes that something came. Also a command's `OutputSink`."""

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
    """The sink for a command whose output ends up in `output`. Nothing is shown after the end of the block."""
    if live is None:
        yield sink
        return
    heard = _NotifyingSink(sink)
    showing = asyncio.create_task(_show(heard.has_output, output, live), name="live output")
    try:
        yield heard
    finally:
        showing.cancel()


async def _show(news: asyncio.Event, output: CapturedOutput, live: LiveOutput) -> None:
    while True:
        await news.wait()
        news.clear()
        if tail := _tail(output):
            live.show(tail)
        await live.clock.sleep(PAUSE_S)


def _tail(output: CapturedOutput) -> str:
    """The last lines, the first of them whole if there is more than one."""
    start = max(0, output.size_bytes - LIVE_TAIL_BYTES)
    text = output.since(start).decode("utf-8", "replace")
    return text.partition("\n")[2] or text if start else text


MAX_LINE_CHARS = 500
"""Of the output of a command: what programs say of an error is shorter."""
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
"""Of a session, where nothing can be mounted: nobody can open it."""
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
"""What programs say that connect without the proxy."""
_NAME_LOOKUP = re.compile("name resolution|name or service not known", re.IGNORECASE)
"""Of a host that they do not name."""
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
    "no socket of this machine is reached at the landlock level; ask to run the command outside the sandbox with "
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
"""What programs say there, and what it means."""


def describe_blocked(workspace: "Workspace", output: str, end: ExitStatus | None) -> str:
    """What follows the output of a command; empty: nothing was in its way, as far as can be told."""
    code, tried = (end.code, end.unreachable) if end is not None else (None, None)
    lines = [f"{host} was blocked: {_explain_refusal(reason)}" for host, reason in workspace.egress.take_refused()]
    unreachable = workspace.egress.take_unreachable()
    lines += [
        f"{host} is allowed, so the sandbox is not in the way: {reason}" for host, reason in unreachable if code != 0
    ]
    if code != 0 and workspace.is_confined:
        known = [*_find_blocked(tried or (), workspace)]
        lines += known
        probably = _find_probably_blocked(output[-SCANNED_CHARS:], workspace, has_notes=tried is not None)
        lines += probably[: max(0, MAX_SENTENCES - len(known))]
    return "".join(f"\n[sandbox: {line}]" for line in lines)


def _find_blocked(tried: Sequence[str], workspace: "Workspace") -> Iterator[str]:
    """By what the command tried to connect to, and is not in the sandbox."""
    told: dict[str, str] = {}
    for one in tried:
        kind, _, what = one.partition(" ")
        if kind == "port":
            told[one] = (
                f"port {what} of this machine was blocked, and nothing in the sandbox listens on its own port {what}; "
                f'if a service of the person listens there, ask for it with needs: ["port {what}"]'
            )
        elif kind == "socket" and _is_socket_outside(Path(what), workspace):
            closed = explain_closed_socket(Path(what).resolve())
            how = closed if closed is not None else f'ask for it with needs: ["socket {what}"]'
            told[one] = f"the socket {what} was blocked; {how}"
        elif kind == "host":
            told[what] = f"{what} was blocked: {_ONLY_BY_PROXY}"
    workspace.consent.blocked.extend(told)
    yield from [*told.values()][:MAX_SENTENCES]


def _is_socket_outside(path: Path, workspace: "Workspace") -> bool:
    """What is not there either is not the sandbox's doing, and whatever is private is nobody's business. Libraries
    look for some by themselves."""
    if any(str(path).startswith(place) for place in _ASKED_BY_LIBRARIES) or workspace.is_secret(path):
        return False
    try:
        return path.is_socket() and not workspace.is_secret(path.resolve())
    except (OSError, RuntimeError):
        return False


def _find_folder_to_open(folder: Path, workspace: "Workspace") -> str:
    """As it can be asked for: one that is missing ends with a slash, and is made. Empty: nobody can open it."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    nearest = missing[-1] if missing else folder
    if len(nearest.parts) < 3 or not workspace.can_be_opened(nearest):
        return ""
    return f"{nearest}/" if missing else str(nearest)


def _explain_refusal(reason: str) -> str:
    """A yes to a host is not one to an address in a private network: names can be made to lead there."""
    if "is not on the public internet" not in reason:
        return reason
    host = reason.partition(" ")[0]
    return (
        f"its address is private. The person can list {host} in web.allow_private of config.yaml, if that is intended"
    )


def _follow_inside(path: Path, roots: Sequence[Path]) -> Path:
    """Where it leads by links that commands can read. Where links outside lead is nothing that they may learn."""
    for _ in range(MAX_LINKS):
        inside = (one for one in (*reversed(path.parents), path) if any(one.is_relative_to(root) for root in roots))
        link = next((one for one in inside if one.is_symlink()), None)
        if link is None:
            break
        path = Path(os.path.normpath(link.parent / link.readlink() / path.relative_to(link)))
    return path


def _find_probably_blocked(output: str, workspace: "Workspace", *, has_notes: bool) -> list[str]:
    """The kernel does not tell which file it was, so this is what the program has said. `has_notes`: what it tried to
    connect to is known otherwise."""
    at_landlock = workspace.level in ("landlock", "seatbelt")
    told = [sentence for sign, sentence in _AT_LANDLOCK if workspace.level == "landlock" and sign.search(output)]
    if workspace.level == "strict" and _BUSY.search(output):
        told.append(_GUARDED_IN_PLACE)
    lines = [line for line in output.splitlines() if len(line) <= MAX_LINE_CHARS]
    paths: dict[str, str] = {}
    for line in lines:
        if not _READ_ONLY.search(line) and not (at_landlock and _DENIED.search(line)):
            continue
        named = _QUOTED.findall(line) or _LAST.findall(line) or _PLAIN.findall(line)
        if named and named[-1].isprintable():
            given = Path(workspace.cwd, re.sub("^~(?=/)", str(Path.home()), named[-1]))
            path = _follow_inside(Path(os.path.normpath(given)), workspace.roots)
            if not any(path.is_relative_to(root) for root in workspace.roots):
                wanted = path if _MAKES_FOLDER.search(line) else path.parent
                paths[str(path)] = "" if _OWN_HOME.match(str(path)) else _find_folder_to_open(wanted, workspace)
    refused = [] if has_notes else [*filter(None, map(_REFUSED.search, lines))]
    ports = {port for found in refused for port in found.groups() if port is not None}
    sockets = {} if has_notes else dict.fromkeys(_find_sockets(lines, workspace))
    by_itself = [*filter(None, map(_BY_ITSELF.search, lines))] if workspace.level == "strict" else []
    hosts = dict.fromkeys(host for found in by_itself for host in found.groups() if host)
    is_name_lookup = any(_NAME_LOOKUP.search(found.group()) for found in by_itself)
    if hosts or is_name_lookup or (by_itself and not has_notes):
        told.append(f"{' and '.join(hosts) or 'a host'} was probably blocked: {_ONLY_BY_PROXY}")
    asked_for = (*(f"port {port}" for port in sorted(ports)), *(f"socket {path}" for path in sockets), *hosts)
    workspace.consent.probably_blocked.extend((*paths, *asked_for))
    by_folder: dict[str, list[str]] = {}
    for path, folder in paths.items():
        by_folder.setdefault(folder, []).append(path)
    scratch = "/tmp" if workspace.level == "strict" else "$TMPDIR"  # noqa: S108
    told += [
        f"writing {' and '.join(inside)} was probably blocked; write in the project or {scratch} instead"
        + (f', or ask for the folder with needs: ["write {folder}"]' if folder else "")
        for folder, inside in by_folder.items()
    ]
    told += [
        f"port {port} of this machine was probably blocked; {_NO_SERVICES}"
        if workspace.level == "landlock"
        else f"port {port} of this machine was probably blocked; if a service of the person listens there, ask for it "
        f'with needs: ["port {port}"]'
        for port in sorted(ports)
    ]
    told += [
        f"the socket {path} was probably blocked; {_NO_SOCKET}"
        if workspace.level == "landlock"
        else f'the socket {path} was probably blocked; ask for it with needs: ["socket {path}"]'
        for path in sockets
    ]
    return told[:MAX_SENTENCES]


def _find_sockets(lines: Sequence[str], workspace: "Workspace") -> Iterator[str]:
    """Those of this machine that programs have named in vain. In the project and in their own /tmp they make some
    themselves."""
    for line in lines:
        found = _SOCKET.search(line)
        named = next(filter(None, found.groups()), "") if found and _NOT_THERE.search(line) else ""
        path = os.path.normpath(named).rstrip(".") if named.isprintable() and named else ""
        own = (*map(str, workspace.roots), "/tmp", "/dev/shm")  # noqa: S108
        if path and not any(f"{path}/".startswith(f"{place}/") for place in own):
            yield path
