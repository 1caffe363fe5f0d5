"""The gate: the one place where a call is let through or not."""

from typing import Protocol

from talaria.model.errors import Denied
from talaria.model.messages import ToolCall
from talaria.tools.base import Invocation


class Gate(Protocol):
    async def admit(self, call: ToolCall, invocation: Invocation) -> None:
        """Raises `Denied`. May wait for a person."""
        ...

    async def insist(self, call: ToolCall, invocation: Invocation, doubt: str) -> None:
        """Somebody has a doubt: only a person's yes lets it through. Raises `Denied`, also where nobody is there."""
        ...


class OpenGate:
    """Lets everything through."""

    async def admit(self, call: ToolCall, invocation: Invocation) -> None:  # noqa: ARG002
        return None

    async def insist(self, call: ToolCall, invocation: Invocation, doubt: str) -> None:  # noqa: ARG002
        raise Denied(f"This {call.name} call needs a person's consent, and nobody is here to give it: {doubt}")
