"""`agent.context_engine`, `agent.memory_provider`, `agent.redact`, `agent.auxiliary_client`, `agent.usage_pricing`.

What context engines and memory providers derive from, and small questions to a model with what they cost.
"""

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any, Literal, cast

import msgspec

from talaria.agent.budget import cost_usd
from talaria.compat.hermes.aliases.hermes_cli_config import cfg_get, load_config
from talaria.compat.hermes.bound import last_bound, require_bound
from talaria.context.engine import CanonicalUsage
from talaria.context.engine import ContextEngine as ContextEngine  # noqa: PLC0414  (passed on)
from talaria.core.messages import Usage
from talaria.core.plugin_calls import select_keywords
from talaria.memory.base import MemoryProvider as MemoryProvider  # noqa: PLC0414  (passed on)
from talaria.plugins.services import DEFAULT_S, LlmQuestion
from talaria.providers.base import Prices
from talaria.providers.catalog import catalog
from talaria.providers.provider_failures import HIDDEN, redact_secrets
from talaria.providers.wire_parts import clamp_count

log = logging.getLogger(__name__)

# Redaction: known secrets by value, others by their shape. It hides too much rather than too little.

MEMORY_CONTEXT_MAX_CHARS = 6_000
_HEAD_CHARS = 4_000
_TAIL_CHARS = 1_500
_SECRET_NAMES = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
_WHOLE = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:"
    r"[srp]k[-_][A-Za-z0-9_-]{16,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
    r"|xox[a-z]-[A-Za-z0-9-]{10,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|AIza[A-Za-z0-9_-]{30,}"
    r"|hf_[A-Za-z0-9]{20,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
    r")",
    re.DOTALL,
)
_AFTER_NAME = re.compile(
    r"(\bBearer\s+"
    r"|\b[\w.-]*(?:api[_-]?key|token|secret|passw(?:or)?d)[\"']?\s*[=:]\s*[\"']?"
    r"|\b[\w.-]*key[\"']?=[\"']?(?=[^\s&]*\d))"
    r"[^\s\"'&,;(){}<>$•]{6,}",
    re.IGNORECASE,
)


def redact_sensitive_text(text: object, **_: object) -> str:
    """Anything that is not text is read as its `str()`, None as nothing."""
    here = last_bound()
    known = (*here.environment.items(), *here.plugin_home.secrets().items()) if here else ()
    secrets = sorted((value for name, value in known if name.endswith(_SECRET_NAMES)), key=len, reverse=True)
    shown = redact_secrets("" if text is None else str(text), secrets)
    return _AFTER_NAME.sub(rf"\1{HIDDEN}", _WHOLE.sub(HIDDEN, shown))


def sanitize_memory_context(memory_context: object) -> str:
    """Without secrets; of a long text the beginning and the end."""
    text = redact_sensitive_text(memory_context).strip()
    if len(text) <= MEMORY_CONTEXT_MAX_CHARS:
        return text
    return f"{text[:_HEAD_CHARS]}\n[… cut …]\n{text[-_TAIL_CHARS:]}"


# Questions: from a thread, or awaited. The settings choose the model.

PURPOSES = {"compression": "summary"}
"""Tasks that have another name here. Unknown tasks go to the main model."""
_THOUGHTS = re.compile(r"<(think|thinking|thought|reasoning)>.*?</\1>", re.DOTALL | re.IGNORECASE)


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
    """In the form of answers of OpenAI's chat API."""

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
    """Raises `TalariaError`, `TimeoutError`, and `RuntimeError` if no conversation is open."""
    ignored = (provider, model, base_url, api_key, main_runtime, tools, extra_body, reasoning_config, api_mode)
    if any(ignored):
        _warn_that_settings_choose()
    if stream:
        raise ValueError("Answers for plugins are not streamed: ask without stream.")
    if not messages:
        raise ValueError("There is nothing to ask: messages is empty.")
    seconds = float(timeout) if isinstance(timeout, int | float) and timeout > 0 else DEFAULT_S
    purpose = task or "plugin"
    question = LlmQuestion(messages, PURPOSES.get(purpose, purpose), max_tokens, seconds)
    here = require_bound()
    answer = here.bridge.run(lambda: here.ask(question), seconds)
    return Completion([Choice(ReplyMessage(answer.text))], answer.model, answer.counted)


