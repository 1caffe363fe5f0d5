"""What one live session uses besides its turns: context keeper, hooks, tools, and its own resources (a shell,
background processes, a browser)."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from talaria.agent.hooks import Equipment, Hooks, LeaveReason, NoHooks, SessionContext
from talaria.context.base import ContextKeeper, ConversationInfo
from talaria.core.ids import SessionId, TurnId
from talaria.core.messages import Assistant, Message, ToolSpec
from talaria.core.redaction import Redactor
from talaria.providers.message_history import History
from talaria.runtime.session_config import Asker, SessionConfig, spill_folder
from talaria.runtime.transcript import Transcript
from talaria.tools.base import Gate, Scope
from talaria.tools.executor import Executor
from talaria.tools.person import Person
from talaria.tools.registry import Toolbox

if TYPE_CHECKING:
    from talaria.tools.undo.change_recorder import ChangeRecorder


class SessionResources(Protocol):
    """Shells, background processes and browsers, by session. What the methods here do is what happens without any."""

    @property
    def recorder(self) -> "ChangeRecorder | None":
        """Records changes to files so that they can be undone; None: nothing does."""
        return None

    def take_news(self, session: SessionId) -> Sequence[str]:  # noqa: ARG002
        """What has happened in the background since the last call."""
        return ()

    def has_shell(self, session: SessionId) -> bool:  # noqa: ARG002
        return False

    async def close(self, session: SessionId) -> None:  # noqa: ARG002
        """Stop everything that the session has started."""
        return


class NoResources(SessionResources):
    """The session's tools own nothing."""


SHELL_GONE = "[Your earlier shell and its background processes are gone; files are not.]"
SHELL_TOOLS = frozenset({"terminal", "process", "execute_code"})

_encode_specs = msgspec.json.Encoder().encode
_decode_specs = lru_cache(maxsize=16)(msgspec.json.Decoder(tuple[ToolSpec, ...]).decode)


class SessionServices:
    def __init__(
        self,
        session: SessionId,
        config: SessionConfig,
        toolbox: Toolbox,
        gate: Gate,
        *,
        keeper: ContextKeeper | None = None,
        hooks: Hooks | None = None,
        person: Person | None = None,
        resources: SessionResources | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        """`person` answers the gate's questions, unless a turn is somebody else's."""
        self.session = session
        self.config = config
        self.toolbox = toolbox
        """Includes the tools of hooks and context engine after `equip`."""
        self.keeper = keeper
        self.hooks = hooks or NoHooks()
        self.resources = resources or NoResources()
        self.redactor = redactor or Redactor()
        self._own = toolbox
        self._gate = gate
        self._person = person
        self._spill = spill_folder(config.home, session)
        self._has_checked_shell = False
        self._equipment: Equipment | None = None

    async def equip(self) -> None:
        """Ask hooks and context engine for their tools, once until the conversation is left."""
        if self._equipment is not None:
            return
        equipment = await self.hooks.equip(self.context())
        of_keeper = () if self.keeper is None else await self.keeper.open(self.place)
        added = (*equipment.tools, *of_keeper)
        self.toolbox = self._own.with_tools(added) if added else self._own
        self._equipment = equipment

    @property
    def asker(self) -> Asker:
        """The person of the session."""
        return Asker(self.config.person, self._person)

    def executor(self, transcript: Transcript, turn: str = "", asker: Asker | None = None) -> Executor:
        """For the tools as they are now. Without an `asker`, it runs for the person of the session."""
        config, asker = self.config, asker or self.asker
        scope = Scope(
            self.session,
            config.cwd,
            self._spill,
            turn,
            asker.person,
            self.redactor,
            asker.id,
            config.spill_limits,
            named_paths=tuple(map(Path, transcript.named)),
            has_private_data=transcript.has_private_data,
        )
        return Executor(self.toolbox, self._gate, scope, lambda: self.resources.recorder)

    def take_news(self, history: History) -> Sequence[str]:
        """What no message tells the model yet."""
        news = self.resources.take_news(self.session)
        if self._has_checked_shell:
            return news
        self._has_checked_shell = True
        calls = (call for message in history if isinstance(message, Assistant) for call in message.calls)
        is_gone = not self.resources.has_shell(self.session) and any(call.name in SHELL_TOOLS for call in calls)
        return (SHELL_GONE, *news) if is_gone else news

    @property
    def prompt(self) -> str:
        """What hooks add to the system prompt."""
        return self._equipment.prompt if self._equipment else ""

    def encode_specs(self) -> str:
        """The specs of all tools, as the session's row stores them."""
        return _encode_specs(self.toolbox.specs).decode()

    def specs(self, encoded: str) -> tuple[ToolSpec, ...]:
        """As they were when the conversation began, byte for byte; then new ones of hooks and engine."""
        before = _decode_specs(encoded)
        if self.toolbox is self._own:
            return before
        known = {*(spec.name for spec in before), *self._own.names}
        return (*before, *(spec for spec in self.toolbox.specs if spec.name not in known))

    def context(self, turn: TurnId | None = None) -> SessionContext:
        config = self.config
        conversation = config.conversation or self.session
        return SessionContext(
            self.session, conversation, config.platform, config.person, config.route.primary.label, turn
        )

    @property
    def place(self) -> ConversationInfo:
        config = self.config
        return ConversationInfo(
            self.session, config.conversation or self.session, config.platform, config.route.primary
        )

    async def context_status(self) -> dict[str, Any]:
        """How full the model's window is, as far as that is known."""
        return {} if self.keeper is None else await self.keeper.status()

    async def leave_for(self, successor: "SessionServices", previous: Sequence[Message], *, carry_over: bool) -> None:
        await self._leave(previous, successor.session, "new")
        if self.keeper is not None and successor.keeper is not None:
            await successor.keeper.take_over(self.keeper, successor.place, previous, carry_over=carry_over)

    async def close(self, previous: Sequence[Message], reason: LeaveReason) -> None:
        await self._leave(previous, None, reason)
        if self.keeper is not None:
            await self.keeper.close(previous)

    async def _leave(self, previous: Sequence[Message], successor: SessionId | None, reason: LeaveReason) -> None:
        """Resources close last, because hooks may need the shell, and even if hooks fail."""
        self._equipment = None
        try:
            if previous:
                await self.hooks.session_left(self.context(), previous, successor, reason)
        finally:
            await self.resources.close(self.session)
