"""Opens the sandbox as far as the person says: by what a call asks for before it runs, what was allowed earlier, and
what a running command wants, while it waits for the answer."""

import asyncio
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from talaria.model.errors import BadArguments, Denied, ToolFailed
from talaria.model.ids import CallId
from talaria.model.messages import ToolCall
from talaria.tools.base import EXCLUSIVE, Claim, Effect, Run
from talaria.tools.permissions import SANDBOX, Permission, network
from talaria.tools.person import Proposal
from talaria.tools.sandbox.commands import Started
from talaria.trees import Root
from talaria.waiting import in_thread

if TYPE_CHECKING:
    from talaria.tools.workspace import Workspace

MAX_REASON_CHARS = 300
LOOKED_THROUGH_CHARS = 20_000
MAX_TOLD = 3
_READ_ONLY = re.compile(r"^.*(?:read-only file system|EROFS).*$", re.IGNORECASE | re.MULTILINE)
_DENIED = re.compile(r"^.*permission denied.*$", re.IGNORECASE | re.MULTILINE)
_BUSY = re.compile(r"device or resource busy|EBUSY", re.IGNORECASE)
_HELD = (
    "settings and hooks of git repositories are held in place, because git obeys them: what they are in can be neither "
    'removed nor moved here; that can be asked for with needs: ["unsandboxed"]'
)
_MAKES_FOLDER = re.compile(r"mkdir|create (?:leading )?director")
_MARKS = "'\"\u2018\u2019\u201c\u201d`"
_QUOTED = re.compile(f"[{_MARKS}]([^{_MARKS}]*/[^{_MARKS}]*)[{_MARKS}]")
_PLAIN = re.compile(rf"(?<![^\s:=(])((?:/|\.\.?/|~/)[^\s:{_MARKS}]+)")
_LAST = re.compile(r": ((?:(?! /)[^:])+): (?:permission denied|read-only file system)", re.IGNORECASE)
_OWN_HOME = re.compile(r".*/talaria-[0-9a-f]{16}/home(?:/|$)")
"""Of a session, where nothing can be mounted: nobody can open it."""
_REFUSED = re.compile(
    r"^.*(?:127\.0\.0\.1|localhost|\[?::1\]?)\D{0,20}?(?::|port )(\d{2,5})\b.*refused|"
    r"^.*refused.*(?:127\.0\.0\.1|localhost|::1)\]?:(\d{2,5})\b|"
    r"^.*ECONNREFUSED.*:(\d{2,5})\b|"
    r"^.*(?:127\.0\.0\.1|localhost) port (\d{2,5})\b",
    re.IGNORECASE | re.MULTILINE,
)


_NO_SEMAPHORES = (
    "semaphores and shared memory (multiprocessing uses them) are not there at the landlock level, because they cannot "
    "be kept apart from those of other programs; they are with bubblewrap. Threads work"
)
_NO_NETWORK = "there is no network at the landlock level, and none can be allowed; there is with bubblewrap"
_AT_LANDLOCK = (
    (re.compile(r"SemLock|sem_open|shm_open|/dev/shm"), _NO_SEMAPHORES),
    (
        re.compile(
            r"Errno 1\] Operation not permitted|Could not resolve|name resolution|socket: Operation not|EAI_AGAIN|"
            r"\b(?:connect|listen) EPERM\b|socket: operation not permitted"
        ),
        _NO_NETWORK,
    ),
)
"""What programs say there, and what it means."""


class _Opening(msgspec.Struct, frozen=True):
    """As if the model had asked to open the sandbox."""

    claim: Claim
    question: Proposal
    effect: Effect = EXCLUSIVE

    async def run(self, run: Run) -> str:  # noqa: ARG002
        return ""


async def ask_to_open(
    run: Run,
    permission: Permission,
    content: str,
    place: str,
    reason: str = "",
    *,
    noun: str = "command",
    may_ask: bool = True,
) -> None:
    """Whether commands may do this from now on, for as long as the person says. `content`: the command, or whatever
    else is shown; `reason`: the model's. Raises `Denied`."""
    if run.tools is None:
        raise Denied(f"Commands cannot {permission.effect}: nobody is here to allow it.", by="nobody")
    call = ToolCall(
        CallId(f"{run.call}-{permission.key}"), SANDBOX, msgspec.json.encode({"permission": permission.key}).decode()
    )
    claim = Claim(
        hosts=permission.what if permission.kind == "network" else (),
        writes=(Path(permission.what[0]),) if permission.kind == "write" else (),
        place=place,
        is_untrusted=permission.kind == "network",
        permission=permission,
    )
    question = Proposal(permission.question, content, noun, told_reason(reason))
    await run.tools.consent(call, _Opening(claim, question), may_ask=may_ask)


def told_reason(reason: str) -> str:
    """Second to what would happen: whoever decides knows that these are the model's words."""
    words = " ".join(reason.split())
    return f"the model says: {words[:MAX_REASON_CHARS]}" if words else ""


class RunningConsent:
    """Decides for the commands of a session that run now. Which of them wants something is not known, so the person is
    asked about the one that began last."""

    def __init__(self) -> None:
        self._running: dict[CallId, Asking] = {}

    @contextmanager
    def attend(self, run: Run, command: str, place: str, *, may_ask: bool = True) -> Generator["Asking"]:
        """While a command runs. Not `may_ask`: in the background, where only what was granted before counts."""
        asking = Asking(run, command, place, may_ask=may_ask)
        self._running[run.call] = asking
        try:
            yield asking
        finally:
            self._running.pop(run.call, None)

    async def allow_host(self, host: str) -> None:
        """Raises `Denied`."""
        try:
            permission = network(host)
        except BadArguments as fault:
            raise Denied(str(fault)) from fault
        running = [*self._running.values()]
        newest = next((one for one in reversed(running) if one.may_ask), running[-1] if running else None)
        if newest is None:
            raise Denied(f"Commands do not reach {host} from here: no command runs that somebody could be asked about.")
        await newest.allow(permission)


