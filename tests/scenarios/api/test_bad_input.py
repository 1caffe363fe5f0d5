"""What programs send to the HTTP API that they should not: it says what is wrong, and goes on."""

import asyncio
import json
import resource
import socket
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from threading import Event
from typing import Any

import pytest
from openai import APIError, AsyncOpenAI
from tests.scenarios.api.served_api import EVERY_SCOPE, ServedApi, chat_body

from talaria.api import api_server
from talaria.api.operations import OPERATIONS
from talaria.core.entries import TurnEnded
from talaria.testing import PATIENCE_S, Faults, Reply
from talaria.testing.harness import Harness

MB = 1 << 20
TAKING = [one for one in OPERATIONS if one.takes is not None]
CHAT = "/v1/chat/completions"
BODIES = {"steer": {"text": "x"}, "approve": {"question": "x"}}


@pytest.fixture(autouse=True)
def no_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert [one.getMessage() for one in caplog.records if one.levelname in ("ERROR", "CRITICAL")] == []


@pytest.mark.parametrize(
    "body",
    [b"{", b"[1, 2", b"\xff\xfe", b'{"model": "\xff"}', b"nul", b'{"model": "\\ud800"}', b'{"model":' + b"[" * 100_000],
    ids=["open", "cut", "no UTF-8", "no UTF-8 inside", "word", "half a character", "deep"],
)
async def test_broken_json_is_refused_everywhere(api: ServedApi, body: bytes) -> None:
    token = await api.add_token("all", EVERY_SCOPE)
    api.model.say("Hello.")
    async with api.http(token) as http:
        session = (await http.post(CHAT, json=chat_body())).headers["X-Talaria-Session"]
        run = (await http.get("/v1/runs")).json()["data"][0]["id"]
        for one in TAKING:
            path = one.path.replace("{id}", run if "/runs/" in one.path else session)
            response = await http.request(one.method, path, content=body)
            assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error"), path
            assert response.json()["error"]["message"]


