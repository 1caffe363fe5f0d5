"""Asks the person to open the sandbox, and about changes that commands made to guarded files.

What a command declares that it needs is asked before it runs; what it tries to reach, while it waits for the answer;
changes to files that other programs obey, after it has ended."""

import asyncio
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from talaria.core.aio import complete, in_thread
from talaria.core.errors import BadArguments, Denied, ToolFailed
from talaria.core.ids import CallId
from talaria.core.messages import FileChange, ToolCall
from talaria.core.redaction import Redactor
from talaria.core.trees import Root, read_file
from talaria.tools.base import EXCLUSIVE, Claim, Effect, Run
from talaria.tools.diffs import compare_contents
from talaria.tools.person import Proposal
from talaria.tools.policy_files import MAX_POLICY_FILE_BYTES, HeldChange
from talaria.tools.sandbox.running_command import RunningCommand
from talaria.tools.sandbox_permissions import SANDBOX, Permission, PermissionKind, is_covered, network_permission
from talaria.tools.shell_words import find_risk

if TYPE_CHECKING:
    from talaria.tools.workspace import Workspace


MAX_REASON_CHARS = 300
MAX_BLOCKED = 20
OTHERS_RUN = "other commands are running, and one of them may be asking for this"


class _ConsentInvocation(msgspec.Struct, frozen=True):
    """Something that the person is asked about as if the model had called it."""

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
    note: str = "",
    may_ask: bool = True,
) -> None:
    """Ask whether commands may do this from now on, for as long as the person says. `content`: the command, or whatever
    is shown instead; `reason`: the model's; `note`: ours. Raises `Denied`."""
    if run.tools is None:
        raise Denied(f"Commands cannot {permission.effect}: nobody is here to allow it.", by="nobody")
    call = ToolCall(
        CallId(f"{run.call}-{permission.key}"), SANDBOX, msgspec.json.encode({"permission": permission.key}).decode()
    )
    claim = Claim(
        hosts=permission.what if permission.kind == "network" else (),
        writes=(Path(permission.what[0]),) if permission.kind == "write" else (),
        workdir=place,
        is_untrusted=permission.reads_untrusted,
        permission=permission,
    )
    question = Proposal(permission.question, content, noun, note, model_reason=shorten_reason(reason))
    await run.tools.consent(call, _ConsentInvocation(claim, question), may_ask=may_ask)


def shorten_reason(reason: str) -> str:
    """To one short line, shown after what would happen."""
    words = " ".join(reason.split())
    return words if len(words) <= MAX_REASON_CHARS else f"{words[:MAX_REASON_CHARS]}…"


class SessionConsent:
    """Decides for the running commands of a session. It is not known which of them wants something, so the person is
    asked about the one that started last."""

    def __init__(self) -> None:
        self._running: list[CommandConsent] = []
        self.blocked: deque[str] = deque(maxlen=MAX_BLOCKED)
        """Ports, sockets and addresses that commands recently failed to reach; for people."""
        self.probably_blocked: deque[str] = deque(maxlen=MAX_BLOCKED)
        """The same, and paths, guessed from what programs printed."""

    @contextmanager
    def register(self, run: Run, command: str, place: str, *, may_ask: bool = True) -> Generator["CommandConsent"]:
        """For as long as a command runs. Not `may_ask`: in the background, where only earlier grants count."""
        consent = CommandConsent(run, command, place, may_ask=may_ask)
        self._running.append(consent)
        try:
            yield consent
        finally:
            self._running.remove(consent)
            consent.close()

    def list_allowed(self, kind: PermissionKind) -> list[tuple[str, ...]]:
        """What running commands were allowed, each until it ends."""
        return [one.what for consent in self._running for one in consent.allowed if one.kind == kind]

    async def allow_host(self, host: str) -> None:
        """Raises `Denied`."""
        try:
            permission = network_permission(host)
        except BadArguments as fault:
            raise Denied(str(fault)) from fault
        await self.allow(permission)

    async def allow(self, permission: Permission, content: str | None = None, noun: str = "command") -> None:
        """`content`: what is shown instead of the command. Raises `Denied`."""
        newest = self._newest
        if newest is None:
            raise Denied(
                f"Commands cannot {permission.effect}: no command is running that a person could be asked about."
            )
        await newest.allow(permission, content=content, noun=noun, is_alone=len(self._running) == 1)

    async def check_listing(self, address: str) -> None:
        """The refs of a remote may be listed without a question if a push could be allowed. Raises `Denied`."""
        if self._newest is None or not await self._newest.may_list(address):
            raise Denied(f"Commands cannot push to {address} with a login: nobody is here to allow it.", by="nobody")

    @property
    def _newest(self) -> "CommandConsent | None":
        may_ask = (one for one in reversed(self._running) if one.may_ask)
        return next(may_ask, self._running[-1] if self._running else None)


