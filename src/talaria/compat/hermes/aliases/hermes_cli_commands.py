"""`hermes_cli.commands`: the slash commands there are, under its names and categories."""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from talaria.compat.hermes.bound import require_bound
from talaria.runtime.commands import Category, Command, Surface, normalise

_CATEGORIES: dict[Category, str] = {
    "conversation": "Session",
    "model": "Configuration",
    "plugins": "Tools & Skills",
    "info": "Info",
    "leave": "Exit",
}


@dataclass(frozen=True)
class CommandDef:
    name: str
    description: str
    category: str
    aliases: tuple[str, ...] = ()
    args_hint: str = ""
    subcommands: tuple[str, ...] = ()
    cli_only: bool = False
    gateway_only: bool = False
    gateway_config_gate: str | None = None


def is_gateway_known_command(name: str | None) -> bool:
    """Whether chats know it by this word; a beginning of it is not enough."""
    return _find_command(name, "platform") is not None


def resolve_command(name: str | None) -> CommandDef | None:
    return _find_command(name, "terminal") or _find_command(name, "platform")


def _find_command(name: str | None, surface: Surface) -> CommandDef | None:
    found = require_bound().commands.find(name or "", surface)
    return _to_command_def(found) if isinstance(found, Command) and normalise(name or "") in found.words else None


def _to_command_def(command: Command) -> CommandDef:
    return CommandDef(
        command.name,
        command.description,
        _CATEGORIES[command.category],
        command.aliases,
        command.args_hint,
        cli_only=command.cli_only,
        gateway_only=command.gateway_only,
    )


class CommandRegistry(Sequence[CommandDef]):
    """All of them, as they are when it is read."""

    def __getitem__(self, index: Any) -> Any:
        now: Any = self._now()
        return now[index]

    def __len__(self) -> int:
        return len(self._now())

    def _now(self) -> list[CommandDef]:
        commands = require_bound().commands
        found = dict.fromkeys((*commands.visible("terminal"), *commands.visible("platform")))
        return [_to_command_def(command) for command in found]


class KnownCommands(AbstractSet[str]):
    """All words that chats know, as they are when it is read."""

    def __contains__(self, word: object) -> bool:
        return word in self._now()

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def _now(self) -> frozenset[str]:
        return frozenset(word for command in require_bound().commands.visible("platform") for word in command.words)


COMMAND_REGISTRY = CommandRegistry()
GATEWAY_KNOWN_COMMANDS = KnownCommands()
