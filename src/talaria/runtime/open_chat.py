"""What commands can do in every chat, at the terminal and elsewhere, with the conversation that is in use there."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from talaria.core.aio import completed, in_thread
from talaria.core.entries import Effort, MessageAdded
from talaria.core.errors import BadInput
from talaria.core.ids import SessionId, TurnId, new_session_id
from talaria.core.messages import Message
from talaria.runtime.accounts import summary
from talaria.runtime.auxiliary import title_for
from talaria.runtime.builtin_commands import recalled
from talaria.runtime.command_host import CommandHost
from talaria.runtime.commands import Surface, help_text
from talaria.runtime.recorder import Observer
from talaria.runtime.rollback import after_undo, differences, rolled_back
from talaria.runtime.sandbox_report import describe_grant, describe_sandbox, place_of, take_grant_back
from talaria.runtime.session import LiveSession
from talaria.runtime.transcript import read_latest_turns, without_undone
from talaria.store.base import Session
from talaria.tools.registry import toolset_of
from talaria.tools.sandbox_permissions import SANDBOX, read_grant

if TYPE_CHECKING:
    from talaria.context.engine import HostedEngine
    from talaria.tools.undo.checkpoints import Checkpoints

Reason = Literal["new", "resume", "branch"]


class OpenChat(ABC):
    """Satisfies `Chat`. Where it is decides how it goes over to another conversation, and what is shown of a turn."""

    surface: Surface

    def __init__(self, host: CommandHost, person: str | None = None) -> None:
        """`person` sees only their own conversations; None: all."""
        self._host = host
        self._whose = person
        self._undone: TurnId | None = None

    @property
    @abstractmethod
    def live(self) -> LiveSession: ...

    @abstractmethod
    async def switch_to(self, row: Session | None, reason: Reason) -> None:
        """The only way to another conversation. What was allowed once for all is asked again there."""

    @abstractmethod
    def observer(self) -> Observer:
        """Of what a command brings about."""

    @abstractmethod
    async def attach(self, path: str) -> str: ...

    @abstractmethod
    async def hand_off(self, platform: str) -> None: ...

    async def use_model(self, name: str) -> None:
        raise BadInput(f"Which model answers in chats is a setting: talaria model set {name}")

    async def effort(self) -> tuple[Effort | None, Effort | None]:
        return await self.live.own_effort(), self._host.terms().effort

    async def set_effort(self, effort: Effort | None) -> None:
        await completed(self.live.set_effort(effort))  # nothing must come between the record and the view of it

    @property
    def session(self) -> SessionId:
        return self.live.id

    @property
    def model(self) -> str:
        return self._host.model

    async def engine(self) -> "HostedEngine | None":
        return await self.live.engine()

    async def help(self) -> str:
        return help_text(self._host.commands, self.surface)

    async def status(self) -> str:
        facts = [f"Session {self.session}", f"model {self.model}", *_told(await self.live.context_status())]
        if level := await in_thread(self._host.sandbox_level):
            facts.append(f"sandbox {level}")
        return " · ".join(facts)

    async def usage(self) -> str:
        return await summary(self._host.store.spending, self.session, self._host.clock.now())

    async def tools(self) -> str:
        """By toolset."""
        grouped: dict[str, list[str]] = {}
        for tool in self.live.companions.toolbox.tools:
            grouped.setdefault(toolset_of(tool), []).append(tool.spec.name)
        return "\n".join(f"{name}: {', '.join(names)}" for name, names in grouped.items()) or "It has no tools."

    async def begin_anew(self) -> None:
        await self.switch_to(None, "new")

    async def resume(self, name: str) -> None:
        row = await self._host.store.sessions.find(name, self._whose)
        if row.id == self.session:
            raise BadInput("This is that conversation already.")
        await self.switch_to(row, "resume")

    async def branch(self, title: str) -> None:
        row, copy = await self._kept(), new_session_id(self._host.clock.now())
        await self.switch_to(await self._host.store.sessions.fork(row.id, copy, title or None), "branch")

    async def sessions(self, limit: int) -> Sequence[Session]:
        return await self._host.store.sessions.list(limit, self._whose)

    async def recall(self) -> str:
        row = await self._kept()
        latest = await read_latest_turns(self._host.store.journal, self.session)
        return recalled(row, [one.entry.message for one in latest if isinstance(one.entry, MessageAdded)])

    async def undo(self) -> str | None:
        self._undone = await self.live.last_turn()
        return await completed(self.live.undo())  # nothing must come between the record and the view of it

    async def files_of_undone(self) -> str:
        kept, turn = self._checkpoints(), self._undone
        return await in_thread(lambda: after_undo(kept, turn)) if turn else ""

    async def rollback(self, number: int | None, *, everything: bool) -> str:
        kept = self._checkpoints()
        return await completed(in_thread(lambda: rolled_back(kept, number, everything=everything)))

    async def diff(self, number: int | None) -> str:
        kept, redactor = self._checkpoints(), self.live.companions.redactor
        return await in_thread(lambda: differences(kept, number, redactor))

    def _checkpoints(self) -> "Checkpoints":
        recorder = self.live.companions.recorder
        if recorder is None:
            raise BadInput("Nothing is recorded here: the tools of this conversation are not Talaria's own.")
        return recorder.checkpoints(self.session)

    async def sandbox(self, *, is_whole: bool = False) -> str:
        project = self.live.companions.cwd
        state = await in_thread(lambda: self._host.sandbox_state(self.session, project))
        if state is None:
            raise BadInput("No tool of this conversation runs commands.")
        now, grants = self._host.clock.now(), self._host.store.grants
        return await describe_sandbox(state, grants, self.session, now, self._whose, is_whole=is_whole)

    async def revoke(self, id: str) -> str:
        grant = await take_grant_back(self._host.store.grants, id, self._whose)
        permission = read_grant(grant.what) if grant.tool == SANDBOX else None
        kept = await completed(self._host.close_again(permission)) if permission is not None else ()
        told = f"Revoked: {describe_grant(grant)} ({place_of(grant)}). You will be asked again."
        return " ".join((told, *kept))

    async def compress(self, focus: str, keep_last: int | None) -> str:
        return await self.live.compact(self.observer(), focus=focus, keep_last=keep_last)

    async def rename(self, title: str) -> None:
        row = await self._kept()
        await self._host.store.sessions.rename(row.id, title)

    async def proposed_title(self) -> str:
        """By the model that is set for titles."""
        return await title_for(self.session, await self._messages(), self._host.auxiliary("title"))

    async def _kept(self) -> Session:
        row = await self._host.store.sessions.get(self.session)
        if row is None:
            raise BadInput("Say something first: a conversation without a message is not kept.")
        return row

    async def _messages(self) -> list[Message]:
        entries = without_undone(await self._host.store.journal.entries(self.session))
        return [one.entry.message for one in entries if isinstance(one.entry, MessageAdded)]


def _told(context: dict[str, Any]) -> Iterator[str]:
    """Of an engine that a plugin has brought."""
    if "engine" in context:
        yield f"context engine {context['engine']}"
    used, limit = context.get("last_prompt_tokens"), context.get("threshold_tokens")
    if isinstance(used, int) and isinstance(limit, int) and limit > 0:
        yield f"{max(used, 0):,} of {limit:,} tokens before it compacts"
