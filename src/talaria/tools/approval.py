"""The gate: the one place where a call is let through or not."""

import hashlib
from typing import Protocol

from talaria.model.errors import Denied
from talaria.model.messages import ToolCall
from talaria.tools.base import Claim, Invocation, Scope


class Gate(Protocol):
    """The folder of a `scope` is resolved here."""

    async def admit(self, call: ToolCall, invocation: Invocation, scope: Scope) -> None:
        """Raises `Denied`. May wait for a person."""
        ...

    async def insist(self, call: ToolCall, invocation: Invocation, scope: Scope, doubt: str) -> None:
        """Somebody has a doubt: only a person's yes lets it through. Raises `Denied`, also where nobody is there."""
        ...

    def heed(self, claim: Claim, scope: Scope) -> None:
        """What such a call brings is now before the model in this turn."""
        ...


class OpenGate:
    """Lets everything through. For programs that bring their own tools, and know them."""

    async def admit(self, call: ToolCall, invocation: Invocation, scope: Scope) -> None:  # noqa: ARG002
        return None

    async def insist(self, call: ToolCall, invocation: Invocation, scope: Scope, doubt: str) -> None:  # noqa: ARG002
        raise Denied(f"This {call.name} call needs a person's consent, and nobody is here to give it: {doubt}")

    def heed(self, claim: Claim, scope: Scope) -> None:  # noqa: ARG002
        return None


def digest(call: ToolCall, invocation: Invocation, scope: Scope) -> str:
    """Of exactly what would run: an approval is worth nothing for anything else."""
    claim = invocation.claim
    touched = map(str, (*claim.reads, *claim.writes))
    parts = (call.name, call.arguments, str(scope.cwd), claim.place, str(claim.is_confined), *touched)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()
