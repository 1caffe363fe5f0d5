"""The plugins of one live session: their hooks, tools and skills, and the chosen memory provider."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from talaria.agent.hooks import Equipment, LeaveReason, Notify, SessionContext
from talaria.core.clock import Clock
from talaria.core.entries import TurnOutcome
from talaria.core.errors import BadArguments, ToolFailed
from talaria.core.fs import read_text
from talaria.core.ids import SessionId
from talaria.core.messages import Message
from talaria.memory.memory_host import MemoryHost
from talaria.plugins.contributions import Contributions, select_usable
from talaria.plugins.plugin_hooks import HookTable, PluginHooks
from talaria.plugins.registered import PluginSkill
from talaria.tools.base import NOTHING, READS, ApprovalOutcome, ApprovalRequest, Tool
from talaria.tools.function import tool

MAX_BYTES = 200_000


def skill_tool(skills: Mapping[str, PluginSkill]) -> Tool:
    """Lets the model read the skills of plugins, by their full names."""
    listed = "\n".join(f"- {skill.name}: {skill.description}" for skill in skills.values())

    def skill_view(name: Annotated[str, "as listed, `plugin:name`"]) -> str:
        skill = skills.get(name)
        if skill is None:
            raise BadArguments(f"There is no skill {name!r}; known skills: {', '.join(skills)}.")
        text = read_text(skill.path, MAX_BYTES)
        if text is None:
            raise ToolFailed(f"The file of skill {name} cannot be read.")
        return text

    skill_view.__doc__ = f"Read one of these skills, which tell how to do something, before you do it:\n{listed}"
    return tool(skill_view, after_crash="repeat", effect=READS, claim=NOTHING)


MakeMemory = Callable[[Notify], MemoryHost]


class SessionHooks(PluginHooks):
    def __init__(
        self, table: HookTable, brought: Contributions, home: Path, clock: Clock, memory: MakeMemory | None = None
    ) -> None:
        super().__init__(table)
        self._brought = brought
        self._home = home
        self._clock = clock
        self._pending: list[str] = []
        self._tell: Notify = self._pending.append
        self._memory = memory(self._say) if memory else None

    def _say(self, text: str) -> None:
        self._tell(text)

    async def equip(self, context: SessionContext) -> Equipment:
        tools = await select_usable(self._brought.tools, self._clock)
        if self._brought.skills:
            tools.append(skill_tool(self._brought.skills))
        if self._memory is None:
            return Equipment(tuple(tools))
        of_memory, prompt = await self._memory.open(context.session, self._home, context.platform, context.person)
        return Equipment((*tools, *of_memory), prompt)

    async def before_turn(
        self, context: SessionContext, asked: str, history: Sequence[Message], tell: Notify
    ) -> Sequence[str]:
        self._tell = tell
        while self._pending:
            tell(self._pending.pop(0))
        added = list(await super().before_turn(context, asked, history, tell))
        recalled = await self._memory.recall(asked) if self._memory else ""
        self._tell_problems()
        return [*added, f"[What the memory has on this:]\n{recalled}"] if recalled else added

    async def after_turn(
        self, context: SessionContext, asked: str, answer: str, history: Sequence[Message], outcome: TurnOutcome
    ) -> None:
        await super().after_turn(context, asked, answer, history, outcome)
        if self._memory and outcome == "completed" and asked and answer:
            await self._memory.record_turn(asked, answer, history)
        self._tell_problems()
        self._tell = self._pending.append

    def _tell_problems(self) -> None:
        for sentence in self._table.problems.take_new():
            self._tell(sentence)

    async def before_compaction(self, context: SessionContext, messages: Sequence[Message]) -> str:  # noqa: ARG002
        return await self._memory.before_compaction(messages) if self._memory else ""

    async def session_left(
        self, context: SessionContext, messages: Sequence[Message], successor: SessionId | None, reason: LeaveReason
    ) -> None:
        await super().session_left(context, messages, successor, reason)
        if self._memory:
            await self._memory.close(messages, successor)


class ApprovalHooks:
    """The `ApprovalObserver` of one session. Callbacks only watch: the person decides, and answers are ignored."""

    def __init__(self, table: HookTable, session: SessionId, conversation: str, platform: str) -> None:
        self._table = table
        self._facts: dict[str, Any] = {
            "session_id": session,
            "session_key": conversation,
            "platform": platform,
            "surface": "cli" if platform == "cli" else "gateway",
        }

    async def on_request(self, what: ApprovalRequest) -> None:
        await self._fire("pre_approval_request", what)

    async def on_answer(self, what: ApprovalRequest, choice: ApprovalOutcome) -> None:
        await self._fire("post_approval_response", what, choice=choice)

    async def _fire(self, name: str, what: ApprovalRequest, **more: Any) -> None:
        if self._table.callbacks.get(name):
            facts = {
                "command": what.command,
                "description": what.reason,
                "pattern_key": what.call.name,
                "pattern_keys": [what.call.name],
                "tool_name": what.call.name,
                "tool_call_id": what.call.id,
                "turn_id": what.turn,
            }
            await self._table.invoke(name, **self._facts, **facts, **more)
