"""Whatever bytes come instead of an answer, the turn ends in a report, and nothing breaks.

Bodies of all wires, with values exchanged for others that nobody would expect there.
"""

import asyncio
import re
import tempfile
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talaria.app.build import open_application
from talaria.app.settings import Settings
from talaria.config.schema import AgentConfig, Config, ModelConfig, ProviderConfig
from talaria.core.clock import Clock
from talaria.core.entries import MessageAdded
from talaria.core.errors import ProviderFailure
from talaria.core.messages import user
from talaria.store.base import Store
from talaria.store.memory import MemoryStore
from talaria.testing.manual_clock import ManualClock
from talaria.testing.rules import transcript_problems
from talaria.testing.scripted_provider import WIRES
from talaria.testing.servers import chat_wire, messages_wire, responses_wire
from talaria.testing.servers.model_server import Answer, ModelServer
from talaria.testing.servers.scripted_replies import Call, Failure, Faults, Reply, dumped, framed

LONG_NUMBER = b"9" * 5000
"""Longer than Python reads by default."""
TOKENS = (
    *(b"", b"null", b"true", b"{}", b"[]", b"[null]", b"[{}]", b'""', b"-1", b"0.5", b"1e400", LONG_NUMBER),
    *(b'"%b"' % LONG_NUMBER, b'{"error":{"code":"%b"}}' % LONG_NUMBER, b"[" * 3000),
    *(b"\xff", b'"\xff"', b'"\\ud800"', b'"\\u0000"', b"\0", b"\r", b"\n\n", b"data: ", b"event: error\n"),
    *(b'"error"', b'{"type":"error"}', b'"a":', b"<html>"),
)
VALUE = re.compile(rb'"(?:[^"\\]|\\.)*"|\{[^{}]*\}|\[[^\[\]]*\]|[^,:\[\]{}]*')
REPLY = Reply("Hello 🌦.", "Hm.", (Call("call_1", "note", '{"n": 1}'),))
SPEAKERS = (chat_wire, responses_wire, messages_wire)


def plain_body(number: int, kind: str) -> bytes:
    speaker = SPEAKERS[number]
    match kind:
        case "stream":
            return b"".join(framed(speaker.events(REPLY, "m"), Faults()))
        case "document":
            return dumped(speaker.document(REPLY, "m"))
        case _:
            return dumped(speaker.error(400, "Something is wrong."))


@st.composite
def garbled(draw: st.DrawFn) -> tuple[int, str, bytes]:
    """A body on one of the wires, with something else in the place of some values, or before them."""
    number, kind = draw(st.integers(0, 2)), draw(st.sampled_from(["stream", "document", "failure"]))
    body = plain_body(number, kind)
    for _ in range(draw(st.integers(1, 3))):
        begins = [match.end() for match in re.finditer(rb"[:,\[{] ?|^", body)]
        start = draw(st.sampled_from(begins))
        value, rest = VALUE.match(body, start), re.compile(rb"[^\n]*").match(body, start)
        end = draw(st.sampled_from([start, *(found.end() for found in (value, rest) if found)]))
        body = body[:start] + draw(st.sampled_from(TOKENS)) + body[end:]
    return number, kind, body


@pytest.fixture(autouse=True, scope="module")
def no_proxies() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("http", "https", "all", "no"):
            patch.delenv(f"{name}_proxy", raising=False)
            patch.delenv(f"{name.upper()}_PROXY", raising=False)
        yield


def in_memory(_: Path, clock: Clock) -> AbstractAsyncContextManager[Store]:
    return MemoryStore(clock)


async def read_through(number: int, kind: str, body: bytes) -> None:
    faults = Faults(raw_body=body, content_type="text/event-stream" if kind == "stream" else "application/json")
    answer: Answer = Failure(400, faults=faults) if kind == "failure" else Reply(faults=faults)
    with tempfile.TemporaryDirectory() as folder, ModelServer(respond=lambda _: answer) as server:
        config = Config(
            model=ModelConfig(default="place:model"),
            providers={"place": ProviderConfig(base_url=server.base_url, wire=WIRES[number])},
            agent=AgentConfig(max_turns=2, api_max_retries=1),
        )
        chosen, clock = Settings(Path(folder), config, {}), ManualClock(auto=True)
        async with open_application(chosen, tools=(), clock=clock, open_store=in_memory) as app:
            session = app.session(cwd=Path(folder), origin="library")
            async with asyncio.timeout(20):
                report = await session.ask(user("Question?"))
            entries = [recorded.entry for recorded in await app.store.journal.entries(session.id)]
    assert isinstance(report.error, ProviderFailure | None)
    assert transcript_problems([entry.message for entry in entries if isinstance(entry, MessageAdded)]) == []


@settings(max_examples=150, deadline=None)
@given(sent=garbled())
async def test_whatever_bytes_a_server_sends_a_turn_ends(sent: tuple[int, str, bytes]) -> None:
    await read_through(*sent)


@pytest.mark.long
@settings(max_examples=5_000, deadline=None)
@given(sent=garbled())
async def test_whatever_bytes_a_server_sends_five_thousand_times_a_turn_ends(sent: tuple[int, str, bytes]) -> None:
    await read_through(*sent)
