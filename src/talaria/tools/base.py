"""The ports of tools and of the gate that admits their calls.

A tool describes itself, checks its arguments, and declares what a call would touch before it runs.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol, TypeVar, runtime_checkable

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import BadArguments, Denied
from talaria.core.fs import safe_file_name
from talaria.core.ids import CallId, SessionId
from talaria.core.messages import FileChange, Image, Outcome, ToolCall, ToolResult, ToolSpec
from talaria.core.redaction import Redactor
from talaria.tools.output import SpillLimits
from talaria.tools.person import Person, Proposal
from talaria.tools.sandbox_permissions import Permission, PermissionKind

T = TypeVar("T")
AfterCrash = Literal["repeat", "keyed", "once"]
"""What recovery may do with a call that had started: run it again, run it again with the same key, or never run it
again."""
Language = Literal["shell", "python"]


class Effect(msgspec.Struct, frozen=True):
    """What a call touches, so that calls that do not clash can run at the same time."""

    kind: Literal["reads", "writes", "independent", "exclusive"]
    paths: tuple[Path, ...] = ()
    """For `writes` and `reads`; empty means anywhere."""

    def clashes(self, other: "Effect") -> bool:
        kinds = {self.kind, other.kind}
        if "exclusive" in kinds:
            return True
        if "writes" not in kinds or "independent" in kinds:
            return False
        if not self.paths or not other.paths:
            return True
        return any(a == b or a in b.parents or b in a.parents for a in self.paths for b in other.paths)


READS = Effect("reads")
INDEPENDENT = Effect("independent")
EXCLUSIVE = Effect("exclusive")


class Claim(msgspec.Struct, frozen=True):
    """What a call would do to the world, declared before it runs: the gate decides on this. Paths are resolved."""

    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    hosts: tuple[str, ...] = ()
    """Hosts that it would reach."""
    command: str | None = None
    """A shell command, or a script."""
    language: Language = "shell"
    """Of the command."""
    workdir: str = ""
    """The folder in which it would run."""
    is_confined: bool = True
    """False: it runs code on this machine outside any sandbox."""
    sends: bool = False
    """It sends something to somebody outside, or acts there."""
    reveals: bool = False
    """Its arguments reach somebody outside, even if it only reads there."""
    is_untrusted: bool = False
    """Its result was written by strangers."""
    is_private: bool = False
    """Its result is the person's own, from outside the project."""
    permission: Permission | None = None
    """What it would open in the sandbox."""
    runs_beside_others: bool = False
    """Commands run in the project at the same time and could change what it uses."""
    folder: Path | None = None
    """For a tool that reads: the folder that is read, or the one that holds the file."""

    @property
    def can_exfiltrate(self) -> bool:
        """Whether what the model knows could leave through it."""
        return self.sends or self.reveals or bool(self.hosts)


NOTHING = Claim()
PRIVATE = Claim(is_private=True)
UNKNOWN = Claim(reveals=True)
"""For a tool that does not say what it does: it may pass its arguments on to others."""


class Scope(msgspec.Struct, frozen=True):
    """Where the calls of one session run."""

    session: SessionId
    cwd: Path
    spill: Path
    """Folder for output that is too long for the model: `spill/SESSION` of a home."""
    turn: str = ""
    """Which turn the calls belong to; empty: not known."""
    person: Person | None = None
    """Who can be asked; None: nobody."""
    redactor: Redactor = msgspec.field(default_factory=Redactor)
    """Removes secrets from the output that is kept."""
    asker: str = "local"
    """Who is asking, possibly somebody else in each turn; `local`: the person at the machine."""
    spill_limits: SpillLimits = SpillLimits()
    named_paths: tuple[Path, ...] = ()
    """Files and folders outside the project that the person named in this conversation."""
    has_private_data: bool = False
    """An earlier turn of this conversation read something outside the project."""

    def resolve(self, path: str) -> Path:
        """Raises `BadArguments` for what cannot be a path here."""
        try:
            return (self.cwd / Path(path).expanduser()).resolve()
        except (OSError, ValueError, RuntimeError) as fault:  # a loop of links, a NUL, the home of an unknown user
            raise BadArguments(f"{path!r} is not a usable path: {fault}.") from fault


class ToolCaller(Protocol):
    """How a tool calls others: as the model would, through the gate."""

    async def call(self, call: ToolCall) -> ToolResult: ...
    async def consent(self, call: ToolCall, invocation: "Invocation", doubt: str = "", *, may_ask: bool = True) -> None:
        """Passes something through the gate that the model did not call, but that is asked about like a call. With a
        `doubt`, only a person's yes admits it. Not `may_ask`: only earlier grants count. Raises `Denied`."""
        ...

    async def list_grants(self, kind: PermissionKind) -> tuple[tuple[str, ...], ...]:
        """What the person has opened in the sandbox, while it lasts: the words of each permission."""
        ...


class LiveOutput(msgspec.Struct, frozen=True):
    """Where the last lines of a running command are shown."""

    show: Callable[[str], None]
    clock: Clock


