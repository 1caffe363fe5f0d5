"""What a chat, wherever it is, asks of the application around it."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from talaria.core.clock import Clock
from talaria.core.entries import TurnOrigin
from talaria.core.ids import OwnerId, SessionId
from talaria.runtime.auxiliary import Auxiliary
from talaria.runtime.commands import Commands
from talaria.runtime.session import LiveSession
from talaria.runtime.session_config import SessionConfig, TurnOptions
from talaria.store.base import Session, Store
from talaria.tools.person import Person
from talaria.tools.sandbox_permissions import Permission
from talaria.tools.workspaces import SandboxState

if TYPE_CHECKING:
    from talaria.platforms.base import Arrival

Purpose = Literal["title", "summary", "judge"]


class CommandHost(Protocol):
    @property
    def store(self) -> Store: ...
    @property
    def owner(self) -> OwnerId: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def commands(self) -> Commands: ...
    @property
    def home(self) -> Path: ...
    @property
    def model(self) -> str:
        """`provider:model` that answers."""
        ...

    def sandbox_level(self) -> str:
        """In which commands run, for people; empty: no tool has any. Blocks."""
        ...

    def sandbox_state(self, session: SessionId, project: Path) -> SandboxState | None:
        """Of a conversation in a folder; None: no tool has any sandbox. Blocks."""
        ...

    async def close_again(self, permission: Permission) -> tuple[str, ...]:
        """What was opened by a permission that is taken back, in every conversation here. What keeps it for now, as
        sentences."""
        ...

    def setup(
        self,
        *,
        cwd: Path,
        origin: TurnOrigin,
        platform: str = "cli",
        conversation: str = "",
        person: str = "local",
        instructions: str = "",
    ) -> SessionConfig: ...

    def terms(self, max_rounds: int | None = None) -> TurnOptions: ...

    def live(
        self,
        id: SessionId,
        row: Session | None,
        setup: SessionConfig,
        person: Person | None,
        terms: TurnOptions,
        *,
        is_asking: bool = True,
        leaves_mail: bool = True,
    ) -> LiveSession: ...

    async def filter_arrival(self, arrival: "Arrival") -> "Arrival | None":
        """A message as plugins want it to be dispatched; None: it is dropped. Never raises."""
        ...

    def auxiliary(self, purpose: Purpose) -> Auxiliary: ...
