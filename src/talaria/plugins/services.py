"""What plugins may ask of the running application: to call the tools of the current conversation, through the same gate
as the model's calls, and to ask a model small questions, at the conversation's cost and on the auxiliary routes."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from talaria.context.engine import CanonicalUsage, as_dict, canonical
from talaria.core import message_dicts
from talaria.core.ids import SessionId, new_call_id
from talaria.core.messages import NO_USAGE, ToolCall, Usage
from talaria.plugins.bridge import Bridge
from talaria.runtime import session_config
from talaria.runtime.auxiliary import Auxiliary
from talaria.runtime.session_config import current_session
from talaria.tools.executor import Executor


def dispatch(bridge: Bridge, tool: str, arguments: dict[str, Any]) -> str:
    """The result; an error is in it as `{"error": …}`. From a thread."""
    here = current_session.get()
    if here is None:
        return _error("There is no conversation here whose tools could be used.")
    call = ToolCall(new_call_id(), tool, json.dumps(arguments, default=str))
    return bridge.run(lambda: _run(call, here.tools()))


async def _run(call: ToolCall, tools: Executor) -> str:
    result = await tools.call(call)
    return _error(result.text.removeprefix("Error: ")) if result.is_error else result.text


def _error(sentence: str) -> str:
    return json.dumps({"error": sentence}, ensure_ascii=False)


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
    """`ctx.llm`. A model other than that of the settings is refused, unless the settings allow the plugin to choose."""

    def __init__(self, plugin: str, bridge: Bridge, ask: Ask, *, may_choose: bool) -> None:
        self._plugin = plugin
        self._bridge = bridge
        self._ask = ask
        self._may_choose = may_choose

    def complete(self, messages: Sequence[Mapping[str, Any]] | str, **wishes: Any) -> LlmAnswer:
        named = [str(wishes[key]) for key in ("provider", "model") if wishes.get(key)]
        if named and not self._may_choose:
            raise PermissionError(
                f"Plugin {self._plugin} may not choose the model unless its settings under plugins.entries allow it "
                "(llm.allow_model_override)."
            )
        given = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        purpose = str(wishes.get("purpose") or f"plugin:{self._plugin}")
        seconds = float(wishes.get("timeout") or DEFAULT_S)
        question = LlmQuestion(given, purpose, wishes.get("max_tokens"), seconds, ":".join(named))
        return self._bridge.run(lambda: self._ask(question), seconds)

    async def acomplete(self, messages: Sequence[Mapping[str, Any]] | str, **wishes: Any) -> LlmAnswer:
        """Like `complete`, for a caller with an event loop of its own, or on the application's."""
        return await asyncio.to_thread(self.complete, messages, **wishes)

    def complete_structured(self, **wishes: Any) -> LlmAnswer:
        """With `instructions`, `input` and, if wanted, `json_schema`: an answer whose `parsed` is the JSON in it."""
        demand = "Answer with one JSON document and nothing else."
        if wishes.get("json_schema"):
            demand += f" It must fit this JSON schema: {json.dumps(wishes['json_schema'])}"
        given = wishes.get("input", "")
        messages = [
            {"role": "system", "content": f"{wishes.get('instructions', '')}\n\n{demand}".strip()},
            {"role": "user", "content": given if isinstance(given, str) else json.dumps(given, default=str)},
        ]
        answer = self.complete(messages, **wishes)
        text = answer.text.strip()
        if text.startswith("```"):  # models like to put a fence around their JSON
            text = text.partition("\n")[2].rpartition("```")[0]
        try:
            return replace(answer, parsed=json.loads(text))
        except ValueError:
            return replace(answer, parsed=None)

    async def acomplete_structured(self, **wishes: Any) -> LlmAnswer:
        return await asyncio.to_thread(self.complete_structured, **wishes)


@dataclass(slots=True)
class PluginServices:
    """What plugins may ask for; it works once the application is open."""

    bridge: Bridge
    entries: Mapping[str, Mapping[str, Any]]
    """Settings of plugins, by name, as the person has written them: they decide what plugins may do."""
    own_entries: Callable[[], object] | None = None
    """The same, with what plugins have set themselves."""
    profile_name: str = "default"
    auxiliary: Callable[[str, str | None], Auxiliary] | None = None
    """For a purpose, and with the model that the plugin chose, if any; set once the application is open."""
    inject_into: Callable[[str, str], bool] | None = None
    """The chat in the terminal, if there is one: takes a text and its role."""

    def llm(self, plugin: str) -> PluginLlm:
        may_choose = look_up(self.entries, plugin, "llm", "allow_model_override") is True
        return PluginLlm(plugin, self.bridge, self.ask, may_choose=may_choose)

    async def ask(self, question: LlmQuestion) -> LlmAnswer:
        serving = session_config.current_session.get()
        if self.auxiliary is None:
            raise RuntimeError("Talaria has no model yet: ask while a conversation is running.")
        system, messages = message_dicts.parse_question(question.messages)
        auxiliary = self.auxiliary(question.purpose, question.model or None)
        said = await auxiliary.ask(
            messages,
            system=system,
            session=serving.session if serving else SessionId("plugins"),
            person=serving.person if serving else "local",
            max_output=question.max_tokens,
            seconds=question.seconds,
        )
        where = next((one for one in auxiliary.route.endpoints if one.origin == said.origin), auxiliary.route.primary)
        return LlmAnswer(said.text, where.provider, where.model, said.usage or NO_USAGE)

    def dispatch(self, tool: str, arguments: dict[str, Any]) -> str:
        return dispatch(self.bridge, tool, arguments)

    def inject(self, content: str, role: str) -> bool:
        return self.inject_into is not None and self.inject_into(content, role)

    def setting(self, plugin: str, key: str, default: Any) -> Any:
        entries = self.own_entries() if self.own_entries else self.entries
        return look_up(entries, plugin, *key.split("."), default=default)


def look_up(settings: object, *keys: str, default: Any = None) -> Any:
    """The value at the end of these keys, also None; `default` if a key is missing."""
    for key in keys:
        if not isinstance(settings, Mapping) or key not in settings:
            return default
        settings = cast("Mapping[str, Any]", settings)[key]
    return settings
