"""`hermes_cli.commands`: the slash commands there are."""

from collections.abc import Sequence
from typing import overload

from talaria.compat.hermes.bound import bound
from talaria.runtime.commands import Command as CommandDef
from talaria.runtime.commands import Surface, normalised

__all__ = ["COMMAND_REGISTRY", "CommandDef", "is_gateway_known_command", "resolve_command"]


def is_gateway_known_command(name: str | None) -> bool:
    """Whether chats know it by this word; a beginning of it is not enough."""
    return _named(name, "platform") is not None


def resolve_command(name: str | None) -> CommandDef | None:
    return _named(name, "terminal") or _named(name, "platform")


def _named(name: str | None, surface: Surface) -> CommandDef | None:
    found = bound().commands.find(name or "", surface)
    return found if isinstance(found, CommandDef) and normalised(name or "") in found.words else None


class CommandRegistry(Sequence[CommandDef]):
    """All of them, as they are when it is read."""

    @overload
    def __getitem__(self, index: int) -> CommandDef: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[CommandDef]: ...
    def __getitem__(self, index: int | slice) -> CommandDef | Sequence[CommandDef]:
        return self._now()[index]

    def __len__(self) -> int:
        return len(self._now())

    def _now(self) -> list[CommandDef]:
        commands = bound().commands
        return list(dict.fromkeys((*commands.visible("terminal"), *commands.visible("platform"))))


COMMAND_REGISTRY = CommandRegistry()
