"""More clients than the process may open files."""

import asyncio
import resource
from collections.abc import Generator
from contextlib import contextmanager

from tests.scenarios.api.served_api import ServedApi, chat_body

from talaria.testing import Reply
from talaria.testing.harness import Harness

FILES = 300
CLIENTS = 200


@contextmanager
def few_files() -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_clients_who_watch_leave_half_of_the_open_files_to_turns(harness: Harness) -> None:
    with few_files():
        serving = ServedApi.serve(harness)
        api = await serving.__aenter__()
    statuses: list[bytes] = []
    writers: list[asyncio.StreamWriter] = []
    try:  # without the limit: the clients are in the same process
        api.model.say(Reply("Hello."))
        async with api.http() as http:
            answer = await http.post("/v1/chat/completions", json=chat_body())
        session = answer.headers["x-talaria-session"]
        headers = f"Host: localhost\r\nAuthorization: Bearer {api.token}\r\n"
        for _ in range(CLIENTS):
            reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
            writers.append(writer)
            writer.write(f"GET /v1/sessions/{session}/events HTTP/1.1\r\n{headers}\r\n".encode())
            statuses.append((await reader.readline()).split()[1])
    finally:
        for writer in writers:
            writer.close()
        await serving.__aexit__(None, None, None)
    assert set(statuses) == {b"200", b"503"}
    assert statuses.count(b"200") <= FILES // 2
