"""The gate: the one place where a call is let through or not."""

import hashlib
from typing import Literal, Protocol

import msgspec

from talaria.core.errors import Denied
from talaria.core.messages import ToolCall
from talaria.tools.base import Claim, Invocation, Scope
from talaria.tools.sandbox_permissions import PermissionKind


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
            raise Denied("The sandbox is opened by a person alone, and nobody is here to ask.", by="nobody")

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
