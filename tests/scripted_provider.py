"""A model in the same process that answers by script, and keeps what it was asked in the bytes of every wire."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

import msgspec

from talaria.core.errors import ProviderFailure
from talaria.core.events import TextDelta
from talaria.core.messages import Assistant, Text
from talaria.core.secret import Secret
from talaria.providers.base import Delta, Endpoint, ModelRequest, WireName
from talaria.providers.http_provider import wire_for

WIRES: tuple[WireName, ...] = ("openai_chat", "openai_responses", "anthropic_messages")

Answer = Assistant | ProviderFailure | str


class RenderedRequest(msgspec.Struct, frozen=True):
    """One request: what stands before the history on a wire, and the history message by message."""

    may_call: bool
    system: str
    tools: tuple[bytes, ...]
    encoded: dict[WireName, tuple[bytes, ...]]
    bodies: dict[WireName, bytes]


class ScriptedProvider:
    """Says the answers in turn, then `fallback` for ever. `before` runs ahead of each answer."""

    def __init__(
        self,
        answers: Iterable[Answer] = (),
        *,
        fallback: str = "That is all.",
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self.endpoint = Endpoint(provider="scripted", model="scripted", base_url="http://scripted", wire="openai_chat")
        self.asked: list[RenderedRequest] = []
        self._answers = deque(answers)
        self._fallback = fallback
        self._before = before

    def say(self, *answers: Answer) -> None:
        self._answers.extend(answers)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Assistant]:
        self.asked.append(self._note(request))
        self._before()
        answer = self._answers.popleft() if self._answers else self._fallback
        if isinstance(answer, ProviderFailure):
            raise answer
        message = Assistant((Text(answer),)) if isinstance(answer, str) else answer
        for part in message.parts:
            if isinstance(part, Text):
                yield TextDelta(part.text)
                await asyncio.sleep(0)
        yield message

    async def models(self, key: Secret) -> Sequence[str]:
        return [self.endpoint.model]

    async def reconnect(self) -> None:
        """Nothing is connected."""

    def _note(self, request: ModelRequest) -> RenderedRequest:
        origin = self.endpoint.origin
        encoded: dict[WireName, tuple[bytes, ...]] = {}
        bodies: dict[WireName, bytes] = {}
        for name in WIRES:
            wire = wire_for(name)
            encoded[name] = tuple(request.history.encode(name, lambda message, w=wire: w.encode(message, origin)))
            bodies[name] = wire.body(request, self.endpoint, encoded[name])
        tools = tuple(msgspec.json.encode(tool) for tool in request.tools)
        return RenderedRequest(request.may_call, request.system, tools, encoded, bodies)
