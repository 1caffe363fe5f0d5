"""The model for plugins: small questions beside the conversation, at its cost, on the routes of auxiliary calls."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from talaria.context.counting import CanonicalUsage, as_dict, canonical
from talaria.core.usage import NO_USAGE, Usage
from talaria.plugins.bridge import Bridge

DEFAULT_S = 120.0


@dataclass(frozen=True, slots=True)
class LlmQuestion:
    messages: Sequence[Mapping[str, Any]]
    purpose: str = ""
    max_tokens: int | None = None
    seconds: float = DEFAULT_S
    model: str = ""
    """`provider:model`, or empty: as the settings say."""


@dataclass(frozen=True, slots=True)
class LlmAnswer:
    text: str
    provider: str = ""
    model: str = ""
    tokens: Usage = NO_USAGE
    parsed: Any = None

    @property
    def usage(self) -> dict[str, int]:
        return as_dict(self.counted)

    @property
    def counted(self) -> CanonicalUsage:
        return canonical(self.tokens)


Ask = Callable[[LlmQuestion], Coroutine[Any, Any, LlmAnswer]]
"""Raises `TalariaError`."""


class PluginLlm:
    """`ctx.llm`. Another model than the settings choose is refused, unless the settings allow that to the plugin."""

    def __init__(self, plugin: str, bridge: Bridge, ask: Ask, *, may_choose: bool) -> None:
        self._plugin = plugin
        self._bridge = bridge
        self._ask = ask
        self._may_choose = may_choose

    def complete(self, messages: Sequence[Mapping[str, Any]] | str, **wishes: Any) -> LlmAnswer:
        named = [str(wishes[key]) for key in ("provider", "model") if wishes.get(key)]
        if named and not self._may_choose:
            raise PermissionError(
                f"Plugin {self._plugin} may not choose the model, unless its settings under plugins.entries allow it "
                "(llm.allow_model_override)."
            )
        given = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        purpose = str(wishes.get("purpose") or f"plugin:{self._plugin}")
        seconds = float(wishes.get("timeout") or DEFAULT_S)
        question = LlmQuestion(given, purpose, wishes.get("max_tokens"), seconds, ":".join(named))
        return self._bridge.run(lambda: self._ask(question), seconds)

    async def acomplete(self, messages: Sequence[Mapping[str, Any]] | str, **wishes: Any) -> LlmAnswer:
        """As `complete`, for a caller that has an event loop of its own, or is on the application's."""
        return await asyncio.to_thread(self.complete, messages, **wishes)

    def complete_structured(self, **wishes: Any) -> LlmAnswer:
        """With `instructions`, `input` and, if wanted, `json_schema`: an answer whose `parsed` is the JSON in it."""
        return _parsed(self.complete(_structured(wishes), **wishes))

    async def acomplete_structured(self, **wishes: Any) -> LlmAnswer:
        return await asyncio.to_thread(self.complete_structured, **wishes)


def _structured(wishes: Mapping[str, Any]) -> list[dict[str, Any]]:
    schema = wishes.get("json_schema")
    demand = "Answer with one JSON document and nothing else."
    if schema:
        demand += f" It must fit this JSON schema: {json.dumps(schema)}"
    given = wishes.get("input", "")
    text = given if isinstance(given, str) else json.dumps(given, default=str)
    return [
        {"role": "system", "content": f"{wishes.get('instructions', '')}\n\n{demand}".strip()},
        {"role": "user", "content": text},
    ]


def _parsed(answer: LlmAnswer) -> LlmAnswer:
    """Models like to put a fence around their JSON."""
    text = answer.text.strip()
    if text.startswith("```"):
        text = text.partition("\n")[2].rpartition("```")[0]
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    return replace(answer, parsed=parsed)