class Asking:
    """One command. An answer holds as long as it runs, so programs that try again and again do not ask again."""

    def __init__(self, run: Run, command: str, place: str, *, may_ask: bool) -> None:
        self.may_ask = may_ask
        self.started: Started | None = None
        self._run = run
        self._command = command
        self._place = place
        self._locks: dict[str, asyncio.Lock] = {}
        self._answers: dict[str, Denied | None] = {}

    async def open(self, workspace: "Workspace", needs: Sequence[Permission], reason: str = "") -> None:
        """Before the command begins: all that it needs, and what the person has opened for longer. Raises `Denied`,
        `ToolFailed`."""
        for permission in needs:
            await self.allow(permission, reason)
            if permission.is_missing:
                await in_thread(partial(_make_folder, Path(permission.what[0])))
        tools = self._run.tools
        writes, ports = [
            [
                *((await tools.granted(kind)) if tools is not None else ()),
                *(permission.what for permission in needs if permission.kind == kind),
            ]
            for kind in ("write", "port")
        ]
        await workspace.share(_there(writes))
        numbers = (*workspace.settings.ports, *(int(port) for (port,) in ports))
        await workspace.open_ports([*dict.fromkeys(numbers)])
        if any(permission.kind == "publish" for permission in needs) and self._run.scope.asker != "local":
            raise ToolFailed("A server can be shown only to the person at this machine, not in a chat.")

    def take_over(self, asked: "Asking") -> None:
        """What was answered before the command began."""
        self._answers.update(asked._answers)  # noqa: SLF001  (of the same class)

    async def allow(self, permission: Permission, reason: str = "") -> None:
        key = permission.key
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key not in self._answers:
                try:
                    with self.started.pause_limit() if self.started is not None else nullcontext():
                        await ask_to_open(
                            self._run, permission, self._command, self._place, reason, may_ask=self.may_ask
                        )
                    self._answers[key] = None
                except Denied as refusal:
                    self._answers[key] = refusal
        refusal = self._answers[key]
        if refusal is not None:
            raise Denied(str(refusal), by=refusal.by, why=refusal.why)


def _make_folder(path: Path) -> None:
    """Without following a link that was put on the way meanwhile. Raises `ToolFailed`."""
    try:
        with Root.open(path.anchor) as root, root.folder(str(path.parent.relative_to(path.anchor))) as around:
            around.make_folder(path.name).close()
    except OSError as fault:
        raise ToolFailed(f"{path} cannot be made: {fault.strerror}.") from fault


def _there(granted: Sequence[tuple[str, ...]]) -> list[Path]:
    """What was granted and has gone, or is a link by now, does not count."""
    places = dict.fromkeys(Path(path) for (path,) in granted)
    return [place for place in places if place.exists() and place.resolve() == place]


def told_blocked(workspace: "Workspace", output: str, code: int | None) -> str:
    """What follows the output of a command; empty: nothing was in its way, as far as can be told."""
    lines = [f"{host} was blocked: {reason}" for host, reason in workspace.way_out.take_refused()]
    if code != 0 and workspace.is_confined:
        lines += _probably_blocked(output[-LOOKED_THROUGH_CHARS:], workspace)
    return "".join(f"\n[sandbox: {line}]" for line in lines)


def _openable(folder: Path, workspace: "Workspace") -> str:
    """As it can be asked for: one that is missing ends with a slash, and is made. Empty: nobody can open it."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    nearest = missing[-1] if missing else folder
    if len(nearest.parts) < 3 or not workspace.can_be_opened(nearest):
        return ""
    return f"{nearest}/" if missing else str(nearest)


def _probably_blocked(output: str, workspace: "Workspace") -> list[str]:
    """The kernel does not tell which file it was, so this is what the program has said."""
    at_landlock = workspace.level in ("landlock", "seatbelt")
    told = [sentence for sign, sentence in _AT_LANDLOCK if workspace.level == "landlock" and sign.search(output)]
    if workspace.level == "strict" and _BUSY.search(output):
        told.append(_HELD)
    found = [*_READ_ONLY.findall(output), *(_DENIED.findall(output) if at_landlock else ())]
    paths: dict[str, str] = {}
    for line in found:
        named = _QUOTED.findall(line) or _LAST.findall(line) or _PLAIN.findall(line)
        path = Path(workspace.cwd, Path(named[-1]).expanduser()) if named else None
        if path is not None and not any(path.resolve().is_relative_to(root) for root in workspace.roots):
            real = path.resolve()
            paths[str(real)] = (
                ""
                if _OWN_HOME.match(str(real))
                else _openable(real if _MAKES_FOLDER.search(line) else real.parent, workspace)
            )
    scratch = "/tmp" if workspace.level == "strict" else "$TMPDIR"  # noqa: S108
    told += [
        f"writing {path} was probably blocked; "
        + (f'it can be asked for with needs: ["write {folder}"], or ' if folder else "it can be ")
        + f"written in the project or {scratch}"
        for path, folder in paths.items()
    ]
    ports = {port for found in _REFUSED.finditer(output) for port in found.groups() if port is not None}
    told += [
        f"port {port} of this machine was probably blocked; if a service of the person is meant, it can be asked for "
        f'with needs: ["port {port}"]'
        for port in sorted(ports)
    ]
    return told[:MAX_TOLD]
