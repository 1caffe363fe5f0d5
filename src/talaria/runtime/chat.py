"""A person's chat and the conversation in use there, at the terminal and elsewhere: what slash commands act on."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from talaria.core.aio import complete, in_thread
from talaria.core.clock import Clock
from talaria.core.entries import Effort, MessageAdded, TurnOrigin
from talaria.core.errors import BadInput
from talaria.core.ids import OwnerId, SessionId, TurnId, new_session_id
from talaria.core.messages import Message
from talaria.runtime.accounts import summary
from talaria.runtime.auxiliary import Auxiliary, title_for
from talaria.runtime.builtin_commands import format_recap
from talaria.runtime.commands import Commands, Surface, help_text
from talaria.runtime.lease import Observer
from talaria.runtime.rollback import describe_differences, describe_undone, roll_back
from talaria.runtime.sandbox_report import describe_grant, describe_sandbox, place_of, revoke_grant
from talaria.runtime.session import LiveSession
from talaria.runtime.session_config import SessionConfig, TurnOptions
from talaria.runtime.transcript import read_latest_turns, without_undone
from talaria.store.base import Session, Store
from talaria.tools.person import Person
from talaria.tools.registry import toolset_of
from talaria.tools.sandbox_permissions import SANDBOX, Permission, read_grant
from talaria.tools.workspaces import SandboxState

if TYPE_CHECKING:
    from talaria.context.engine import HostedEngine
    from talaria.platforms.base import Arrival
    from talaria.tools.undo.checkpoints import Checkpoints

Purpose = Literal["title", "summary", "judge"]


class CommandHost(Protocol):
    """What a chat, wherever it is, asks of the application around it."""

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
        """A message as plugins want it to be dispatched; None: it is dropped. Never raises."""
        ...

    def auxiliary(self, purpose: Purpose) -> Auxiliary: ...


Reason = Literal["new", "resume", "branch"]


class Chat(ABC):
    """Each surface decides how it switches to another conversation, and what is shown of a turn.

    Any method may raise a `TalariaError`, which the surface tells as one sentence.
    """

    surface: Surface

    def __init__(self, host: CommandHost, person: str | None = None) -> None:
        """`person` sees only their own conversations; None: all."""
        self._host = host
        self._person = person
        self._undone: TurnId | None = None

    @property
    @abstractmethod
    def live(self) -> LiveSession:
        """The conversation in use."""

    @abstractmethod
    async def switch_to(self, row: Session | None, reason: Reason) -> None:
        """The only way to another conversation. What was allowed for this one is asked again there."""

    @abstractmethod
    def observer(self) -> Observer:
        """Of what a command brings about."""

    @abstractmethod
    async def attach(self, path: str) -> str:
        """An image goes with the person's next message; says so."""

    @abstractmethod
    async def hand_off(self, platform: str) -> None:
        """Returns when the conversation continues there."""

    @property
    def session(self) -> SessionId:
        """Of the conversation in use, which is on the disk only once something was said."""
        return self.live.id

    @property
    def model(self) -> str:
        """`provider:model`."""
        return self._host.model

    async def use_model(self, name: str) -> None:
        """From the next turn on this model answers here."""
        raise BadInput(f"Which model answers in chats is a setting: talaria model set {name}")

    async def effort(self) -> tuple[Effort | None, Effort | None]:
        """How hard the model thinks: in this conversation, and by the settings. None: nothing is said about that."""
        return await self.live.read_effort(), self._host.turn_options().effort

    async def set_effort(self, effort: Effort | None) -> None:
        """In this conversation, from the next turn on; None: as the settings say."""
        await self.live.set_effort(effort)

    async def engine(self) -> "HostedEngine | None":
        """The context engine of the conversation in use, if a plugin's engine is chosen. Raises `PluginError`."""
        self.live.check_idle()
        services = self.live.services
        with self.live.as_current():
            return None if services.keeper is None else await services.keeper.engine(services.place)

    async def help(self) -> str:
        return help_text(self._host.commands, self.surface)

    async def status(self) -> str:
        context = await self.live.services.context_status()
        facts = [f"Session {self.session}", f"model {self.model}", *_describe_context(context)]
        if level := await in_thread(self._host.sandbox_level):
            facts.append(f"sandbox {level}")
        return " · ".join(facts)

    async def usage(self) -> str:
        return await summary(self._host.store.spending, self.session, self._host.clock.now())

    async def tools(self) -> str:
        """By toolset."""
        grouped: dict[str, list[str]] = {}
        for tool in self.live.services.toolbox.tools:
            grouped.setdefault(toolset_of(tool), []).append(tool.spec.name)
        return "\n".join(f"{name}: {', '.join(names)}" for name, names in grouped.items()) or "There are no tools."

    async def start_new(self) -> None:
        await self.switch_to(None, "new")

    async def resume(self, name: str) -> None:
        """Go on with another conversation: by id, by a unique beginning of it, or by title."""
        row = await self._host.store.sessions.find(name, self._person)
        if row.id == self.session:
            raise BadInput("You are in that conversation already.")
        await self.switch_to(row, "resume")

    async def branch(self, title: str) -> None:
        """Go on with a copy; the conversation in use until now stays as it is."""
        row, copy = await self._read_row(), new_session_id(self._host.clock.now())
        await self.switch_to(await self._host.store.sessions.fork(row.id, copy, title or None), "branch")

    async def sessions(self, limit: int) -> Sequence[Session]:
        """Those that this person may resume, latest first."""
        return await self._host.store.sessions.list(limit, self._person)

    async def recap(self) -> str:
        """Which conversation this is and its last messages, for a person who comes back to it."""
        row = await self._read_row()
        latest = await read_latest_turns(self._host.store.journal, self.session)
        return format_recap(row, [one.entry.message for one in latest if isinstance(one.entry, MessageAdded)])

    async def undo(self) -> str | None:
        """The person's words in the turn that was undone; None if there was none."""
        self._undone = await self.live.last_turn()
        return await self.live.undo()

    async def describe_undone_files(self) -> str:
        """What the turn that was undone last did to files, and how to put that back; empty: nothing."""
        checkpoints, turn = self._checkpoints(), self._undone
        return await in_thread(lambda: describe_undone(checkpoints, turn)) if turn else ""

    async def rollback(self, number: int | None, *, everything: bool) -> str:
        """Files as they were before this checkpoint; without a number, which checkpoints there are. `everything`: also
        those that somebody else has changed since."""
        checkpoints = self._checkpoints()
        return await complete(in_thread(lambda: roll_back(checkpoints, number, everything=everything)))

    async def diff(self, number: int | None) -> str:
        """What has changed in files since this checkpoint, or since the latest."""
        checkpoints, redactor = self._checkpoints(), self.live.services.redactor
        return await in_thread(lambda: describe_differences(checkpoints, number, redactor))

    def _checkpoints(self) -> "Checkpoints":
        recorder = self.live.services.resources.recorder
        if recorder is None:
            raise BadInput("Changes of files are not recorded here: the tools of this conversation are not Talaria's.")
        return recorder.checkpoints(self.session)

    async def sandbox(self, *, is_whole: bool = False) -> str:
        """How commands are confined, what was allowed and what was blocked."""
        project = self.live.config.cwd
        state = await in_thread(lambda: self._host.sandbox_state(self.session, project))
        if state is None:
            raise BadInput("No tool of this conversation runs commands.")
        now, grants = self._host.clock.now(), self._host.store.grants
        return await describe_sandbox(state, grants, self.session, now, self._person, is_whole=is_whole)

    async def revoke(self, id: str) -> str:
        """Revoke what was allowed, by the beginning of its id; what was opened is closed at once."""
        grant = await revoke_grant(self._host.store.grants, id, self._person)
        permission = read_grant(grant.what) if grant.tool == SANDBOX else None
        still_open = await complete(self._host.close_again(permission)) if permission is not None else ()
        told = f"Revoked: {describe_grant(grant)} ({place_of(grant)}). You will be asked again."
        return " ".join((told, *still_open))

    async def compress(self, focus: str, keep_last: int | None) -> str:
        """What was done; empty: there was nothing to leave out."""
        options = self._host.turn_options()
        return await self.live.compact(self.observer(), focus=focus, keep_last=keep_last, options=options)

    async def rename(self, title: str) -> None:
        row = await self._read_row()
        await self._host.store.sessions.rename(row.id, title)

    async def propose_title(self) -> str:
        """By the model that is set for titles."""
        entries = without_undone(await self._host.store.journal.entries(self.session))
        messages: list[Message] = [one.entry.message for one in entries if isinstance(one.entry, MessageAdded)]
        return await title_for(self.session, messages, self._host.auxiliary("title"))

    async def _read_row(self) -> Session:
        row = await self._host.store.sessions.get(self.session)
        if row is None:
            raise BadInput("Say something first: a conversation without a message is not saved.")
        return row


def _describe_context(context: dict[str, Any]) -> Iterator[str]:
    """Of a plugin's engine."""
    if "engine" in context:
        yield f"context engine {context['engine']}"
    used, limit = context.get("last_prompt_tokens"), context.get("threshold_tokens")
    if isinstance(used, int) and isinstance(limit, int) and limit > 0:
        yield f"{max(used, 0):,} of {limit:,} tokens before it compacts"
