"""`agent.auxiliary_client`: small questions to a model, which the settings choose. From a thread, or awaited."""

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from talaria.compat.hermes.bound import require_bound
from talaria.context.engine import CanonicalUsage
from talaria.core.plugin_calls import select_keywords
from talaria.plugins.services import DEFAULT_S, LlmQuestion

PURPOSES = {"compression": "summary"}
"""Tasks that are called something else here. One that nobody knows is answered by the main model."""
_THOUGHTS = re.compile(r"<(think|thinking|thought|reasoning)>.*?</\1>", re.DOTALL | re.IGNORECASE)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplyMessage:
    content: str
    role: str = "assistant"
    tool_calls: None = None
    reasoning: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    message: ReplyMessage
    index: int = 0
    finish_reason: str = "stop"


@dataclass(frozen=True, slots=True)
class Completion:
    """As the answers of OpenAI's chat API are read."""

    choices: list[Choice]
    model: str
    usage: CanonicalUsage


def call_llm(
    task: str | None = None,
    *,
    provider: str | None = None,
    model: str | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
    main_runtime: object = None,
    messages: Sequence[Mapping[str, Any]] | None = None,
    temperature: float | None = None,  # noqa: ARG001  (the route's own)
    max_tokens: int | None = None,
    tools: object = None,
    timeout: float | None = None,
    extra_body: object = None,
    reasoning_config: object = None,
    api_mode: str | None = None,
    stream: bool = False,
    stream_options: object = None,  # noqa: ARG001
) -> Completion:
    """Raises `TalariaError`, `TimeoutError`, and `RuntimeError` where no conversation is open."""
    wishes = (provider, model, base_url, api_key, main_runtime, tools, extra_body, reasoning_config, api_mode)
    if any(wishes):
        _say_that_settings_choose()
    if stream:
        raise ValueError("Answers for plugins come whole: ask without stream.")
    if not messages:
        raise ValueError("There is nothing to ask: messages is empty.")
    seconds = float(timeout) if isinstance(timeout, int | float) and timeout > 0 else DEFAULT_S
    purpose = task or "plugin"
    question = LlmQuestion(messages, PURPOSES.get(purpose, purpose), max_tokens, seconds)
    here = require_bound()
    answer = here.bridge.run(lambda: here.ask(question), seconds)
    return Completion([Choice(ReplyMessage(answer.text))], answer.model, answer.counted)


async def async_call_llm(task: str | None = None, **wishes: Any) -> Completion:
    """As `call_llm`, for a caller that has an event loop of its own, or is on the application's."""
    return await asyncio.to_thread(call_llm, task, **select_keywords(call_llm, wishes))


def extract_content_or_reasoning(response: Any) -> str:
    """What was said, without thoughts; the thoughts if nothing else is there."""
    message = response.choices[0].message
    said = _THOUGHTS.sub("", _text(message, "content")).strip()
    return said or _text(message, "reasoning") or _text(message, "reasoning_content")


def _text(message: object, field: str) -> str:
    value = getattr(message, field, None)
    return value.strip() if isinstance(value, str) else ""


@cache
def _say_that_settings_choose() -> None:
    """Once, not at each call."""
    log.warning("A plugin wants a model, an address or tools of its own for a small question; the settings decide.")