class CommandConsent:
    """For one command. An answer holds while it runs, so programs that retry do not cause new questions."""

    def __init__(self, run: Run, command: str, place: str, *, may_ask: bool) -> None:
        self.may_ask = may_ask
        self.started: RunningCommand | None = None
        self.allowed: tuple[Permission, ...] = ()
        """What it needs and no grant covers."""
        self._run = run
        self._command = command
        self._place = place
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}
        self._answers: dict[tuple[str, str], Denied | None] = {}
        self._questions: set[asyncio.Task[None]] = set()
        self._waiting = 0
        """Callers that do not have an answer yet."""
        self._nobody_waits = asyncio.Event()
        self._has_ended = False

    def close(self) -> None:
        """The command has ended, so nobody waits for an answer any more."""
        self._has_ended = True
        for question in self._questions:
            question.cancel()

    async def end(self) -> None:
        """Like `close`, and waits until all of the command's unanswered requests were refused."""
        self.close()
        if self._waiting:
            await complete(self._nobody_waits.wait())

    async def open_sandbox(self, workspace: "Workspace", needs: Sequence[Permission], reason: str = "") -> None:
        """Before the command starts: open what it needs, and what the person has opened for longer. Raises `Denied`,
        `ToolFailed`."""
        if any(permission.kind == "publish" for permission in needs) and self._run.scope.asker != "local":
            raise ToolFailed("A server can be shown only to the person at this machine, not in a chat.")
        for permission in needs:
            await self.allow(permission, reason)
            if permission.is_missing:
                await in_thread(partial(_make_folder, Path(permission.what[0])))
        self.allowed = tuple([permission for permission in needs if not await self._is_granted(permission)])
        async with workspace.opening:
            await self._open_allowed(workspace)

    async def close_sandbox(self, workspace: "Workspace") -> None:
        """After the command has ended: close what only it was allowed, if something else is running that could use it.
        Otherwise, and if that cannot be done, the next command closes it."""
        if self.allowed and workspace.has_running:
            with suppress(ToolFailed):
                async with workspace.opening:
                    await self._open_allowed(workspace)

    async def _open_allowed(self, workspace: "Workspace") -> None:
        tools = self._run.tools
        writes, ports, sockets, published = [
            [*((await tools.list_grants(kind)) if tools is not None else ()), *workspace.consent.list_allowed(kind)]
            for kind in ("write", "port", "socket", "publish")
        ]
        if workspace.level != "strict":  # a yes from a time at the strict level must not keep commands from running
            ports, sockets = [workspace.consent.list_allowed(kind) for kind in ("port", "socket")]
        await workspace.share(await in_thread(lambda: _existing_places(writes)))
        numbers = (*workspace.settings.ports, *(int(port) for (port,) in ports))
        await workspace.open_ports(
            [*dict.fromkeys(numbers)],
            await in_thread(lambda: [place for place in _existing_places(sockets) if place.is_socket()]),
            [int(port) for (port,) in published],
        )

    def copy_answers(self, asked: "CommandConsent") -> None:
        """Take over what was answered before the command started."""
        self._answers.update(asked._answers)  # noqa: SLF001  (of the same class)
        self.allowed = asked.allowed

    async def may_list(self, address: str) -> bool:
        """Whether somebody could be asked, or has allowed fetching from there or pushing."""
        person, tools = self._run.scope.person, self._run.tools
        if self.may_ask and person is not None and person.may_approve():
            return True
        given = (*await tools.list_grants("fetch"), *await tools.list_grants("push")) if tools is not None else ()
        return any(words[0] == address for words in given)

    async def is_by_grant(self, leaving: Permission, place: str) -> bool:
        """Whether a lasting yes covers a command outside the sandbox, rather than a yes to its exact words."""
        if not await self._is_granted(leaving):
            return False
        return not await in_thread(lambda: find_risk(leaving.what, place, self._run.scope.cwd))

    async def _is_granted(self, permission: Permission) -> bool:
        """For longer than this command, until it is revoked."""
        tools = self._run.tools
        return tools is not None and is_covered(permission, await tools.list_grants(permission.kind))

    async def allow(
        self,
        permission: Permission,
        reason: str = "",
        *,
        content: str | None = None,
        noun: str = "command",
        is_alone: bool = True,
    ) -> None:
        """Not `is_alone`: other commands run, and one of them may want this. Raises `Denied`."""
        key = permission.key, sha256((content or "").encode("utf-8", "replace")).hexdigest()  # contents may be large
        self._waiting += 1
        self._nobody_waits.clear()
        try:
            async with self._locks.setdefault(key, asyncio.Lock()):
                if key not in self._answers:
                    try:
                        with self.started.pause_limit() if self.started is not None else nullcontext():
                            note = "" if is_alone else OTHERS_RUN
                            await self._ask(permission, reason, content, noun, note)
                        if await self._is_granted(permission):
                            return  # not kept as an answer: it can be revoked while the command runs
                        self._answers[key] = None
                    except Denied as refusal:
                        self._answers[key] = refusal
                refusal = self._answers[key]
            if refusal is not None:
                raise Denied(str(refusal), by=refusal.by, why=refusal.why)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._nobody_waits.set()

    async def _ask(self, permission: Permission, reason: str, content: str | None, noun: str, note: str) -> None:
        if self._has_ended:
            raise Denied(_too_late(permission))
        shown = self._command if content is None else content
        asking = ask_to_open(
            self._run, permission, shown, self._place, reason, noun=noun, note=note, may_ask=self.may_ask
        )
        question = asyncio.ensure_future(asking)
        self._questions.add(question)
        try:
            await asyncio.wait([question])
            if question.cancelled():
                raise Denied(_too_late(permission))
            question.result()
        finally:
            question.cancel()
            self._questions.discard(question)


