"""Hosts a plugin's context engine for one live session: owns the moments, the time limits and the visible fallback.

An engine that raises, hangs or returns what no endpoint would take is told to the person, and the built-in keeper
stands in for the rest of the turn. One that has hung is left to its thread, and another is built for the next turn.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from talaria.context.base import Keeper, Place, Shortened, Wish
from talaria.context.counting import as_dict, canonical
from talaria.context.engine import ContextEngine
from talaria.context.progress import is_shorter
from talaria.foreign import Broke, Lane, fitting
from talaria.model.dialect import Illegal, as_dicts, from_dicts
from talaria.model.messages import Message
from talaria.model.usage import Usage
from talaria.providers.base import Endpoint
from talaria.providers.history import History
from talaria.tools.base import Run, Tool
from talaria.tools.schema_tool import BadSchema, SchemaTool, as_result, spec_of

USUAL_S = 30.0
COMPRESS_S = 300.0
"""It may ask a model for its summaries."""
TOOL_S = 300.0
UNKNOWN_WINDOW = 128_000

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Instance:
    engine: ContextEngine
    lane: Lane
    """Of this engine: where several sessions share it, they share this."""
    warning: str = ""


Build = Callable[[], Awaitable[Instance]]
"""Raises `Broke`."""


class EngineHost:
    def __init__(self, name: str, build: Build, builtin: Keeper, *, is_automatic: bool = True) -> None:
        """`is_automatic`: it compacts by itself, and not only when it is asked to."""
        self._name = name
        self._build = build
        self._builtin = builtin
        self._is_automatic = is_automatic
        self._instance: Instance | None = None
        self._place: Place | None = None
        self._followed: Endpoint | None = None
        self._history = History()
        self._unsaid: list[str] = []
        self._tell: Callable[[str], None] = self._unsaid.append
        self._is_sidelined = False
        self._is_turn_new = True
        self._awaits_count = False

    async def open(self, place: Place) -> Sequence[Tool]:
        if place != self._place:
            self._place, self._instance = place, None
        schemas = await self._call("get_tool_schemas")
        return [*self._tools(cast("object", schemas))]

    def begin_turn(self, history: History, tell: Callable[[str], None]) -> None:
        self._history = history
        self._tell = tell
        self._is_turn_new = True
        self._is_sidelined = False
        while self._unsaid:
            tell(self._unsaid.pop(0))

    async def is_due(self, endpoint: Endpoint, tokens: int, *, is_blocked: bool) -> bool:
        await self._follow(endpoint)
        is_wanted = self._is_automatic and await self._is_wanted(tokens)
        if self._is_sidelined:
            return self._is_automatic and await self._builtin.is_due(endpoint, tokens, is_blocked=is_blocked)
        return is_wanted

    async def _is_wanted(self, tokens: int) -> bool:
        is_new, self._is_turn_new = self._is_turn_new, False
        if is_new:
            if await self._call("should_compress_preflight", as_dicts(self._history)):
                return True
            if await self._call("should_defer_preflight_to_real_usage", tokens):
                return False
        return bool(await self._call("should_compress", tokens))

    async def compact(self, messages: Sequence[Message], wish: Wish) -> Shortened | None:
        if wish.keep_last is not None:
            self._tell(f"Context engine {self._name} cannot choose what stays; Talaria's own does it.")
            return await self._builtin.compact(messages, wish)
        made = await self._compressed(messages, wish)
        if made is None and wish.has_overflowed and not self._is_sidelined:
            self._sideline("left a conversation as it is that its model does not take")
        return await self._builtin.compact(messages, wish) if self._is_sidelined else made

    async def _compressed(self, messages: Sequence[Message], wish: Wish) -> Shortened | None:
        """None: it has nothing to leave out, or it failed."""
        if wish.is_asked_for and await self._call("has_content_to_compress", as_dicts(messages)) is False:
            return None
        given = await self._call(
            "compress",
            as_dicts(messages),
            seconds=COMPRESS_S if wish.seconds is None else min(COMPRESS_S, wish.seconds),
            opaque=("current_tokens",),
            current_tokens=wish.tokens,
            focus_topic=wish.focus or None,
            force=wish.is_asked_for,
            **({"memory_context": wish.memory} if wish.memory else {}),
        )
        if self._is_sidelined or not given:
            return None
        try:
            after = from_dicts(given, messages)
        except Illegal as problem:
            self._sideline(f"returned an illegal transcript: {problem}")
            return None
        if not is_shorter(after, messages):
            return None
        await self._call("on_session_end", self._session, as_dicts(messages))
        return Shortened(after, "engine")

    async def stands(self) -> None:
        self._awaits_count = True
        await self._note(_await_count)
        await self._note(lambda engine: _run(engine, "record_completed_compaction", used_fallback=self._is_sidelined))
        facts = self._facts(boundary_reason="compression", old_session_id=self._session)
        await self._note(lambda engine: _run(engine, "on_session_start", self._session, **facts))

    async def answered(self, usage: Usage | None) -> None:
        counted = as_dict(canonical(usage)) if usage is not None and usage.total else {}
        if counted or self._awaits_count:
            self._awaits_count = False
            await self._call("update_from_response", counted)

    async def move(self, place: Place, previous: Sequence[Message], *, carry_over: bool = False) -> None:
        left, self._is_sidelined = self._place, False
        if left is None or self._instance is None:
            self._place = None
            return
        await self._call("on_session_end", left.session, as_dicts(previous))
        await self.reset()
        self._place = place
        await self._start(old_session_id=left.session, carry_over_context=carry_over or None)
        if carry_over:
            await self._call("carry_over_new_session_context", left.session, place.session)

    async def reset(self) -> None:
        await self._call("on_session_reset")

    async def close(self, messages: Sequence[Message]) -> None:
        if self._instance is not None:
            await self._note(lambda engine: _run(engine, "on_session_end", self._session, as_dicts(messages)))
            await self._note(lambda engine: _run(engine, "shutdown"))
        self._instance = self._place = None

    async def status(self) -> dict[str, Any]:
        return {"engine": self._name, **(await self._call("get_status") or {})}

    @property
    def _session(self) -> str:
        assert self._place is not None  # noqa: S101  (opened before anything else)
        return self._place.session

    async def _ready(self) -> Instance | None:
        """None while the built-in stands in."""
        if self._instance is not None and self._instance.lane.is_lost:
            self._instance = None
        if self._is_sidelined or self._place is None:
            return None
        if self._instance is None:
            try:
                self._instance = await self._build()
            except Broke as fault:
                self._sideline(str(fault))
                return None
            if self._instance.warning:
                self._tell(self._instance.warning)
            self._followed = None
            await self._follow(self._place.endpoint)
            await self._start(hermes_home=str(self._place.home))
        return self._instance

    async def _follow(self, endpoint: Endpoint) -> None:
        """Tell the engine which model answers, whenever that changes."""
        if endpoint == self._followed or await self._ready() is None:
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
        endpoint = self._followed
        if endpoint is not None:
            facts |= {"model": endpoint.model, "context_length": endpoint.window or UNKNOWN_WINDOW}
        await self._call("on_session_start", self._session, **self._facts(**facts))

    def _facts(self, **facts: Any) -> dict[str, Any]:
        """Without those that say nothing."""
        assert self._place is not None  # noqa: S101
        named = {"platform": self._place.platform, "conversation_id": self._place.conversation, **facts}
        return {name: value for name, value in named.items() if value not in (None, "")}

    async def _call(
        self, method: str, *args: object, seconds: float = USUAL_S, opaque: Sequence[str] = (), **keywords: Any
    ) -> Any:
        """None if the engine lacks the method, or failed in it and is sidelined."""
        instance = await self._ready()
        if instance is None:
            return None
        try:
            return await instance.lane.call(
                lambda: _run(instance.engine, method, *args, opaque=opaque, **keywords), seconds
            )
        except Broke as fault:
            self._sideline(f"{fault} in {method}")
            return None

    async def _note(self, work: Callable[[ContextEngine], object]) -> None:
        """Also for an engine that is sidelined: it must know what became of the conversation."""
        instance = self._instance
        if instance is None or instance.lane.is_lost:
            return
        try:
            await instance.lane.call(lambda: work(instance.engine), USUAL_S)
        except Broke as fault:
            log.warning("context engine %s %s", self._name, fault)

    def _sideline(self, problem: str) -> None:
        log.warning("context engine %s %s", self._name, problem)
        if not self._is_sidelined:
            self._is_sidelined = True
            self._tell(f"Context engine {self._name} {problem}. Talaria's own takes over for this turn.")

    def _tools(self, schemas: object) -> list[Tool]:
        tools: list[Tool] = []
        for schema in cast("list[object]", schemas) if isinstance(schemas, list) else ():
            try:
                spec = spec_of(schema)
            except BadSchema as problem:
                self._tell(f"Context engine {self._name}: {problem}; that tool is left out.")
                continue
            tools.append(SchemaTool(spec, self._handler(spec.name)))
        return tools

    def _handler(self, name: str) -> Callable[[dict[str, Any], Run], Awaitable[str]]:
        async def handle(arguments: dict[str, Any], run: Run) -> str:  # noqa: ARG001
            live = as_dicts(self._history)
            instance = await self._ready()
            if instance is None:
                return json.dumps({"error": f"Context engine {self._name} is not available in this turn."})
            try:
                return await instance.lane.call(
                    lambda: as_result(_run(instance.engine, "handle_tool_call", name, arguments, messages=live)), TOOL_S
                )
            except Broke as fault:
                if fault.has_hung:
                    self._sideline(f"{fault} in {name}")
                return json.dumps({"error": f"{name} {fault}"})

        return handle


def _run(engine: ContextEngine, method: str, *args: object, opaque: Sequence[str] = (), **keywords: Any) -> Any:
    """Hooks that an engine lacks are skipped."""
    function = getattr(engine, method, None)
    return None if function is None else function(*args, **fitting(function, keywords, opaque))


def _await_count(engine: ContextEngine) -> None:
    engine.last_prompt_tokens = -1
    engine.awaiting_real_usage_after_compression = True  # pyright: ignore[reportAttributeAccessIssue]
