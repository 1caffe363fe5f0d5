"""Hosts a plugin's context engine for one live session: decides when it is called and for how long, and falls back
visibly.

If an engine raises, hangs or returns what no endpoint would take, the person is told and the
built-in keeper replaces it for the rest of the turn. One that has hung is abandoned, and another is
built for the next turn.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from talaria.context.base import CompactedMessages, CompactionRequest, ContextKeeper, ConversationInfo, is_shorter
from talaria.context.engine import HostedEngine, as_dict, canonical
from talaria.core.clock import Clock
from talaria.core.message_dicts import from_dicts, to_dicts
from talaria.core.messages import Message, Usage
from talaria.core.plugin_calls import LateArgument, PluginError, run_within
from talaria.providers.base import Endpoint
from talaria.providers.message_history import History
from talaria.tools.base import NOTHING, Run, Tool
from talaria.tools.function import Handler, encode_result, make_schema_tools

USUAL_S = 30.0
LEAVING_S = 10.0
COMPRESS_S = 300.0
"""It may ask a model for its summaries."""
TOOL_S = 300.0
UNKNOWN_WINDOW = 128_000

log = logging.getLogger(__name__)


Build = Callable[[], Awaitable[HostedEngine]]
"""Raises `PluginError`."""


class EngineHost:
    def __init__(
        self, name: str, build: Build, builtin: ContextKeeper, clock: Clock, home: Path, *, is_automatic: bool = True
    ) -> None:
        """`home`: the plugins' home. `is_automatic`: it also compacts without being asked to."""
        self._name = name
        self._home = home
        self._build = build
        self._builtin = builtin
        self._clock = clock
        self._is_automatic = is_automatic
        self._engine: HostedEngine | None = None
        self._conversation: ConversationInfo | None = None
        self._followed: Endpoint | None = None
        self._history = History()
        self._unsaid: list[str] = []
        self._tell: Callable[[str], None] = self._unsaid.append
        self._is_sidelined = False
        self._problem = ""
        """Why it was last sidelined."""
        self._is_turn_new = True
        self._has_nothing = False
        """In this turn, it found nothing to leave out."""
        self._awaits_count = False

    async def open(self, conversation: ConversationInfo) -> Sequence[Tool]:
        self._move_to(conversation)
        schemas = await self._call("get_tool_schemas")
        tools, problems = make_schema_tools(
            schemas, self._handler, "context", NOTHING
        )  # it is given every message anyway
        for problem in problems:
            self._tell(f"Context engine {self._name}: {problem}; that tool is left out.")
        return tools

    def begin_turn(self, history: History, tell: Callable[[str], None]) -> None:
        self._history = history
        self._tell = tell
        self._is_turn_new = True
        self._has_nothing = False
        while self._unsaid:
            tell(self._unsaid.pop(0))

    def end_turn(self) -> None:
        self._tell = self._unsaid.append
        self._is_sidelined = False

    async def is_due(self, endpoint: Endpoint, tokens: int, *, is_blocked: bool) -> bool:
        await self._follow(endpoint)
        is_wanted = self._is_automatic and await self._wants_compaction(tokens)
        if self._is_sidelined:
            return self._is_automatic and await self._builtin.is_due(endpoint, tokens, is_blocked=is_blocked)
        return is_wanted and not self._has_nothing

    async def _wants_compaction(self, tokens: int) -> bool:
        is_new, self._is_turn_new = self._is_turn_new, False
        if await self._call("get_active_compression_failure_cooldown"):
            return False
        if is_new:
            if await self._call("should_compress_preflight", _dicts_of(self._history)):
                return True
            if await self._call("should_defer_preflight_to_real_usage", tokens):
                return False
        return bool(await self._call("should_compress", tokens))

    async def compact(self, messages: Sequence[Message], request: CompactionRequest) -> CompactedMessages | None:
        made = None
        if request.keep_last is not None:
            self._tell(f"Context engine {self._name} cannot choose what to keep, so Talaria's own does.")
        else:
            made = await self._compress(messages, request)
            self._has_nothing = made is None
            if made is None and request.has_overflowed and not self._is_sidelined:
                self._sideline("did not shorten a conversation that its model refuses")
        if self._is_sidelined or request.keep_last is not None:
            made = await self._builtin.compact(messages, request)
        if made is not None and is_shorter(made.messages, messages):
            await self._note("on_session_end", self._session, _dicts_of(messages))
        return made

    async def _compress(self, messages: Sequence[Message], request: CompactionRequest) -> CompactedMessages | None:
        """None: it has nothing to leave out, or it failed."""
        if request.is_asked_for and await self._call("has_content_to_compress", _dicts_of(messages)) is False:
            return None
        given = await self._call(
            "compress",
            _dicts_of(messages),
            seconds=COMPRESS_S if request.seconds is None else min(COMPRESS_S, request.seconds),
            opaque=("current_tokens",),
            current_tokens=request.tokens,
            focus_topic=request.focus or None,
            force=request.is_asked_for,
            **({"memory_context": request.memory} if request.memory else {}),
        )
        if self._is_sidelined or given is None:
            return None
        try:
            after = await run_within(lambda: from_dicts(given, messages) if len(given) else (), USUAL_S, self._clock)
        except PluginError as problem:
            self._sideline(f"returned an invalid transcript: {problem.__cause__ or problem}")
            return None
        return CompactedMessages(after, "engine") if after and is_shorter(after, messages) else None

    async def confirm_compaction(self) -> None:
        self._awaits_count = True
        engine = self._engine
        if engine is not None:
            engine.instance.last_prompt_tokens = -1
            engine.instance.awaiting_real_usage_after_compression = True  # pyright: ignore[reportAttributeAccessIssue]
        if not self._is_sidelined:
            await self._note("record_completed_compaction", used_fallback=False)
        await self._note(
            "on_session_start",
            self._session,
            **self._facts(boundary_reason="compression", old_session_id=self._session),
        )

    async def record_usage(self, usage: Usage | None) -> None:
        counted = as_dict(canonical(usage)) if usage is not None and usage.total else {}
        if counted or self._awaits_count:
            self._awaits_count = False
            await self._call("update_from_response", counted)

    async def take_over(
        self,
        old: ContextKeeper,
        conversation: ConversationInfo,
        previous: Sequence[Message],
        *,
        carry_over: bool = False,
    ) -> None:
        if not isinstance(old, EngineHost):
            return
        self._engine, left, self._followed = old.hand_over()
        if left is None or self._engine is None:
            return
        self._conversation = conversation
        await self._note("on_session_end", left.session, _dicts_of(previous))
        await self.reset()
        carried = {"carry_over_context": True} if carry_over else {}
        await self._start(old_session_id=left.session, **carried)
        if carry_over:
            await self._note("carry_over_new_session_context", left.session, conversation.session)

    def hand_over(self) -> tuple[HostedEngine | None, ConversationInfo | None, Endpoint | None]:
        """Give up the engine, with the conversation it was in and the model that it knows."""
        had = (self._engine, self._conversation, self._followed)
        self._engine = self._conversation = self._followed = None
        return had

    async def reset(self) -> None:
        await self._note("on_session_reset")

    async def close(self, messages: Sequence[Message]) -> None:
        engine = self._engine
        if engine is not None and not engine.executor.is_blocked:
            await self._note("on_session_end", self._session, _dicts_of(messages))
            if not engine.is_shared:
                await self._note("shutdown")
        self._engine = self._conversation = None

    async def status(self) -> dict[str, Any]:
        told = await self._call("get_status")
        return {"engine": self._name, **(cast("Mapping[str, Any]", told) if isinstance(told, Mapping) else {})}

    @property
    def _session(self) -> str:
        return self._conversation.session if self._conversation is not None else ""

    async def engine(self, conversation: ConversationInfo) -> HostedEngine:
        """If the engine cannot be built, the built-in keeper does not replace it: the caller learns why, and the next
        turn tries again."""
        self._move_to(conversation)
        said = len(self._unsaid)
        engine = await self._ready()
        if engine is None:
            del self._unsaid[said:]
            self._is_sidelined = False
            raise PluginError(self._problem)
        return engine

    def _move_to(self, conversation: ConversationInfo) -> None:
        if conversation != self._conversation:
            self._conversation, self._engine = conversation, None

    async def _ready(self) -> HostedEngine | None:
        """None while the built-in keeper replaces it."""
        if self._is_sidelined or self._conversation is None:
            return None
        if self._engine is None:
            try:
                self._engine = await self._build()
            except PluginError as fault:
                self._sideline(str(fault))
                return None
            if self._engine.is_shared:
                self._tell(
                    f"Context engine {self._name} cannot be copied, so all conversations in this process share it."
                )
            self._followed = None
            await self._follow(self._conversation.endpoint)
            await self._start(hermes_home=str(self._home))
        return self._engine

    async def _follow(self, endpoint: Endpoint) -> None:
        """Tell the engine which model answers, whenever that changes."""
        if endpoint == self._followed or await self._ready() is None or endpoint == self._followed:
            return
        self._followed = endpoint
        await self._call(
            "update_model",
            model=endpoint.model,
            context_length=endpoint.window or UNKNOWN_WINDOW,
            base_url=endpoint.base_url,
            provider=endpoint.provider,
            api_mode=endpoint.wire,
        )

    async def _start(self, **facts: Any) -> None:
        """An engine that fails to start is not used; another is built for the next turn."""
        endpoint, engine = self._followed, self._engine
        if endpoint is not None:
            facts |= {"model": endpoint.model, "context_length": endpoint.window or UNKNOWN_WINDOW}
        if engine is None or self._is_sidelined:
            self._engine = None
            return
        try:
            await engine.call("on_session_start", self._session, seconds=USUAL_S, **self._facts(**facts))
        except PluginError as fault:
            self._engine = None
            self._sideline(f"{fault} in on_session_start")

    def _facts(self, **facts: Any) -> dict[str, Any]:
        """The facts for the engine, without empty ones."""
        conversation = self._conversation
        where = {} if conversation is None else {"platform": conversation.platform, "conversation_id": conversation.key}
        return {name: value for name, value in (where | facts).items() if value not in (None, "")}

    async def _call(self, method: str, *args: object, seconds: float = USUAL_S, **keywords: Any) -> Any:
        """None if the engine lacks the method, or failed in it and is sidelined."""
        engine = await self._ready()
        if engine is None:
            return None
        try:
            return await engine.call(method, *args, seconds=seconds, **keywords)
        except PluginError as fault:
            self._handle_failure(fault, method)
            return None

    async def _note(self, method: str, *args: object, **keywords: Any) -> None:
        """Calls even a sidelined engine, because it must know what became of the conversation."""
        engine = self._engine
        if engine is None:
            return
        try:
            await engine.call(method, *args, seconds=LEAVING_S, **keywords)
        except PluginError as fault:
            log.warning("context engine %s %s in %s", self._name, fault, method)
            self._tell(f"Context engine {self._name} {fault} in {method}.")
            if fault.has_hung:
                self._engine = None

    def _handle_failure(self, fault: PluginError, method: str) -> None:
        """An engine that hung is abandoned, and another is built for the next turn."""
        if fault.has_hung:
            self._engine = None
        self._sideline(f"{fault} in {method}")

    def _sideline(self, problem: str) -> None:
        log.warning("context engine %s %s", self._name, problem)
        self._problem = problem
        if not self._is_sidelined:
            self._is_sidelined = True
            self._tell(f"Context engine {self._name} {problem}. Talaria's own takes over for this turn.")

    def _handler(self, name: str) -> Handler:
        async def handle(arguments: dict[str, Any], run: Run) -> str:  # noqa: ARG001
            live = _dicts_of(self._history)
            engine = await self._ready()
            if engine is None:
                return json.dumps({"error": f"Context engine {self._name} is not available in this turn."})
            try:
                return encode_result(
                    await engine.call("handle_tool_call", name, arguments, seconds=TOOL_S, messages=live)
                )
            except PluginError as fault:
                if fault.has_hung:
                    self._handle_failure(fault, name)
                return json.dumps({"error": f"{name} {fault}"})

        return handle


def _dicts_of(messages: Iterable[Message]) -> LateArgument:
    """The messages as they are now."""
    kept = tuple(messages)
    return LateArgument(lambda: to_dicts(kept))