def _too_late(permission: Permission) -> str:
    if permission.kind != "network":
        return "The command that wanted this has ended."
    need = f'needs: ["network {permission.what[0]}"]'
    return f"The command ended before anybody answered; to have the person asked before it starts, pass {need}."


def _make_folder(path: Path) -> None:
    """Does not follow a link that has been put on the way in the meantime. Raises `ToolFailed`."""
    try:
        with Root.open(path.anchor) as root, root.folder(str(path.parent.relative_to(path.anchor))) as around:
            around.make_folder(path.name).close()
    except OSError as fault:
        raise ToolFailed(f"{path} cannot be created: {fault.strerror}.") from fault


def _existing_places(granted: Sequence[tuple[str, ...]]) -> list[Path]:
    """Places that no longer exist, or are links by now, do not count."""
    places = dict.fromkeys(Path(path) for (path,) in granted)
    return [place for place in places if place.exists() and place.resolve() == place]


MAX_FILES = 100


async def ask_about_held(workspace: "Workspace", run: Run) -> str:
    """What the model reads after the output of a command; empty: nothing was held."""
    guard = workspace.guard
    held, warnings = guard.take_held(), [*guard.take_warnings()]
    for address in guard.take_addresses():  # that commands have put into git's settings
        try:
            permission = Permission("git-url", (address.effect,))
            await ask_to_open(run, permission, address.text, workspace.cwd, noun="settings")
        except Denied as refusal:
            warnings.append(f"git: not done: {address.effect}. {refusal}")
            continue
        warnings += await guard.save_address(address)
    moved = [one for one in held if one.to is not None]
    if run.tools is None or not moved:
        return _format_notices((*warnings, *map(str, held)))
    try:
        redactor = run.scope.redactor
        changes = await in_thread(lambda: tuple(change for one in moved for change in _describe_held(one, redactor)))
        lines: list[str] = []
        for change in changes:  # whole, and indented so that no line can pass for ours
            head = f"{change.path} ({change.note})" if change.note else change.path
            lines += [head.replace("\n", "\\n"), *(f"  {line}" for line in change.diff.split("\n") if change.diff)]
        shown = "\n".join(lines)
        paths = tuple(run.scope.cwd / one.name for one in moved)
        question = Proposal(
            "Commands have changed files that other programs obey. Keep these changes?",
            shown,
            "changes",
            changes=changes,
        )
        arguments = {
            "paths": [*map(str, paths)],
            "sha256": sha256(shown.encode("utf-8", "replace")).hexdigest(),
        }
        call = ToolCall(CallId(f"{run.call}-held"), "write_file", msgspec.json.encode(arguments).decode())
        doubt = "it makes git or a login shell run something" if any(one.needs_consent for one in moved) else ""
        await run.tools.consent(call, _ConsentInvocation(Claim(writes=paths), question), doubt)
    except (Denied, ToolFailed) as refusal:
        return _format_notices((*warnings, *map(str, held), str(refusal)))
    kept = [await guard.release(one) for one in moved]
    return _format_notices((*warnings, *kept, *(str(one) for one in held if one.to is None)))


