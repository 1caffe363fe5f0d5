"""Hosts a plugin's memory provider for one live session. If it raises or hangs, the person is told, and the
conversation continues without its answer. A provider that hangs is not called again until that call has ended."""

import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from talaria.core.ids import SessionId
from talaria.core.message_dicts import to_dicts
from talaria.core.messages import Message
from talaria.core.plugin_calls import HostedPlugin, PluginError
from talaria.core.text import as_text
from talaria.memory.base import MemoryProvider
from talaria.tools.base import Run, Tool
from talaria.tools.function import Handler, encode_result, make_schema_tools

USUAL_S = 10.0
START_S = 30.0
TOOL_S = 120.0

log = logging.getLogger(__name__)


Build = Callable[[], Awaitable[HostedPlugin[MemoryProvider]]]
"""Raises `PluginError`."""


class MemoryHost:
    def __init__(self, name: str, build: Build, tell: Callable[[str], None]) -> None:
        """`tell` shows the person a sentence."""
        self._name = name
        self._build = build
        self._tell = tell
        self._provider: HostedPlugin[MemoryProvider] | None = None
        self._session = SessionId("")
        self._turns = 0

    async def open(self, session: SessionId, home: Path, platform: str, person: str) -> tuple[Sequence[Tool], str]:
        """Its tools, and its part of the system prompt. A provider that cannot start is not used."""
        self._session = session
        try:
            provider = await self._build()
            facts = {"hermes_home": str(home), "platform": platform, "agent_context": "primary", "user_id": person}
            facts |= {"agent_identity": "default", "agent_workspace": ""}
            if not await _start(provider, "is_available", seconds=USUAL_S, read=bool):
                self._complain("says that it is not available")
                return (), ""
            await _start(provider, "initialize", self._session, seconds=START_S, **facts)
        except PluginError as fault:
            self._complain(str(fault))
            return (), ""
        self._provider = provider
        if provider.is_shared:
            self._tell(f"Memory provider {self._name} cannot be copied, so all conversations in this process share it.")
        read = partial(make_schema_tools, handler=self._handler, toolset="memory")
        tools, problems = await self._call("get_tool_schemas", read=read) or ((), ())
        for problem in problems:
            self._complain(f"has an unusable tool: {problem}")
        return tools, await self._text("system_prompt_block")

    async def recall(self, message: str) -> str:
        """What the model should know with this message."""
        self._turns += 1
        await self._call("on_turn_start", self._turns, message)
        seconds = START_S if self._turns == 1 else USUAL_S
        return await self._text("prefetch", message, seconds=seconds, session_id=self._session)

    async def record_turn(self, asked: str, answer: str, messages: Sequence[Message]) -> None:
        """A turn ended with an answer."""
        await self._call(
            "sync_turn", asked, answer, session_id=self._session, messages=to_dicts(messages, with_context=False)
        )
        await self._call("queue_prefetch", asked, session_id=self._session)

    async def before_compaction(self, messages: Sequence[Message]) -> str:
        return await self._text("on_pre_compress", to_dicts(messages, with_context=False))

    async def close(self, messages: Sequence[Message], successor: SessionId | None) -> None:
        await self._call("on_session_end", to_dicts(messages, with_context=False))
        if successor is not None:
            await self._call("on_session_switch", successor, parent_session_id=self._session, reset=True)
        if self._provider is not None and not self._provider.is_shared:
            await self._call("shutdown")
        self._provider = None

    async def _text(self, method: str, *args: object, seconds: float = USUAL_S, **keywords: Any) -> str:
        def read(answer: object) -> str:
            return as_text(answer) if isinstance(answer, str) else ""

        return await self._call(method, *args, seconds=seconds, read=read, **keywords) or ""

    async def _call(self, method: str, *args: object, seconds: float = USUAL_S, **keywords: Any) -> Any:
        """None if it lacks the method, or failed in it."""
        provider = self._provider
        if provider is None or provider.executor.is_blocked:
            return None
        try:
            return await provider.call(method, *args, seconds=seconds, **keywords)
        except PluginError as fault:
            self._complain(f"{fault} in {method}")
            return None

    def _complain(self, problem: str) -> None:
        log.warning("memory provider %s %s", self._name, problem)
        self._tell(f"Memory provider {self._name} {problem}.")

    def _handler(self, name: str) -> Handler:
        async def handle(arguments: dict[str, Any], run: Run) -> str:
            provider = self._provider
            if provider is None:
                return json.dumps({"error": f"Memory provider {self._name} is not available."})
            facts = {"session_id": run.scope.session, "tool_call_id": run.call}
            try:
                return await provider.call(
                    "handle_tool_call", name, arguments, seconds=TOOL_S, read=encode_result, **facts
                )
            except PluginError as fault:
                return json.dumps({"error": f"{name} {fault}"})

        return handle


async def _start(provider: HostedPlugin[MemoryProvider], method: str, *args: object, **keywords: Any) -> Any:
    """Raises `PluginError`, which says where."""
    try:
        return await provider.call(method, *args, **keywords)
    except PluginError as fault:
        raise PluginError(f"{fault} in {method}", has_hung=fault.has_hung) from fault
