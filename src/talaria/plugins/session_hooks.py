"""The plugins beside one live session: their hooks, tools and skills, and the memory provider that is chosen."""

from collections.abc import Callable, Sequence
from pathlib import Path

from talaria.agent.hooks import Equipment, Facts, Leaving, Tell
from talaria.core.clock import Clock
from talaria.core.entries import TurnOutcome
from talaria.core.ids import SessionId
from talaria.core.messages import Message
from talaria.memory.memory_host import MemoryHost
from talaria.plugins.contributions import Contributions, usable
from talaria.plugins.hook_table import HookTable
from talaria.plugins.plugin_hooks import PluginHooks
from talaria.plugins.skills import skill_tool

MakeMemory = Callable[[Tell], MemoryHost]


class SessionHooks(PluginHooks):
    def __init__(
        self, table: HookTable, brought: Contributions, home: Path, clock: Clock, memory: MakeMemory | None = None
    ) -> None:
        super().__init__(table)
        self._brought = brought
        self._home = home
        self._clock = clock
        self._unsaid: list[str] = []
        self._tell: Tell = self._unsaid.append
        self._memory = memory(self._say) if memory else None

    def _say(self, text: str) -> None:
        self._tell(text)

    async def equip(self, facts: Facts) -> Equipment:
        tools = await usable(self._brought.tools, self._clock)
        if self._brought.skills:
            tools.append(skill_tool(self._brought.skills))
        if self._memory is None:
            return Equipment(tuple(tools))
        of_memory, prompt = await self._memory.open(facts.session, self._home, facts.platform, facts.person)
        return Equipment((*tools, *of_memory), prompt)

    async def before_turn(self, facts: Facts, asked: str, history: Sequence[Message], tell: Tell) -> Sequence[str]:
        self._tell = tell
        while self._unsaid:
            tell(self._unsaid.pop(0))
        added = list(await super().before_turn(facts, asked, history, tell))
        recalled = await self._memory.recall(asked) if self._memory else ""
        self._tell_problems()
        return [*added, f"[What the memory has on this:]\n{recalled}"] if recalled else added

    async def after_turn(
        self, facts: Facts, asked: str, answer: str, history: Sequence[Message], outcome: TurnOutcome
    ) -> None:
        await super().after_turn(facts, asked, answer, history, outcome)
        if self._memory and outcome == "completed" and asked and answer:
            await self._memory.keep(asked, answer, history)
        self._tell_problems()
        self._tell = self._unsaid.append

    def _tell_problems(self) -> None:
        for sentence in self._table.problems.untold():
            self._tell(sentence)

    async def before_compaction(self, facts: Facts, messages: Sequence[Message]) -> str:  # noqa: ARG002
        return await self._memory.before_compaction(messages) if self._memory else ""

    async def session_left(
        self, facts: Facts, messages: Sequence[Message], successor: SessionId | None, reason: Leaving
    ) -> None:
        await super().session_left(facts, messages, successor, reason)
        if self._memory:
            await self._memory.leave(messages, successor)
