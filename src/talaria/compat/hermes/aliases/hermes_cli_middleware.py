"""`hermes_cli.middleware`: its words. Nothing is registered, so everything passes as it is."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

TOOL_REQUEST_MIDDLEWARE = "tool_request"
TOOL_EXECUTION_MIDDLEWARE = "tool_execution"
LLM_REQUEST_MIDDLEWARE = "llm_request"
LLM_EXECUTION_MIDDLEWARE = "llm_execution"
VALID_MIDDLEWARE = {
    TOOL_REQUEST_MIDDLEWARE,
    TOOL_EXECUTION_MIDDLEWARE,
    LLM_REQUEST_MIDDLEWARE,
    LLM_EXECUTION_MIDDLEWARE,
}


@dataclass
class RequestMiddlewareResult:
    payload: Any
    original_payload: Any
    changed: bool = False
    trace: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


def apply_llm_request_middleware(request: dict[str, Any], **_: Any) -> RequestMiddlewareResult:
    return RequestMiddlewareResult(request, request)


def apply_tool_request_middleware(tool_name: str, args: dict[str, Any], **_: Any) -> RequestMiddlewareResult:  # noqa: ARG001
    return RequestMiddlewareResult(args, args)


def run_llm_execution_middleware(request: dict[str, Any], next_call: Callable[[dict[str, Any]], Any], **_: Any) -> Any:
    return next_call(request)


def run_tool_execution_middleware(
    tool_name: str,  # noqa: ARG001
    args: dict[str, Any],
    next_call: Callable[[dict[str, Any]], Any],
    **_: Any,
) -> Any:
    return next_call(args)
