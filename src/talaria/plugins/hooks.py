"""The hooks that plugins register callbacks for, and the walk from what happens to who hears it.

A callback that raises is left out of that call; one that does not return in time is not called again. Both are its
plugin's problem (`problems`), and nobody else's.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from talaria.agent.hooks import Block, Doubt, Equipment, Facts, Objection, Tell
from talaria.context.counting import as_dict, canonical
from talaria.foreign import Broke, fitting, returned, within
from talaria.model.clock import Clock
from talaria.model.dialect import as_dicts
from talaria.model.entries import TurnOutcome
from talaria.model.ids import SessionId
from talaria.model.messages import Message, ToolCall, ToolResult
from talaria.model.usage import Usage
from talaria.providers.base import Endpoint

HOOK_S = 10.0
SCHEMA_VERSION = 1

FIRED = frozenset(
    {
        "pre_tool_call",
        "post_tool_call",
        "transform_tool_result",
        "transform_terminal_output",
        "pre_llm_call",
        "post_llm_call",
        "transform_llm_output",
        "pre_api_request",
        "post_api_request",
        "api_request_error",
        "on_session_start",
        "on_session_end",
        "on_session_finalize",
        "on_session_reset",
    }
)
VALID_HOOKS = FIRED | {
    "pre_verify",
    "subagent_start",
    "subagent_stop",
    "pre_gateway_dispatch",
    "pre_approval_request",
    "post_approval_response",
    "kanban_task_claimed",
    "kanban_task_completed",
    "kanban_task_blocked",
}
"""Of these, the ones that are not fired here wait for what they tell of."""

Callback = Callable[..., Any]
log = logging.getLogger(__name__)


class HookTable:
    def __init__(self, clock: Clock) -> None:
        self.callbacks: dict[str, list[Callback]] = {}
        self.problems: list[tuple[str, str]] = []
        """Of which plugin, and what."""
        self._owners: dict[int, str] = {}
        self._clock = clock

    def add(self, owner: str, name: str, callback: Callback) -> None:
        self.callbacks.setdefault(name, []).append(callback)
        self._owners[id(callback)] = owner

    async def invoke(self, name: str, **facts: Any) -> list[Any]:
        """What those who answer say, in the order in which they came."""
        answers: list[Any] = []
        for callback in tuple(self.callbacks.get(name, ())):
            try:
                answer = await within(lambda heard=callback: _heard(heard, facts), HOOK_S, self._clock)
            except Broke as fault:
                self._blame(name, callback, fault)
                continue
            if answer is not None:
                answers.append(answer)
        return answers

    def _blame(self, name: str, callback: Callback, fault: Broke) -> None:
        owner = self._owners.get(id(callback), "?")
        log.warning("hook %s of plugin %s %s", name, owner, fault)
        if fault.has_hung:
            self.callbacks[name].remove(callback)
        self.problems.append((owner, f"hook {name} {fault}{' and is left out' if fault.has_hung else ''}"))


def _heard(callback: Callback, facts: dict[str, Any]) -> Any:
    return returned(callback, **fitting(callback, {"telemetry_schema_version": SCHEMA_VERSION, **facts}))


class PluginHooks:
    """A `Hooks` that fires the table's."""

    def __init__(self, table: HookTable) -> None:
        self._table = table

    async def equip(self, facts: Facts) -> Equipment:  # noqa: ARG002
        return Equipment()

    async def before_turn(self, facts: Facts, asked: str, history: Sequence[Message], tell: Tell) -> Sequence[str]:  # noqa: ARG002
        if not history:
            await self._fire("on_session_start", facts)
        if not self._has("pre_llm_call"):
            return ()
        answers = await self._fire(
            "pre_llm_call",
            facts,
            user_message=asked,
            conversation_history=as_dicts(history),
            is_first_turn=not history,
            sender_id=facts.person,
        )
        return [text for answer in answers if (text := _added(answer))]

    async def after_turn(
        self, facts: Facts, asked: str, answer: str, history: Sequence[Message], outcome: TurnOutcome
    ) -> None:
        if outcome == "completed" and self._has("post_llm_call"):
            told = {"user_message": asked, "assistant_response": answer, "conversation_history": as_dicts(history)}
            await self._fire("post_llm_call", facts, **told)
        await self._fire(
            "on_session_end", facts, completed=outcome == "completed", interrupted=outcome == "interrupted"
        )

    async def session_left(self, facts: Facts, messages: Sequence[Message], successor: SessionId | None) -> None:  # noqa: ARG002
        reason = "new" if successor else "end"
        await self._fire("on_session_finalize", facts, reason=reason)
        if successor:
            ids = {"session_id": successor, "old_session_id": facts.session, "new_session_id": successor}
            await self._fire("on_session_reset", facts, reason=reason, **ids)

    async def revised(self, facts: Facts, text: str) -> str:
        answers = await self._fire("transform_llm_output", facts, response_text=text)
        return next((answer for answer in answers if isinstance(answer, str) and answer), text)

    async def before_request(self, facts: Facts, endpoint: Endpoint, messages: int) -> None:
        await self._fire("pre_api_request", facts, **_endpoint(endpoint), message_count=messages)

    async def after_request(self, facts: Facts, endpoint: Endpoint, usage: Usage | None, seconds: float) -> None:
        if self._has("post_api_request"):
            counted = as_dict(canonical(usage)) if usage else {}
            told = {**_endpoint(endpoint), "usage": counted, "api_duration": seconds}
            await self._fire("post_api_request", facts, **told)

    async def request_failed(self, facts: Facts, endpoint: Endpoint, failure: Exception) -> None:
        told = {**_endpoint(endpoint), "error": str(failure), "error_type": type(failure).__name__}
        await self._fire("api_request_error", facts, **told)

    async def before_call(self, facts: Facts, call: ToolCall) -> Objection | None:
        if not self._has("pre_tool_call"):
            return None
        answers = await self._fire("pre_tool_call", facts, **_call(call))
        return next((objection for answer in answers if (objection := _objection(answer))), None)

    async def after_call(self, facts: Facts, call: ToolCall, result: ToolResult, seconds: float) -> ToolResult:
        told = _call(call)
        if call.name == "terminal" and self._has("transform_terminal_output"):
            command = {"command": told["args"].get("command", ""), "output": result.text, "env_type": "local"}
            result = _replaced(result, await self._fire("transform_terminal_output", facts, **command))
        status = {"duration_ms": round(seconds * 1000), "status": "error" if result.is_error else "success"}
        await self._fire("post_tool_call", facts, **told, result=result.text, **status)
        answers = await self._fire("transform_tool_result", facts, **told, result=result.text, **status)
        return _replaced(result, answers)

    async def before_compaction(self, facts: Facts, messages: Sequence[Message]) -> str:  # noqa: ARG002
        return ""

    def _has(self, name: str) -> bool:
        return bool(self._table.callbacks.get(name))

    async def _fire(self, name: str, facts: Facts, **told: Any) -> list[Any]:
        if not self._has(name):
            return []
        where = {
            "session_id": facts.session,
            "task_id": facts.session,
            "turn_id": facts.turn or "",
            "conversation_id": facts.conversation,
            "gateway_session_key": facts.conversation,
            "platform": facts.platform,
            "model": facts.model,
        }
        return await self._table.invoke(name, **{**where, **told})


def _endpoint(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "model": endpoint.model,
        "provider": endpoint.provider,
        "base_url": endpoint.base_url,
        "api_mode": endpoint.wire,
    }


def _call(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        arguments = {}
    return {"tool_name": call.name, "args": arguments, "tool_call_id": call.id}


def _added(answer: object) -> str:
    text = cast("dict[str, Any]", answer).get("context") if isinstance(answer, dict) else answer
    return text if isinstance(text, str) else ""


def _objection(answer: object) -> Objection | None:
    if not isinstance(answer, dict):
        return None
    fields = cast("dict[str, Any]", answer)
    match fields.get("action"):
        case "block":
            return Block(str(fields.get("message") or "A plugin does not allow this call."))
        case "approve":
            return Doubt(str(fields.get("message") or "A plugin wants a person to decide."))
        case _:
            return None


def _replaced(result: ToolResult, answers: Sequence[Any]) -> ToolResult:
    text = next((answer for answer in answers if isinstance(answer, str)), None)
    return result if text is None else msgspec.structs.replace(result, text=text)