async def async_call_llm(task: str | None = None, **wishes: Any) -> Completion:
    """Like `call_llm`, for a caller with an event loop of its own, or on the application's."""
    return await asyncio.to_thread(call_llm, task, **select_keywords(call_llm, wishes))


def extract_content_or_reasoning(response: Any) -> str:
    """The answer without thoughts; the thoughts if there is nothing else."""
    message = response.choices[0].message
    said = _THOUGHTS.sub("", _text(message, "content")).strip()
    return said or _text(message, "reasoning") or _text(message, "reasoning_content")


def _text(message: object, field: str) -> str:
    value = getattr(message, field, None)
    return value.strip() if isinstance(value, str) else ""


@cache
def _warn_that_settings_choose() -> None:
    """Once, not at each call."""
    log.warning("A plugin wants its own model, address or tools for a small question; the settings decide.")


# What vendors count, in buckets that do not overlap, and what it costs where that is certain.

_ANTHROPIC_CACHE = ("cache_read_input_tokens", "cache_creation_input_tokens")


@dataclass(frozen=True, slots=True)
class CostResult:
    amount_usd: Decimal | None = None
    """None: unknown."""
    status: Literal["estimated", "unknown"] = "unknown"
    source: str = "none"
    label: str = "n/a"


def normalize_usage(
    response_usage: object, *, provider: str | None = None, api_mode: str | None = None
) -> CanonicalUsage:
    """From OpenAI's two shapes, Anthropic's, or our own; a mapping or an object."""
    raw = response_usage
    if _field(raw, "cache_read_tokens") is not None:
        names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
        return CanonicalUsage(*(_count(raw, name) for name in names))
    is_chat = _field(raw, "prompt_tokens") is not None
    is_anthropic = "anthropic" in (provider or "", (api_mode or "").partition("_")[0])
    if not is_chat and (is_anthropic or any(_field(raw, name) is not None for name in _ANTHROPIC_CACHE)):
        names = ("input_tokens", "output_tokens", *_ANTHROPIC_CACHE)
        thinking = _count(_field(raw, "output_tokens_details"), "thinking_tokens")
        return CanonicalUsage(*(_count(raw, name) for name in names), reasoning_tokens=thinking)
    prompt, output = ("prompt_tokens", "completion_tokens") if is_chat else ("input_tokens", "output_tokens")
    of_prompt, of_output = _field(raw, f"{prompt}_details"), _field(raw, f"{output}_details")
    # Some endpoints that speak OpenAI's protocol pass on Anthropic's counts of the cache.
    read, written = (_count(raw, name) for name in _ANTHROPIC_CACHE)
    read = _count(of_prompt, "cached_tokens") or read
    written = _count(of_prompt, "cache_write_tokens") or written
    new = clamp_count(_count(raw, prompt) - read - written)
    return CanonicalUsage(new, _count(raw, output), read, written, _count(of_output, "reasoning_tokens"))


def _field(raw: object, name: str) -> Any:
    return cast("Mapping[str, Any]", raw).get(name) if isinstance(raw, Mapping) else getattr(raw, name, None)


def _count(raw: object, name: str) -> int:
    value = _field(raw, name)
    return clamp_count(value) if isinstance(value, int) else 0


def estimate_usage_cost(
    model_name: str,
    usage: CanonicalUsage,
    *,
    provider: str | None = None,
    base_url: str | None = None,
    api_key: str | None = None,  # noqa: ARG001
) -> CostResult:
    """By the prices in the settings, else those of the catalog if the call went to the provider's own address."""
    given = cfg_get(load_config(), "providers", provider or "", "models", model_name, "prices")
    prices, source = msgspec.convert(given, Prices) if given else None, "settings"
    facts = catalog().get(provider or "")
    is_own = facts is not None and (not base_url or base_url.rstrip("/") == facts.base_url.rstrip("/"))
    if prices is None and facts is not None and is_own and model_name in facts.models:
        prices, source = facts.models[model_name].prices, "catalog"
    counted = Usage(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens)
    amount = cost_usd(counted, prices)
    if amount is None:
        return CostResult()
    return CostResult(Decimal(str(amount)), "estimated", source, f"~${amount:.4f}")
