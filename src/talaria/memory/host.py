"""Hosts a plugin's memory provider for one live session. One that raises or hangs is told to the person, and the
conversation goes on without what it would have said; one that has hung is not asked again."""

import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from talaria.foreign import Broke, Lane, fitting
from talaria.memory.provider import MemoryProvider
from talaria.model.dialect import as_dicts
from talaria.model.ids import SessionId
from talaria.model.messages import Message
from talaria.tools.base import Run, Tool
from talaria.tools.schema_tool import BadSchema, SchemaTool, as_result, spec_of

USUAL_S = 10.0
START_S = 30.0
TOOL_S = 120.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Instance:
    provider: MemoryProvider
    lane: Lane


class MemoryHost:
    def __init__(self, name: str, build: Callable[[], Awaitable[Instance]], tell: Callable[[str], None]) -> None:
        """`build` raises `Broke`; `tell` reaches the person."""
        self._name = name
        self._build = build
        self._tell = tell
        self._instance: Instance | None = None
        self._session = SessionId("")
        self._turns = 0

    async def open(self, session: SessionId, home: Path, platform: str, person: str) -> tuple[Sequence[Tool], str]:
        """Its tools, and what it adds to the system prompt."""
        self._session = session
        try:
            self._instance = await self._build()
        except Broke as fault:
            self._complain(str(fault))
            return (), ""
        if not await self._call("is_available"):
            self._complain("says that it is not available")
            self._instance = None
            return (), ""
        facts = {"hermes_home": str(home), "platform": platform, "agent_context": "primary", "user_id": person}
        await self._call("initialize", session, seconds=START_S, **facts, agent_identity="default", agent_workspace="")
        schemas = await self._call("get_tool_schemas")
        return self._tools(schemas), str(await self._call("system_prompt_block") or "")

    async def recall(self, message: str) -> str:
        """What the model shall know with this message."""
        self._turns += 1
        await self._call("on_turn_start", self._turns, message)
        return str(await self._call("prefetch", message, session_id=self._session) or "")

    async def keep(self, asked: str, answer: str, messages: Sequence[Message]) -> None:
        """A turn ended with an answer."""
        await self._call("sync_turn", asked, answer, session_id=self._session, messages=as_dicts(messages))
        await self._call("queue_prefetch", asked, session_id=self._session)

    async def before_compaction(self, messages: Sequence[Message]) -> str:
        return str(await self._call("on_pre_compress", as_dicts(messages)) or "")

    async def leave(self, messages: Sequence[Message], successor: SessionId | None) -> None:
        await self._call("on_session_end", as_dicts(messages))
        if successor is not None:
            await self._call("on_session_switch", successor, parent_session_id=self._session, reset=True)
        await self._call("shutdown")
        self._instance = None

    async def _call(self, method: str, *args: object, seconds: float = USUAL_S, **keywords: Any) -> Any:
        """None if it lacks the method, or failed in it."""
        instance = self._instance
        if instance is None:
            return None
        try:
            return await instance.lane.call(lambda: _run(instance.provider, method, *args, **keywords), seconds)
        except Broke as fault:
            self._complain(f"{fault} in {method}")
            if fault.has_hung:
                self._instance = None
            return None

    def _complain(self, problem: str) -> None:
        log.warning("memory provider %s %s", self._name, problem)
        self._tell(f"Memory provider {self._name} {problem}.")

    def _tools(self, schemas: object) -> list[Tool]:
        tools: list[Tool] = []
        for schema in cast("list[object]", schemas) if isinstance(schemas, list) else ():
            try:
                spec = spec_of(schema)
            except BadSchema as problem:
                self._complain(f"has a tool that cannot be used: {problem}")
                continue
            tools.append(SchemaTool(spec, self._handler(spec.name)))
        return tools

    def _handler(self, name: str) -> Callable[[dict[str, Any], Run], Awaitable[str]]:
        async def handle(arguments: dict[str, Any], run: Run) -> str:
            instance = self._instance
            if instance is None:
                return json.dumps({"error": f"Memory provider {self._name} is not available."})
            facts = {"session_id": run.scope.session, "tool_call_id": run.call}
            try:
                return await instance.lane.call(
                    lambda: as_result(_run(instance.provider, "handle_tool_call", name, arguments, **facts)), TOOL_S
                )
            except Broke as fault:
                return json.dumps({"error": f"{name} {fault}"})

        return handle


def _run(provider: MemoryProvider, method: str, *args: object, **keywords: Any) -> Any:
    function = getattr(provider, method, None)
    return None if function is None else function(*args, **fitting(function, keywords))
