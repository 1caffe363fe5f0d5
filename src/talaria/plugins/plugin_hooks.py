"""The hooks that plugins register callbacks for, when each is called, and what the answers do.

A callback that raises is skipped; one that does not return in time is not called again before it has returned. Both are
problems of its plugin only.
"""

import json
import logging
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import msgspec

from talaria.agent.hooks import Block, Change, Doubt, LeaveReason, Notify, Objection, SessionContext
from talaria.context.engine import as_dict, canonical
from talaria.core.clock import Clock
from talaria.core.entries import TurnOutcome
from talaria.core.ids import SessionId
from talaria.core.message_dicts import to_dicts
from talaria.core.messages import Assistant, Message, ToolCall, ToolResult
from talaria.core.plugin_calls import BackgroundLoop, PluginError, call_or_await, run_within, select_keywords
from talaria.core.text import as_text
from talaria.plugins.registered import Problems
from talaria.providers.base import Endpoint
from talaria.tools.output import HEAD_BYTES, NOTICE_BYTES, TAIL_BYTES

HOOK_S = 10.0
SCHEMA_VERSION = 1

Callback = Callable[..., Any]
log = logging.getLogger(__name__)


class HookTable:
    def __init__(self, clock: Clock, problems: Problems) -> None:
        self.callbacks: dict[str, list[Callback]] = {}
        self.problems = problems
        self._owners: dict[int, tuple[str, BackgroundLoop]] = {}
        self._unowned = ("?", BackgroundLoop())
        """For callbacks that were put into the table directly."""
        self._hanging: set[int] = set()
        self._clock = clock

    def add(self, owner: str, name: str, callback: Callback, background: BackgroundLoop) -> None:
        self.callbacks.setdefault(name, []).append(callback)
        self._owners[id(callback)] = (owner, background)

    @contextmanager
    def restore_on_exit(self) -> Generator[None]:
        """Removes what is put into the table meanwhile. No earlier callback is ever missing: it may be a guard."""
        kept = [(name, callbacks, list(callbacks)) for name, callbacks in tuple(self.callbacks.items())]
        try:
            yield
        finally:
            for name, callbacks, content in kept:
                callbacks[:] = content
                self.callbacks[name] = callbacks
            for name in self.callbacks.keys() - {name for name, _, _ in kept}:
                del self.callbacks[name]

    def close(self) -> None:
        self._unowned[1].close()

    async def invoke(self, name: str, **facts: Any) -> list[Any]:
        """The answers, in the order of registration."""
        answers: list[Any] = []
        for callback in tuple(self.callbacks.get(name, ())):
            if id(callback) in self._hanging:
                continue
            owner, background = self._owners.get(id(callback), self._unowned)
            call = partial(_call_back, callback, facts, background)
            ended = partial(self._hanging.discard, id(callback))
            try:
                answer = await run_within(call, HOOK_S, self._clock, when_late=ended)
            except PluginError as fault:
                log.warning("hook %s of plugin %s %s", name, owner, fault)
                if fault.has_hung:
                    self._hanging.add(id(callback))
                self.problems.add(owner, f"hook {name}", fault)
                continue
            if answer is not None:
                answers.append(answer)
        return answers

    async def read(self, look: Callable[[], Any]) -> Any:
        """Reading what plugins were given may run their code. None if it fails."""
        try:
            return await run_within(look, HOOK_S, self._clock)
        except PluginError as fault:
            log.warning("what a plugin has changed cannot be used: it %s", fault)
            return None


def _call_back(callback: Callback, facts: Mapping[str, Any], background: BackgroundLoop) -> Any:
    """The answer as data that can be read without running the plugin's code."""
    given = select_keywords(callback, {"telemetry_schema_version": SCHEMA_VERSION, **facts})
    answer = call_or_await(lambda: callback(**given), background)
    if isinstance(answer, str):
        return as_text(answer)
    if not isinstance(answer, dict):
        return answer
    plain: dict[str, Any] = {}
    for key, value in cast("dict[Any, Any]", answer).items():
        is_text = isinstance(value, str) or (key == "message" and value is not None)
        plain[as_text(key)] = as_text(value) if is_text else value
    return plain


