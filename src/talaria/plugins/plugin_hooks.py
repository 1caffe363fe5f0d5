"""The hooks that plugins register callbacks for, and the walk from what happens to who hears it.

Who listens to which hook, and what they answer.

A callback that raises is left out of that call; one that does not return in time is not called again before it has
returned. Both are its plugin's problem, and nobody else's.
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
from talaria.core.plugin_calls import BackgroundLoop, PluginError, as_text, call_or_await, run_within, select_keywords
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
        self._nobodys = ("?", BackgroundLoop())
        """Of callbacks that somebody has put into the table without us."""
        self._hanging: set[int] = set()
        self._clock = clock

    def add(self, owner: str, name: str, callback: Callback, background: BackgroundLoop) -> None:
        self.callbacks.setdefault(name, []).append(callback)
        self._owners[id(callback)] = (owner, background)

    @contextmanager
    def restore_on_exit(self) -> Generator[None]:
        """What is put into the table meanwhile goes again. Of those before none is missing at any moment: it may be a
        guard."""
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
        self._nobodys[1].close()

    async def invoke(self, name: str, **facts: Any) -> list[Any]:
        """What those who answer say, in the order in which they came."""
        answers: list[Any] = []
        for callback in tuple(self.callbacks.get(name, ())):
            answer = None if id(callback) in self._hanging else await self._answer(name, callback, facts)
            if answer is not None:
                answers.append(answer)
        return answers

    async def read(self, look: Callable[[], Any]) -> Any:
        """What has been through their hands may run their code when it is looked at; None if that fails."""
        try:
            return await run_within(look, HOOK_S, self._clock)
        except PluginError as fault:
            log.warning("what a plugin has changed cannot be used: it %s", fault)
            return None

    async def _answer(self, name: str, callback: Callback, facts: dict[str, Any]) -> Any:
        owner, background = self._owners.get(id(callback), self._nobodys)
        ended = partial(self._hanging.discard, id(callback))
        try:
            return await run_within(
                lambda: _call_back(callback, facts, background), HOOK_S, self._clock, when_late=ended
            )
        except PluginError as fault:
            log.warning("hook %s of plugin %s %s", name, owner, fault)
            if fault.has_hung:
                self._hanging.add(id(callback))
            self.problems.add(owner, f"hook {name}", fault)
            return None


def _call_back(callback: Callback, facts: Mapping[str, Any], background: BackgroundLoop) -> Any:
    told = select_keywords(callback, {"telemetry_schema_version": SCHEMA_VERSION, **facts})
    return _plain(call_or_await(lambda: callback(**told), background))


def _plain(answer: Any) -> Any:
    """As data that can be looked at without running code of theirs."""
    if isinstance(answer, str):
        return as_text(answer)
    if not isinstance(answer, dict):
        return answer
    return {as_text(key): _plain_value(key, value) for key, value in cast("dict[Any, Any]", answer).items()}


def _plain_value(key: Any, value: Any) -> Any:
    is_said = isinstance(value, str) or (key == "message" and value is not None)
    return as_text(value) if is_said else value


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
"""Every hook that Hermes has, and whether it is ever called here. The only list of them."""
FIRED = frozenset(name for name, is_called in _CALLED.items() if is_called)
VALID_HOOKS = frozenset(_CALLED)

_OF_RESULTS = ("post_tool_call", "transform_tool_result", "transform_terminal_output")
_FINISH = {"calls": "tool_calls", "length": "length", "refused": "content_filter"}
_EXIT_CODE = re.compile(r"\[exit code (-?\d+)\]\s*\Z")


class PluginHooks:
    """What of `Hooks` fires the table's."""

    def __init__(self, table: HookTable) -> None:
        self._table = table
        self._requests = 0
        """Of the turn."""
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
        return [text for answer in answers if (text := _read_context(answer))]

    async def after_turn(
        self, context: SessionContext, asked: str, answer: str, history: Sequence[Message], outcome: TurnOutcome
    ) -> None:
        if outcome == "completed" and self._has("post_llm_call"):
            told = {
                "user_message": asked,
                "assistant_response": answer,
                "conversation_history": to_dicts(history, with_context=False),
            }
            await self._fire("post_llm_call", context, **told)
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
            told = {"request_messages": sent, "message_count": len(sent), "user_message": self._asked}
            await self._fire("pre_api_request", context, **self._request(context, endpoint), **told)

    async def after_request(
        self, context: SessionContext, endpoint: Endpoint, answer: Assistant, seconds: float
    ) -> None:
        if self._has("post_api_request"):
            told = {
                "usage": as_dict(canonical(answer.usage)) if answer.usage else {},
                "api_duration": seconds,
                "assistant_message": to_dicts([answer])[0],
                "assistant_content": answer.text,
                "finish_reason": _FINISH.get(answer.stop, "stop"),
            }
            await self._fire("post_api_request", context, **self._request(context, endpoint), **told)

    async def request_failed(self, context: SessionContext, endpoint: Endpoint, failure: Exception) -> None:
        told = {"error": str(failure), "error_type": type(failure).__name__}
        await self._fire("api_request_error", context, **self._request(context, endpoint), **told)

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
        told = self._call(context, call)
        answers = await self._fire("pre_tool_call", context, **told)
        objection = next((objection for answer in answers if (objection := _objection(answer))), None)
        return objection or await self._table.read(lambda: _change(told["args"], call))

    async def after_call(
        self, context: SessionContext, call: ToolCall, result: ToolResult, seconds: float
    ) -> ToolResult:
        told = self._call(context, call)
        if call.name == "terminal" and self._has("transform_terminal_output"):
            command = {"command": told["args"].get("command", ""), "output": result.text, "env_type": "local"}
            command["returncode"] = _exit_code(result.text)
            result = _replace_text(result, await self._fire("transform_terminal_output", context, **command))
        status = {"duration_ms": round(seconds * 1000), **_status(result)}
        await self._fire("post_tool_call", context, **told, result=result.text, **status)
        answers = await self._fire("transform_tool_result", context, **told, result=result.text, **status)
        return _replace_text(result, answers)

    def _call(self, context: SessionContext, call: ToolCall) -> dict[str, Any]:
        named = {"tool_name": call.name, "args": _arguments(call), "tool_call_id": call.id}
        return {**named, "api_request_id": self._request_id(context), "middleware_trace": []}

    def _has(self, name: str) -> bool:
        return bool(self._table.callbacks.get(name))

    async def _fire(self, name: str, context: SessionContext, **told: Any) -> list[Any]:
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
        return await self._table.invoke(name, **{**where, **told})