WRONG: list[tuple[str, Any, str]] = [
    (CHAT, "text", "body"),
    (CHAT, [], "body"),
    (CHAT, {}, "model"),
    (CHAT, {"model": "talaria"}, "messages"),
    (CHAT, {"model": 5, "messages": []}, "model"),
    (CHAT, {"model": "talaria", "messages": []}, "messages"),
    (CHAT, chat_body(stream="yes"), "stream"),
    (CHAT, chat_body(n=2), "n"),
    (CHAT, chat_body(stream_options={"include_usage": 1}), "stream_options.include_usage"),
    (CHAT, {"model": "talaria", "messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    (CHAT, {"model": "talaria", "messages": [{"content": "x"}]}, "messages[0].role"),
    (CHAT, {"model": "talaria", "messages": ["x"]}, "messages[0]"),
    (
        CHAT,
        {"model": "talaria", "messages": [{"role": "user", "content": [{"type": "video"}]}]},
        "messages[0].content[0].type",
    ),
    (
        CHAT,
        {
            "model": "talaria",
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x.example/y"}}]}
            ],
        },
        "messages[0].content[0]",
    ),
    ("/v1/responses", {"model": "talaria"}, "input"),
    ("/v1/responses", {"model": "talaria", "input": 5}, "input"),
    ("/v1/responses", {"model": "talaria", "input": [{"role": "user", "content": {}}]}, "input[0].content"),
    ("/v1/responses", {"model": "talaria", "input": "x", "conversation": 5}, "conversation"),
    ("/v1/responses", {"model": "talaria", "input": "x", "conversation": "y" * 300}, "conversation"),
    ("/v1/responses", {"model": "talaria", "input": "x", "background": "no"}, "background"),
]


@pytest.mark.parametrize(("path", "body", "param"), WRONG)
async def test_wrong_field_is_named(api: ServedApi, path: str, body: Any, param: str) -> None:
    async with api.http() as http:
        response = await http.post(path, json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert error["message"].endswith(".")
    assert api.model.requests == []


@pytest.mark.parametrize(
    "query",
    ["runs?limit=0", "runs?limit=-1", "runs?limit=x", "runs?limit=²", "runs?limit=1e3", f"runs?limit={'9' * 5000}"],
)
async def test_wrong_parameter_is_named(api: ServedApi, query: str) -> None:
    async with api.http() as http:
        response = await http.get(f"/v1/{query}")
        assert (response.status_code, response.json()["error"]["param"]) == (400, "limit")
        searched = await http.get("/v1/sessions/search", params={"q": " "})
        assert (searched.status_code, searched.json()["error"]["param"]) == (400, "q")


@pytest.mark.parametrize("words", ['"', "a AND", "*", "NEAR(", "col:x", "'; DROP TABLE", "\0", "ü -", "(" * 500])
async def test_search_takes_any_words(api: ServedApi, words: str) -> None:
    async with api.http() as http:
        response = await http.get("/v1/sessions/search", params={"q": words})
        assert (response.status_code, response.json()["data"]) == (200, [])


async def test_large_bodies_are_refused_before_they_are_read(api: ServedApi) -> None:
    """100 MB, with and without a length."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for lengths in ("Content-Length: 104857600", "Transfer-Encoding: chunked"):
        for path in (CHAT, "/v1/responses", "/v1/runs/x/steer"):
            assert await upload(api, path, lengths) == 413
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024
    async with api.http() as http:
        assert (await http.get("/v1/models")).status_code == 200


async def upload(api: ServedApi, path: str, length: str) -> int:
    """Writes on until it is told to stop; the status."""
    session = await a_session(api)
    run = (await runs_of(api))[0]["id"]
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    lines = (
        f"POST {path.replace('/x/', f'/{run}/')} HTTP/1.1",
        *(f"Host: 127.0.0.1:{api.port}", f"Authorization: Bearer {api.token}", length),
    )
    assert session
    writer.write("\r\n".join((*lines, "", "")).encode())
    answer = asyncio.create_task(reader.readuntil(b"\r\n"))
    piece = b"x" * (64 * 1024)
    if "chunked" in length:
        piece = f"{len(piece):x}\r\n".encode() + piece + b"\r\n"
    try:
        with suppress(ConnectionError):
            for _ in range(100 * 16):
                if answer.done():
                    break
                writer.write(piece)
                await writer.drain()
        async with asyncio.timeout(PATIENCE_S):
            return int((await answer).split()[1])
    finally:
        writer.close()


async def a_session(api: ServedApi) -> str:
    found = await api.sessions()
    if found:
        return found[0].id
    api.model.say("Hello.")
    async with api.http() as http:
        return str((await http.post(CHAT, json=chat_body())).headers["X-Talaria-Session"])


async def runs_of(api: ServedApi) -> Sequence[Any]:
    async with api.http() as http:
        return list((await http.get("/v1/runs")).json()["data"])


async def test_slow_body_is_given_up(api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server, "BODY_WITHIN_S", 0.2)
    async with raw(api) as (reader, writer):
        writer.write(head(api, CHAT, 1000) + b"{")
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in answer.lower()
        assert json.loads(await reader.read())["error"]["code"] == "too_slow"


@asynccontextmanager
async def raw(api: ServedApi) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield reader, writer
    finally:
        writer.close()


def head(api: ServedApi, path: str, length: int) -> bytes:
    lines = (f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{api.port}", f"Authorization: Bearer {api.token}")
    return "\r\n".join((*lines, f"Content-Length: {length}", "", "")).encode()


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_client_that_hangs_up_in_any_phase_leaves_nothing_behind(api: ServedApi, is_streamed: bool) -> None:
    until_then = Event()
    body = json.dumps(chat_body(stream=is_streamed)).encode()
    whole = head(api, CHAT, len(body)) + body
    for cut in (0, 1, 20, len(whole) - len(body), len(whole) - 1):
        async with raw(api) as (_, writer):
            writer.write(whole[:cut])
            await writer.drain()
    assert await api.sessions() == []
    try:
        api.model.say(Reply("Hello.", faults=Faults(held_by=until_then)))
        async with raw(api) as (_, writer):
            writer.write(whole)
            await api.wait_for_model(1)
        await api.harness.until(lambda: has_ended(api, "interrupted"))
        api.model.say(Reply("A rather long answer.", faults=Faults(stall_at=900)))
        async with raw(api) as (reader, writer):
            writer.write(whole)
            if is_streamed:
                await reader.readuntil(b"A rather")
            await api.wait_for_model(2)
        await api.harness.until(lambda: has_ended(api, "interrupted"))
    finally:
        until_then.set()
    api.model.say("Hello.")
    async with api.http() as http:
        assert (await http.post(CHAT, json=chat_body())).status_code == 200


async def has_ended(api: ServedApi, outcome: str) -> bool:
    """All turns that there are."""
    for row in await api.sessions():
        entries = await api.store.journal.entries(row.id)
        if not entries or not isinstance(entries[-1].entry, TurnEnded) or entries[-1].entry.outcome != outcome:
            return False
    return True


async def test_client_that_resets_its_connection_while_it_is_written_to_stops_the_turn(api: ServedApi) -> None:
    until_then = Event()
    api.model.say(Reply("word " * 20_000, chunk_chars=1000))
    body = json.dumps(chat_body(stream=True)).encode()
    async with raw(api) as (reader, writer):
        writer.write(head(api, CHAT, len(body)) + body)
        await reader.readuntil(b"word")
        connection: socket.socket = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()
    until_then.set()
    (row,) = await api.sessions()
    await api.harness.until(lambda: is_free(api, row.id))


async def is_free(api: ServedApi, session: str) -> bool:
    return (await api.session(session)).open_turn is None


async def test_unknown_ids_and_those_of_others_are_answered_alike(api: ServedApi) -> None:
    other = await api.add_token("other", [*EVERY_SCOPE[:-1]])
    session = await a_session(api)
    (run,) = await runs_of(api)
    hidden = {"session": session, "run": run["id"].removeprefix("run_")}
    unknown = {"session": "20260101_000000_00000000", "run": "0" * 32}
    async with api.http(other) as http:
        for one in OPERATIONS:
            if "{id}" not in one.path:
                continue
            kind = "run" if "/runs/" in one.path or "/responses/" in one.path else "session"
            body = BODIES.get(one.path.rpartition("/")[2], {"title": "x"}) if one.takes is not None else None
            told: list[str] = []
            for ids in (hidden, unknown):
                path = one.path.replace("{id}", ids[kind])
                response = await http.request(one.method, path, json=body, params={"path": "x"})
                assert response.status_code == 404, path
                told.append(response.text.replace(ids[kind], "ID"))
            assert told[0] == told[1]
        for asked in (
            {"previous_response_id": f"resp_{hidden['run']}"},
            {"conversation": session},
        ):
            response = await http.post("/v1/responses", json={"model": "talaria", "input": "x", **asked})
            assert response.status_code == 404
        named = await http.post(CHAT, json=chat_body(), headers={"X-Talaria-Session": session})
        assert named.status_code == 404
        assert (await http.get("/v1/sessions")).json()["data"] == []
        assert (await http.get("/v1/sessions/search", params={"q": "hello"})).json()["data"] == []
        assert (await http.get("/v1/sessions", params={"after": session})).status_code == 404
        assert (await http.get("/v1/runs")).json()["data"] == []
    assert len(await api.sessions()) == 1


@pytest.mark.parametrize("id", ["%00", "..%2f..", "%ff", "x" * 5000, "%F0%9F%98%80", "run_", " "])
async def test_odd_ids_are_unknown(api: ServedApi, id: str) -> None:
    token = await api.add_token("all", EVERY_SCOPE)
    async with api.http(token) as http:
        for one in OPERATIONS:
            if "{" in one.path and one.takes is None:
                path = one.path.replace("{id}", id).replace("{model}", id)
                response = await http.request(one.method, path)
                assert response.status_code == 404, path
                assert len(response.content) < 1000


async def test_rate_is_limited_for_each_token(api: ServedApi) -> None:
    slow = await api.add_token("slow", requests_per_minute=3)
    async with api.http(slow) as http, api.http() as other:
        answers = [await http.get("/v1/models") for _ in range(4)]
        assert [one.status_code for one in answers] == [200, 200, 200, 429]
        error = answers[-1].json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit")
        assert "3 requests a minute" in error["message"]
        assert 1 <= int(answers[-1].headers["Retry-After"]) <= 20
        assert (await other.get("/v1/models")).status_code == 200


@pytest.mark.parametrize("body", [chat_body(), chat_body(stream=True), chat_body() | {"model": "talaria-plain"}])
async def test_cap_of_the_day_is_named_with_its_end(api: ServedApi, body: dict[str, Any]) -> None:
    token = await api.add_token("capped", tokens_per_day=20)
    api.model.say(*["Hello."] * 9)
    async with api.http(token) as http, api.http() as other:
        for _ in range(5):
            response = await http.post(CHAT, json=chat_body())
            if response.status_code != 200:
                break
        asked = len(api.model.requests)
        response = await http.post(CHAT, json=body)
        error = response.json()["error"]
        assert (response.status_code, error["type"], error["code"]) == (429, "rate_limit_error", "limit_person")
        assert "midnight" in error["message"]
        assert response.headers["x-should-retry"] == "false"
        assert len(api.model.requests) == asked
        assert (await other.post(CHAT, json=chat_body())).status_code == 200


async def test_gateway_that_stops_answers_what_it_has_begun_and_takes_nothing_new(api: ServedApi) -> None:
    until_then = Event()
    api.model.say(Reply("Hello.", faults=Faults(held_by=until_then)))
    try:
        async with api.http() as http:
            asked = asyncio.create_task(http.post(CHAT, json=chat_body()))
            await api.wait_for_model(1)
            api.app.gateway.stop()
            ready = await http.get("/ready")
            assert (ready.status_code, ready.json()["ok"]) == (503, False)
            refused = await http.post(CHAT, json=chat_body())
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
            assert int(refused.headers["Retry-After"]) > 0
            until_then.set()
            assert (await asked).json()["choices"][0]["message"]["content"] == "Hello."
    finally:
        until_then.set()
    assert len(api.model.requests) == 1


async def test_requests_that_still_wait_are_told_when_the_gateway_stops(harness: Harness) -> None:
    harness.config["gateway"]["drain_s"] = 0.1
    until_then = Event()
    harness.model.say(*[Reply("Late.", faults=Faults(held_by=until_then))] * 3, *["Late."] * 3)
    try:
        async with AsyncExitStack() as stack:
            async with ServedApi.serve(harness) as api:
                http = await stack.enter_async_context(api.http())
                openai = await stack.enter_async_context(api.openai())
                waiting = asyncio.create_task(http.post(CHAT, json=chat_body()))
                streaming = asyncio.create_task(collect_chat(openai))
                await api.wait_for_model(2)
                (session, *_) = await api.sessions()
                watching = asyncio.create_task(http.get(f"/v1/sessions/{session.id}/events"))
                await api.harness.until(lambda: api.app.gateway.running == 2)
            refused = await waiting
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
            with pytest.raises(APIError, match="The gateway stops"):
                await streaming
            assert (await watching).text.endswith('"unavailable"}}\n\n')
    finally:
        until_then.set()


async def collect_chat(client: AsyncOpenAI) -> str:
    stream = await client.chat.completions.create(
        model="talaria", messages=[{"role": "user", "content": "hello"}], stream=True
    )
    return "".join([one.choices[0].delta.content or "" async for one in stream])


async def test_port_that_is_in_use_is_told(harness: Harness) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        harness.config["api"]["port"] = port
        from talaria.app.gateway_app import open_gateway_app

        async with open_gateway_app(harness.settings(), is_api_only=True, open_store=harness.open_store) as app:
            running = asyncio.create_task(app.gateway.run())
            await harness.until(lambda: any(one.error for one in app.gateway.health))
            (health,) = app.gateway.health
            app.gateway.stop()
            await running
    said = f"Cannot listen on 127.0.0.1, port {port}: Address already in use. Set api.port to another."
    assert health.error == said