class Run(msgspec.Struct, frozen=True):
    """One execution of a call. `key` is the same when recovery repeats it."""

    call: CallId
    scope: Scope
    tools: ToolCaller | None = None
    live: LiveOutput | None = None
    """Where to show what a command prints while it runs; None: nowhere."""
    expected_fingerprint: str | None = None
    """Fingerprint of the file that a person saw before they agreed to its change; None: nobody was asked."""

    @property
    def key(self) -> str:
        return f"{self.scope.session}:{self.call}"

    def spill_file(self, what: str) -> Path:
        """Where to keep all of `what`."""
        return self.scope.spill / f"{safe_file_name(self.call)}-{what}.txt"


def decode_arguments(arguments: str, tool: str, kind: type[T]) -> T:
    """Decode what the model passed to a tool. Raises `BadArguments`."""
    try:
        return msgspec.json.decode(arguments.strip() or "{}", type=kind)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as fault:
        raise BadArguments(f"The arguments of {tool} are invalid: {fault}.") from fault


class RichResult(msgspec.Struct, frozen=True):
    """A result that is more than text."""

    text: str
    images: tuple[Image, ...] = ()
    is_private: bool = False
    """It turned out to be the person's own, from outside the project."""
    outcome: Outcome | None = None
    changes: tuple[FileChange, ...] = ()


class Invocation(Protocol):
    """A call whose arguments have been checked."""

    @property
    def effect(self) -> Effect: ...
    @property
    def claim(self) -> Claim: ...
    @property
    def question(self) -> str | Proposal | None:
        """What a person is asked before it runs, if anybody can be asked; None: no question of its own.

        Everything that the model gave belongs in the `content` of a `Proposal`. Not on the loop: it may look at the
        file system.
        """
        ...

    async def run(self, run: Run) -> str | RichResult:
        """Raises `ToolFailed` with a sentence for the model."""
        ...


@runtime_checkable
class Tool(Protocol):
    @property
    def spec(self) -> ToolSpec: ...
    @property
    def after_crash(self) -> AfterCrash: ...
    @property
    def timeout_s(self) -> float | None: ...
    def prepare(self, arguments: str, scope: Scope) -> Invocation:
        """Raises `BadArguments`."""
        ...


class Gate(Protocol):
    """The folder of each `scope` is resolved."""

    async def admit(self, call: ToolCall, invocation: Invocation, scope: Scope) -> None:
        """Raises `Denied`. May wait for a person."""
        ...

    async def insist(self, call: ToolCall, invocation: Invocation, scope: Scope, doubt: str) -> None:
        """There is a doubt: only a person's yes admits the call. Raises `Denied`, also if nobody can be asked."""
        ...

    def track(self, claim: Claim, scope: Scope) -> None:
        """Note that the model sees the result of such a call in this turn."""
        ...

    async def list_grants(self, kind: PermissionKind, scope: Scope) -> tuple[tuple[str, ...], ...]:
        """As `ToolCaller.list_grants`."""
        ...

    def has_private_data(self, scope: Scope) -> bool:
        """Whether the model has seen what the person keeps outside the project."""
        ...


ApprovalOutcome = Literal["once", "session", "always", "deny", "timeout"]
"""The result of a question: how long the yes holds, a no, or no answer in time."""


class ApprovalRequest(msgspec.Struct, frozen=True):
    """What a person is asked about."""

    call: ToolCall
    command: str
    """The shell command, or else what the person is shown."""
    reason: str
    """Why the person is asked."""
    turn: str


class ApprovalObserver(Protocol):
    """Is notified of questions to a person. It cannot change them, and never raises."""

    async def on_request(self, what: ApprovalRequest) -> None:
        """Called before the person is asked."""
        ...

    async def on_answer(self, what: ApprovalRequest, choice: ApprovalOutcome) -> None:
        """The answer is on disk. Not called for a question that nobody waits for any more."""
        ...


class OpenGate:
    """Admits everything, but never opens the sandbox. For programs that bring their own, known tools."""

    async def admit(self, call: ToolCall, invocation: Invocation, scope: Scope) -> None:  # noqa: ARG002
        if invocation.claim.permission is not None:
            raise Denied("Only a person can open the sandbox, and nobody can be asked.", by="nobody")

    async def insist(self, call: ToolCall, invocation: Invocation, scope: Scope, doubt: str) -> None:  # noqa: ARG002
        raise Denied(f"This {call.name} call needs a person's consent, and nobody is here to give it: {doubt}")

    def track(self, claim: Claim, scope: Scope) -> None:  # noqa: ARG002
        return None

    async def list_grants(self, kind: PermissionKind, scope: Scope) -> tuple[tuple[str, ...], ...]:  # noqa: ARG002
        return ()

    def has_private_data(self, scope: Scope) -> bool:  # noqa: ARG002
        return False


def digest(call: ToolCall, invocation: Invocation, scope: Scope, shown: str = "") -> str:
    """Of exactly what would run and what a person was shown: an approval does not hold for anything else."""
    claim = invocation.claim
    touched = map(str, (*claim.reads, *claim.writes))
    parts = (call.name, call.arguments, str(scope.cwd), claim.workdir, str(claim.is_confined), *touched, shown)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()