def _arguments(call: ToolCall) -> dict[str, Any]:
    try:
        return msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return {}


def _change(shown: Mapping[str, Any], call: ToolCall) -> Change | None:
    """Some write into what they are shown."""
    written = json.dumps(shown, default=str)
    return Change(written) if json.loads(written) != _arguments(call) else None


def _exit_code(output: str) -> int | None:
    """As our terminal tells it; None: the command was stopped, or never began."""
    found = _EXIT_CODE.search(output)
    return int(found[1]) if found else None


def _status(result: ToolResult) -> dict[str, Any]:
    """Tools of plugins tell their errors as JSON."""
    if not result.is_error and not result.text.startswith('{"error":'):
        return {"status": "ok", "error_type": None, "error_message": None}
    return {"status": "error", "error_type": "ToolFailed", "error_message": result.text}


def _read_context(answer: object) -> str:
    text = cast("dict[str, Any]", answer).get("context") if isinstance(answer, dict) else answer
    return text if isinstance(text, str) else ""


def _objection(answer: object) -> Objection | None:
    if not isinstance(answer, dict):
        return None
    fields = cast("dict[str, Any]", answer)
    action = fields.get("action")
    match action if isinstance(action, str) else None:
        case "block":
            return Block(str(fields.get("message") or "A plugin does not allow this call."))
        case "approve":
            return Doubt(str(fields.get("message") or "A plugin wants a person to decide."))
        case _:
            return None


def _replace_text(result: ToolResult, answers: Sequence[Any]) -> ToolResult:
    text = next((answer for answer in answers if isinstance(answer, str)), None)
    return result if text is None else msgspec.structs.replace(result, text=_short(text))


def _short(text: str) -> str:
    """No longer than results are that nobody has changed."""
    encoded = text.encode("utf-8", "replace")
    left_out = len(encoded) - HEAD_BYTES - TAIL_BYTES
    if left_out <= NOTICE_BYTES:
        return text
    head, tail = encoded[:HEAD_BYTES].decode("utf-8", "ignore"), encoded[-TAIL_BYTES:].decode("utf-8", "ignore")
    return f"{head}\n\n[… {left_out:,} bytes of what a plugin made of this are left out …]\n\n{tail}"