def _format_notices(sentences: Sequence[str]) -> str:
    return "".join(f"\n[{sentence}]" for sentence in sentences)


def _describe_held(held: HeldChange, redactor: Redactor) -> Iterator[FileChange]:
    """The whole change. Raises `ToolFailed` if it cannot be shown."""
    assert held.to is not None  # noqa: S101  (what could not be moved is not asked about)
    before = held.before
    if before is not None and before.content is not None and held.to.is_file():
        modes = (before.mode & 0o777, held.to.stat().st_mode & 0o777)
        yield _compare_held(held.name, before.content, _read_content(held.to), redactor, modes)
        return
    places = [held.to]
    if held.to.is_dir() and not held.to.is_symlink():
        with Root.open(held.to) as root:
            names = [f"{folder}/{one.name}".lstrip("/") for folder, one in root.descend() if not one.is_folder]
        if len(names) > MAX_FILES:
            raise ToolFailed(f"{len(names):,} new files are too many to show to a person, so nobody was asked.")
        places = [held.to / name for name in sorted(names)]
    for place in places:
        name = held.name if place == held.to else f"{held.name}/{place.relative_to(held.to)}"
        if place.is_symlink():
            yield FileChange(name, "created", note=f"a link to {place.readlink()}")
        elif place.is_file():
            content = _read_content(place)
            change = _compare_held(name, None, content, redactor)
            mode = "executable, " if place.stat().st_mode & 0o111 else ""
            notes = f"{mode}{len(content):,} bytes", change.note
            yield msgspec.structs.replace(change, note="; ".join(filter(None, notes)))
        else:
            yield FileChange(name, "created", note="neither a file nor a folder")


def _compare_held(
    name: str,
    before: bytes | None,
    content: bytes,
    redactor: Redactor,
    modes: tuple[int | None, int | None] = (None, None),
) -> FileChange:
    """Identifies what is not text by its digest."""
    change = compare_contents(name, before, content, redactor, modes=modes, is_whole=True)
    if b"\0" not in content + (before or b""):
        return change
    return msgspec.structs.replace(change, note=f"{change.note}; SHA-256 {sha256(content).hexdigest()}")


def _read_content(place: Path) -> bytes:
    if place.stat().st_size > MAX_POLICY_FILE_BYTES:
        raise ToolFailed(f"{place} is too large to show to a person, so nobody was asked.")
    return read_file(place, MAX_POLICY_FILE_BYTES)
