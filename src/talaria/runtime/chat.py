"""A person's chat and the conversation in use there, at the terminal and elsewhere: what slash commands act on."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from talaria.core.clock import Clock
from talaria.core.entries import MessageAdded, TurnOrigin
from talaria.core.errors import BadInput
from talaria.core.ids import OwnerId, SessionId
from talaria.runtime.auxiliary import Auxiliary
from talaria.runtime.builtin_commands import format_recap
from talaria.runtime.commands import Commands, Surface, help_text
from talaria.runtime.lease import Observer
from talaria.runtime.process import ProcessLinks
from talaria.runtime.session import LiveSession
from talaria.runtime.session_config import SessionConfig, TurnOptions
from talaria.runtime.transcript import read_latest_turns
from talaria.store.base import Session, Store
from talaria.tools.person import Person
from talaria.tools.sandbox_permissions import Permission
from talaria.tools.workspaces import SandboxState

if TYPE_CHECKING:
    from talaria.context.engine import HostedEngine
    from talaria.platforms.base import Arrival

Purpose = Literal["title", "summary", "judge"]


class CommandHost(Protocol):
    """The application around a chat, wherever that is. It lives above this layer."""

    @property
    def store(self) -> Store: ...
    @property
    def owner(self) -> OwnerId: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def links(self) -> ProcessLinks: ...
    @property
    def commands(self) -> Commands: ...
    @property
    def home(self) -> Path: ...
    @property
    def model(self) -> str:
        """`provider:model` that answers."""
        ...

    def sandbox_level(self) -> str:
        """The sandbox in which commands run, for people; empty: no tool runs any. Blocks."""
        ...

    def sandbox_state(self, session: SessionId, project: Path) -> SandboxState | None:
        """For a conversation in a folder; None: no tool runs commands. Blocks."""
        ...

    async def close_again(self, permission: Permission) -> tuple[str, ...]:
        """Close what a revoked permission opened, in every conversation here. Returns sentences about what stays open
        for now."""
        ...

    def session_config(
        self,
        *,
        cwd: Path,
        origin: TurnOrigin,
        platform: str = "cli",
        conversation: str = "",
        person: str = "local",
        instructions: str = "",
    ) -> SessionConfig: ...

    def turn_options(self, max_rounds: int | None = None) -> TurnOptions: ...

    def live_session(
        self,
        id: SessionId,
        row: Session | None,
        config: SessionConfig,
        *,
        person: Person | None = None,
        options: TurnOptions | None = None,
        is_asking: bool = True,
        leaves_mail: bool = True,
    ) -> LiveSession: ...

    async def filter_arrival(self, arrival: "Arrival") -> "Arrival | None":
        """The message as plugins want it handled; None: they drop it. Never raises."""
        ...

    def auxiliary(self, purpose: Purpose) -> Auxiliary: ...


Reason = Literal["new", "resume", "branch"]


class Chat(ABC):
    """Each surface decides how it switches to another conversation, and what is shown of a turn.

    Any method may raise a `TalariaError`, which the surface tells as one sentence.
    """

    surface: Surface

    def __init__(self, host: CommandHost, person: str | None = None) -> None:
        self.host = host
        self.person = person
        """They see only their own conversations; None: all."""

    @property
    @abstractmethod
    def live(self) -> LiveSession:
        """The conversation in use."""

    @abstractmethod
    async def switch_to(self, row: Session | None, reason: Reason) -> None:
        """The only way to another conversation. What was allowed in this one is asked again there."""

    @abstractmethod
    def observer(self) -> Observer:
        """Watches what a command causes."""

    @abstractmethod
    async def attach(self, path: str) -> str:
        """An image goes with the person's next message; says so."""

    @abstractmethod
    async def hand_off(self, platform: str) -> None:
        """Returns when the conversation continues there."""

    @property
    def session(self) -> SessionId:
        """The id of the conversation in use, which is on the disk only once something was said."""
        return self.live.id

    @property
    def model(self) -> str:
        """`provider:model`."""
        return self.host.model

    async def use_model(self, name: str) -> None:
        """From the next turn on, this model answers here."""
        raise BadInput(f"Which model answers in chats is a setting: talaria model set {name}")

    async def engine(self) -> "HostedEngine | None":
        """The context engine of the conversation in use, if a plugin's engine is chosen. Raises `PluginError`."""
        self.live.check_idle()
        services = self.live.services
        with self.live.as_current():
            return None if services.keeper is None else await services.keeper.engine(services.place)

    def help(self) -> str:
        return help_text(self.host.commands, self.surface)

    async def sessions(self, limit: int) -> Sequence[Session]:
        """Those that this person may resume, latest first."""
        return await self.host.store.sessions.list(limit, self.person)

    async def recap(self) -> str:
        """Which conversation this is and its last messages, for a person who comes back to it."""
        row = await self.read_row()
        latest = await read_latest_turns(self.host.store.journal, self.session)
        return format_recap(row, [one.entry.message for one in latest if isinstance(one.entry, MessageAdded)])

    async def read_row(self) -> Session:
        row = await self.host.store.sessions.get(self.session)
        if row is None:
            raise BadInput("Say something first: a conversation without a message is not saved.")
        return row
