"""Those beside one live session: what keeps its context, who hears of its turns, the tools, and what these own.

What a session has beside its conversation: a shell, background processes, a browser.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from talaria.agent.hooks import Equipment, Facts, Hooks, Leaving, NoHooks
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
    from talaria.context.engine import HostedEngine
    from talaria.tools.undo.change_recorder import ChangeRecorder


class SessionResources(Protocol):
    @property
    def recorder(self) -> "ChangeRecorder | None":
        """What makes changes of files undoable; None: nothing does."""
        ...

    def take_news(self, session: SessionId) -> Sequence[str]:
        """What has happened there since this was last asked."""
        ...

    def has_shell(self, session: SessionId) -> bool: ...
    async def close(self, session: SessionId) -> None:
        """Nothing of it is left running."""
        ...


class NoResources:
    recorder = None

    def take_news(self, session: SessionId) -> Sequence[str]:  # noqa: ARG002
        return ()

    def has_shell(self, session: SessionId) -> bool:  # noqa: ARG002
        return False

    async def close(self, session: SessionId) -> None:  # noqa: ARG002
        return None


SHELL_GONE = "[Your shell and its background processes of before are gone; files are not.]"
SHELL_TOOLS = frozenset({"terminal", "process", "execute_code"})

_encode_specs = msgspec.json.Encoder().encode
_decode_specs = msgspec.json.Decoder(tuple[ToolSpec, ...]).decode


@lru_cache(maxsize=16)
def _specs(kept: str) -> tuple[ToolSpec, ...]:
    """Most conversations have the same."""
    return _decode_specs(kept)


class SessionServices:
    def __init__(
        self,
        session: SessionId,
        setup: SessionConfig,
        toolbox: Toolbox,
        *,
        gate: Gate,
        person: Person | None = None,
        keeper: ContextKeeper | None = None,
        hooks: Hooks | None = None,
        belongings: SessionResources | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        self.keeper = keeper
        self.hooks = hooks or NoHooks()
        self.toolbox = toolbox
        """With theirs, once they have been asked."""
        self._session = session
        self._setup = setup
        self._own = toolbox
        self._gate = gate
        self._person = person
        self._redactor = redactor or Redactor()
        self._belongings = belongings or NoResources()
        self._spill = spill_folder(setup.home, session)
        self._has_arrived = False
        self._equipment: Equipment | None = None

    async def equip(self) -> None:
        """Ask them what they bring: once, until the conversation is left."""
        if self._equipment is not None:
            return
        equipment = await self.hooks.equip(self.facts())
        of_keeper = () if self.keeper is None else await self.keeper.open(self._place())
        brought = (*equipment.tools, *of_keeper)
        self.toolbox = self._own.with_tools(brought) if brought else self._own
        self._equipment = equipment

    @property
    def cwd(self) -> Path:
        """The folder in which its tools work."""
        return self._setup.cwd

    def executor(self, view: Transcript, turn: str = "", asker: Asker | None = None) -> Executor:
        """Of the tools as they are now. Without an `asker`, for whom the session was made."""
        asker = asker or Asker(self._setup.person, self._person)
        setup = self._setup
        scope = Scope(
            self._session,
            setup.cwd,
            self._spill,
            turn,
            asker.person,
            self._redactor,
            asker.id,
            setup.spill_limits,
            named_paths=tuple(map(Path, view.named)),
            has_private_data=view.has_private_data,
        )
        return Executor(self.toolbox, self._gate, scope, self._belongings.recorder)

    def take_news(self, history: History) -> Sequence[str]:
        """What the model should know that no message tells it yet."""
        is_gone = not self._has_arrived and not self._belongings.has_shell(self._session) and _had_shell(history)
        self._has_arrived = True
        return (*((SHELL_GONE,) if is_gone else ()), *self._belongings.take_news(self._session))

    @property
    def prompt(self) -> str:
        """What they add to the system prompt."""
        return self._equipment.prompt if self._equipment else ""

    def kept_specs(self) -> str:
        """Of all tools, as the session's row keeps them."""
        return _encode_specs(self.toolbox.specs).decode()

    def specs(self, kept: str) -> tuple[ToolSpec, ...]:
        """As they were when the conversation began, byte for byte; and what companions have brought since."""
        before = _specs(kept)
        if self.toolbox is self._own:
            return before
        known = {*(spec.name for spec in before), *self._own.names}
        return (*before, *(spec for spec in self.toolbox.specs if spec.name not in known))

    def facts(self, turn: TurnId | None = None) -> Facts:
        setup = self._setup
        conversation = setup.conversation or self._session
        return Facts(self._session, conversation, setup.platform, setup.person, setup.route.primary.label, turn)

    def begin_turn(self, history: History, tell: Callable[[str], None]) -> None:
        if self.keeper is not None:
            self.keeper.begin_turn(history, tell)

    def end_turn(self) -> None:
        if self.keeper is not None:
            self.keeper.end_turn()

    async def hand_over(self, successor: "SessionServices", previous: Sequence[Message], *, carry_over: bool) -> None:
        """The conversation is left for another."""
        await self._leave(previous, successor.session, "new")
        if self.keeper is not None:
            await successor.succeed(self.keeper, previous, carry_over=carry_over)

    async def succeed(self, keeper: ContextKeeper, previous: Sequence[Message], *, carry_over: bool) -> None:
        if self.keeper is not None:
            await self.keeper.take_over(keeper, self._place(), previous, carry_over=carry_over)

    async def close(self, previous: Sequence[Message], reason: Leaving) -> None:
        await self._leave(previous, None, reason)
        if self.keeper is not None:
            await self.keeper.close(previous)

    async def _leave(self, previous: Sequence[Message], successor: SessionId | None, reason: Leaving) -> None:
        """What they do last may still need a shell; whatever becomes of that, nothing is left running."""
        self._equipment = None
        try:
            if previous:
                await self.hooks.session_left(self.facts(), previous, successor, reason)
        finally:
            await self._belongings.close(self._session)

    @property
    def redactor(self) -> Redactor:
        return self._redactor

    @property
    def recorder(self) -> "ChangeRecorder | None":
        return self._belongings.recorder

    @property
    def session(self) -> SessionId:
        return self._session

    async def status(self) -> dict[str, Any]:
        return {} if self.keeper is None else await self.keeper.status()

    async def engine(self) -> "HostedEngine | None":
        """As `ContextKeeper.engine`."""
        return None if self.keeper is None else await self.keeper.engine(self._place())

    def _place(self) -> ConversationInfo:
        setup = self._setup
        return ConversationInfo(self._session, setup.conversation or self._session, setup.platform, setup.route.primary)


def _had_shell(history: History) -> bool:
    return any(call.name in SHELL_TOOLS for one in history if isinstance(one, Assistant) for call in one.calls)
