"""The gate: the one place where a call is let through or not."""

from typing import Protocol

from talaria.model.messages import ToolCall
from talaria.tools.base import Invocation


class Gate(Protocol):
    async def admit(self, call: ToolCall, invocation: Invocation) -> None:
        """Raises `Denied`. May wait for a person."""
        ...


class OpenGate:
    """Lets everything through."""

    async def admit(self, call: ToolCall, invocation: Invocation) -> None:  # noqa: ARG002
        return None