_CALLED: dict[str, bool] = {
    "pre_tool_call": True,
    "post_tool_call": True,
    "transform_tool_result": True,
    "transform_terminal_output": True,
    "pre_llm_call": True,
    "post_llm_call": True,
    "transform_llm_output": True,
    "pre_api_request": True,
    "post_api_request": True,
    "api_request_error": True,
    "on_session_start": True,
    "on_session_end": True,
    "on_session_finalize": True,
    "on_session_reset": True,
    "pre_gateway_dispatch": True,
    "pre_approval_request": True,
    "post_approval_response": True,
    "pre_verify": False,
    "subagent_start": False,
    "subagent_stop": False,
    "kanban_task_claimed": False,
    "kanban_task_completed": False,
    "kanban_task_blocked": False,
}
"""Every hook of Hermes, and whether it is ever called here. The only list of them."""
FIRED = frozenset(name for name, is_called in _CALLED.items() if is_called)
VALID_HOOKS = frozenset(_CALLED)

_OF_RESULTS = ("post_tool_call", "transform_tool_result", "transform_terminal_output")
_FINISH = {"calls": "tool_calls", "length": "length", "refused": "content_filter"}
_EXIT_CODE = re.compile(r"\[exit code (-?\d+)\]\s*\Z")


class PluginHooks:
    """The part of `Hooks` that calls callbacks of plugins."""

    def __init__(self, table: HookTable) -> None:
        self._table = table
        self._requests = 0
        """In this turn."""
        self._asked = ""

    is_empty = False

    @property
    def wants_results(self) -> bool:
        return any(self._has(name) for name in _OF_RESULTS)

    async def before_turn(
        self,
        context: SessionContext,
        asked: str,
        history: Sequence[Message],
        tell: Notify,  # noqa: ARG002
    ) -> Sequence[str]:
        self._requests, self._asked = 0, asked
        if not history:
            await self._fire("on_session_start", context)
        if not self._has("pre_llm_call"):
            return ()
        answers = await self._fire(
            "pre_llm_call",
            context,
            user_message=asked,
            conversation_history=to_dicts(history, with_context=False),
            is_first_turn=not history,
            sender_id=context.person,
        )
        texts = [cast("dict[str, Any]", one).get("context") if isinstance(one, dict) else one for one in answers]
        return [text for text in texts if isinstance(text, str) and text]

    async def after_turn(
        self, context: SessionContext, asked: str, answer: str, history: Sequence[Message], outcome: TurnOutcome
    ) -> None:
        if outcome == "completed" and self._has("post_llm_call"):
            facts = {
                "user_message": asked,
                "assistant_response": answer,
                "conversation_history": to_dicts(history, with_context=False),
            }
            await self._fire("post_llm_call", context, **facts)
        await self._fire(
            "on_session_end", context, completed=outcome == "completed", interrupted=outcome == "interrupted"
        )

    async def session_left(
        self,
        context: SessionContext,
        messages: Sequence[Message],  # noqa: ARG002
        successor: SessionId | None,
        reason: LeaveReason,
    ) -> None:
        await self._fire("on_session_finalize", context, reason=reason)
        if successor:
            ids = {"session_id": successor, "old_session_id": context.session, "new_session_id": successor}
            await self._fire("on_session_reset", context, reason=reason, **ids)

    async def revise(self, context: SessionContext, text: str) -> str:
        answers = await self._fire("transform_llm_output", context, response_text=text)
        return next((answer for answer in answers if isinstance(answer, str) and answer), text)

    async def before_request(self, context: SessionContext, endpoint: Endpoint, messages: Iterable[Message]) -> None:
        self._requests += 1
        if self._has("pre_api_request"):
            sent = to_dicts(messages)
            facts = {"request_messages": sent, "message_count": len(sent), "user_message": self._asked}
            await self._fire("pre_api_request", context, **self._request(context, endpoint), **facts)

    async def after_request(
        self, context: SessionContext, endpoint: Endpoint, answer: Assistant, seconds: float
    ) -> None:
        if self._has("post_api_request"):
            facts = {
                "usage": as_dict(canonical(answer.usage)) if answer.usage else {},
                "api_duration": seconds,
                "assistant_message": to_dicts([answer])[0],
                "assistant_content": answer.text,
                "finish_reason": _FINISH.get(answer.stop, "stop"),
            }
            await self._fire("post_api_request", context, **self._request(context, endpoint), **facts)

    async def request_failed(self, context: SessionContext, endpoint: Endpoint, failure: Exception) -> None:
        facts = {"error": str(failure), "error_type": type(failure).__name__}
        await self._fire("api_request_error", context, **self._request(context, endpoint), **facts)

    def _request(self, context: SessionContext, endpoint: Endpoint) -> dict[str, Any]:
        return {
            "model": endpoint.model,
            "provider": endpoint.provider,
            "base_url": endpoint.base_url,
            "api_mode": endpoint.wire,
            "api_call_count": self._requests,
            "api_request_id": self._request_id(context),
        }

    def _request_id(self, context: SessionContext) -> str:
        return f"{context.turn}-{self._requests}"

    async def before_call(self, context: SessionContext, call: ToolCall) -> Objection | None:
        if not self._has("pre_tool_call"):
            return None
        facts = self._call(context, call)
        for answer in await self._fire("pre_tool_call", context, **facts):
            fields = cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}
            action, message = fields.get("action"), fields.get("message")
            if not isinstance(action, str):
                continue
            if action == "block":
                return Block(str(message or "A plugin does not allow this call."))
            if action == "approve":
                return Doubt(str(message or "A plugin wants a person to decide."))

        def find_change() -> Change | None:
            """Some plugins write into the arguments that they are shown."""
            written = json.dumps(facts["args"], default=str)
            return Change(written) if json.loads(written) != _arguments(call) else None

        return await self._table.read(find_change)

    async def after_call(
        self, context: SessionContext, call: ToolCall, result: ToolResult, seconds: float
    ) -> ToolResult:
        facts = self._call(context, call)
        if call.name == "terminal" and self._has("transform_terminal_output"):
            command = {"command": facts["args"].get("command", ""), "output": result.text, "env_type": "local"}
            found = _EXIT_CODE.search(result.text)
            command["returncode"] = int(found[1]) if found else None  # None: it was stopped, or never started
            result = _replace_text(result, await self._fire("transform_terminal_output", context, **command))
        status = {"duration_ms": round(seconds * 1000), "status": "ok", "error_type": None, "error_message": None}
        if result.is_error or result.text.startswith('{"error":'):  # as tools of plugins report errors
            status |= {"status": "error", "error_type": "ToolFailed", "error_message": result.text}
        await self._fire("post_tool_call", context, **facts, result=result.text, **status)
        answers = await self._fire("transform_tool_result", context, **facts, result=result.text, **status)
        return _replace_text(result, answers)

    def _call(self, context: SessionContext, call: ToolCall) -> dict[str, Any]:
        named = {"tool_name": call.name, "args": _arguments(call), "tool_call_id": call.id}
        return {**named, "api_request_id": self._request_id(context), "middleware_trace": []}

    def _has(self, name: str) -> bool:
        return bool(self._table.callbacks.get(name))

    async def _fire(self, name: str, context: SessionContext, **facts: Any) -> list[Any]:
        if not self._has(name):
            return []
        where = {
            "session_id": context.session,
            "task_id": context.session,
            "turn_id": context.turn or "",
            "conversation_id": context.conversation,
            "gateway_session_key": context.conversation,
            "platform": context.platform,
            "model": context.model,
        }
        return await self._table.invoke(name, **{**where, **facts})


def _arguments(call: ToolCall) -> dict[str, Any]:
    try:
        return msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return {}


def _replace_text(result: ToolResult, answers: Sequence[Any]) -> ToolResult:
    """With the first text of the answers, shortened like any other result."""
    text = next((answer for answer in answers if isinstance(answer, str)), None)
    if text is None:
        return result
    encoded = text.encode("utf-8", "replace")
    left_out = len(encoded) - HEAD_BYTES - TAIL_BYTES
    if left_out > NOTICE_BYTES:
        head, tail = encoded[:HEAD_BYTES].decode("utf-8", "ignore"), encoded[-TAIL_BYTES:].decode("utf-8", "ignore")
        text = f"{head}\n\n[… {left_out:,} bytes of what a plugin made of this are left out …]\n\n{tail}"
    return msgspec.structs.replace(result, text=text)
