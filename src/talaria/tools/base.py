"""The port of tools, and of the gate that lets their calls through.

A tool says what it is, checks its arguments, and declares what a call would touch before it runs.
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
"""What recovery may do with a call that had started: run it again, run it again under the same key, never again."""
Language = Literal["shell", "python"]


class Effect(msgspec.Struct, frozen=True):
    """What a call touches, so that calls which do not clash can run at the same time."""

    kind: Literal["reads", "writes", "independent", "exclusive"]
    paths: tuple[Path, ...] = ()
    """Of `writes` and `reads`; none means anywhere."""

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
    """What a call would do to the world, told before it runs: on this the gate decides. Paths are resolved."""

    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    hosts: tuple[str, ...] = ()
    """It would reach."""
    command: str | None = None
    """Of a shell, or a script."""
    language: Language = "shell"
    """Of the command."""
    workdir: str = ""
    """The folder in which it would run."""
    is_confined: bool = True
    """False: it runs code on this machine outside of any sandbox."""
    sends: bool = False
    """It tells somebody outside something, or acts there."""
    reveals: bool = False
    """Its arguments reach somebody outside, even if it only reads there."""
    is_untrusted: bool = False
    """What it brings back was written by strangers."""
    is_private: bool = False
    """What it brings back is the person's, from outside the project."""
    permission: Permission | None = None
    """It would open the sandbox by this much."""
    runs_beside_others: bool = False
    """Commands run in the project meanwhile, and could change what it uses."""
    folder: Path | None = None
    """Of a tool that reads: the folder that is read, or the one that holds the file."""

    @property
    def can_exfiltrate(self) -> bool:
        """Whether what the model knows could leave with it."""
        return self.sends or self.reveals or bool(self.hosts)


NOTHING = Claim()
PRIVATE = Claim(is_private=True)
UNKNOWN = Claim(reveals=True)
"""Of a tool that does not say what it does: it may tell others what it is given."""


class Scope(msgspec.Struct, frozen=True):
    """Where the calls of one session run."""

    session: SessionId
    cwd: Path
    spill: Path
    """Folder for output too long for the model: `spill/SESSION` of a home."""
    turn: str = ""
    """Which turn the calls belong to; empty: not known."""
    person: Person | None = None
    """Who can be asked; None: nobody is there."""
    redactor: Redactor = msgspec.field(default_factory=Redactor)
    """Takes secrets out of what is kept of output."""
    asker: str = "local"
    """Who asks, which may be another one in each turn; `local`: the person at the machine."""
    spill_limits: SpillLimits = SpillLimits()
    named_paths: tuple[Path, ...] = ()
    """Files and folders outside the project that the person named in this conversation."""
    has_private_data: bool = False
    """In an earlier turn of this conversation something was read outside the project."""

    def resolve(self, path: str) -> Path:
        """Raises `BadArguments` for what cannot be a path here."""
        try:
            return (self.cwd / Path(path).expanduser()).resolve()
        except (OSError, ValueError, RuntimeError) as fault:  # a loop of links, a NUL, the home of nobody
            raise BadArguments(f"{path!r} is not a usable path: {fault}.") from fault


class ToolCaller(Protocol):
    """How a tool calls others: as the model would, through the gate."""

    async def call(self, call: ToolCall) -> ToolResult: ...
    async def consent(self, call: ToolCall, invocation: "Invocation", doubt: str = "", *, may_ask: bool = True) -> None:
        """Lets something pass the gate that is no call of the model's, but should be asked about as one. With a
        `doubt` only a person's yes lets it through. Not `may_ask`: only what was granted before passes. Raises
        `Denied`."""
        ...

    async def list_grants(self, kind: PermissionKind) -> tuple[tuple[str, ...], ...]:
        """What the person has opened in the sandbox, for as long as they said: the words of each permission."""
        ...


class LiveOutput(msgspec.Struct, frozen=True):
    """Where the last lines of a running command are shown."""

    show: Callable[[str], None]
    clock: Clock


class Run(msgspec.Struct, frozen=True):
    """One execution of a call. `key` is the same again when recovery repeats it."""

    call: CallId
    scope: Scope
    tools: ToolCaller | None = None
    live: LiveOutput | None = None
    """Where to show what a command prints while it runs; None: nobody looks."""
    expected_fingerprint: str | None = None
    """Fingerprint of the file that a person was shown before they agreed to its change; None: nobody was asked."""

    @property
    def key(self) -> str:
        return f"{self.scope.session}:{self.call}"

    def spill_file(self, what: str) -> Path:
        """Where to keep all of `what`."""
        return self.scope.spill / f"{safe_file_name(self.call)}-{what}.txt"


def decode_arguments(arguments: str, tool: str, kind: type[T]) -> T:
    """As the model has given them to this tool. Raises `BadArguments`."""
    try:
        return msgspec.json.decode(arguments.strip() or "{}", type=kind)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as fault:
        raise BadArguments(f"The arguments of {tool} are invalid: {fault}.") from fault


class RichResult(msgspec.Struct, frozen=True):
    """A result that is more than a text."""

    text: str
    images: tuple[Image, ...] = ()
    is_private: bool = False
    """It turned out to be the person's, from outside the project."""
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
        """What a person is asked before it runs, where somebody is there to ask; None: nothing to ask.

        What the model gave belongs into the `content` of a `Proposal`, and whole. Not on the loop: it may look at the
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
    """The folder of a `scope` is resolved here."""

    async def admit(self, call: ToolCall, invocation: Invocation, scope: Scope) -> None:
        """Raises `Denied`. May wait for a person."""
        ...

    async def insist(self, call: ToolCall, invocation: Invocation, scope: Scope, doubt: str) -> None:
        """Somebody has a doubt: only a person's yes lets it through. Raises `Denied`, also where nobody is there."""
        ...

    def track(self, claim: Claim, scope: Scope) -> None:
        """What such a call brings is now before the model in this turn."""
        ...

    async def list_grants(self, kind: PermissionKind, scope: Scope) -> tuple[tuple[str, ...], ...]:
        """As `Calls.granted`."""
        ...

    def has_private_data(self, scope: Scope) -> bool:
        """Whether the model has been shown what the person keeps outside the project."""
        ...


ApprovalOutcome = Literal["once", "session", "always", "deny", "timeout"]
"""What became of a question: how long the yes holds, a no, or no answer in time."""


class ApprovalRequest(msgspec.Struct, frozen=True):
    """What a person is asked about."""

    call: ToolCall
    command: str
    """The command of a shell, or else what the person is shown."""
    reason: str
    """Why it is asked."""
    turn: str


class ApprovalObserver(Protocol):
    """Hears of questions to a person. It changes nothing about them, and never raises."""

    async def on_request(self, what: ApprovalRequest) -> None:
        """Before the person is."""
        ...

    async def on_answer(self, what: ApprovalRequest, choice: ApprovalOutcome) -> None:
        """The answer is on the disk. Not called for a question that nobody waits for any more."""
        ...


class OpenGate:
    """Lets everything through, and opens no sandbox. For programs that bring their own tools, and know them."""

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
    """Of exactly what would run, and what a person was shown: an approval is worth nothing for anything else."""
    claim = invocation.claim
    touched = map(str, (*claim.reads, *claim.writes))
    parts = (call.name, call.arguments, str(scope.cwd), claim.workdir, str(claim.is_confined), *touched, shown)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()
