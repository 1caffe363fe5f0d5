"""Against the reference server of the protocol's authors, over each transport that it has."""

import asyncio
import json
import os
import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.contracts.mcp.conftest import Open, Use, names
from tests.ports import reserved_port

from talaria.core.clock import SystemClock
from talaria.core.secret import Secret
from talaria.testing.manual_clock import ManualClock
from talaria.tools.mcp.server_entries import ServerEntry


@pytest.fixture
def entry(everything: Path) -> ServerEntry:
    return ServerEntry(command="node", args=(str(everything), "stdio"), env={"WELL": Secret("deep")})


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as reserved:
        yield reserved


@contextmanager
def listening(everything: Path, transport: str, port: int) -> Generator[None]:
    process = subprocess.Popen(
        ["node", str(everything), transport],
        env={"PATH": os.environ["PATH"], "PORT": str(port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        while b"port" not in (line := process.stderr.readline()).lower():
            assert line, "it ended"
        yield
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


async def test_every_kind_of_result_becomes_text(opened: Open, use: Use, entry: ServerEntry) -> None:
    async with opened(every=entry) as servers:
        tools = servers.tools()
        assert (await use(tools, "mcp_every_echo", message="hi")).text == "Echo: hi"
        assert "3" in (await use(tools, "mcp_every_get-sum", a=1, b=2)).text
        shown = await use(tools, "mcp_every_get-tiny-image")
        assert "[image/png, 4,033 bytes: shown]" in shown.text
        assert [(image.media_type, len(image.data)) for image in shown.images] == [("image/png", 5380)]
        weather = await use(tools, "mcp_every_get-structured-content", location="Chicago")
        assert json.loads(weather.text)["humidity"] == 82
        links = await use(tools, "mcp_every_get-resource-links", count=1)
        assert "demo://resource/dynamic/" in links.text
        blob = await use(tools, "mcp_every_get-resource-reference", resourceType="Blob", resourceId=1)
        assert "text/plain, " in blob.text
        page = await use(tools, "mcp_every_get-resource-reference", resourceType="Text", resourceId=1)
        assert "This is a plaintext resource" in page.text


async def test_what_is_wrong_with_a_call_is_told_to_the_model(opened: Open, use: Use, entry: ServerEntry) -> None:
    async with opened(every=entry) as servers:
        refused = await use(servers.tools(), "mcp_every_get-sum", a="one")
    assert refused.is_error
    assert "expected number" in refused.text


async def test_process_sees_only_what_is_allowed_and_named(opened: Open, use: Use, entry: ServerEntry) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "TZ": "UTC", "OPENAI_API_KEY": "sk-1", "USER": "me"}
    async with opened(every=entry, environment=environment) as servers:
        seen = json.loads((await use(servers.tools(), "mcp_every_get-env")).text)
    assert seen == {"PATH": os.environ["PATH"], "HOME": "/nowhere", "TZ": "UTC", "WELL": "deep"}


async def test_calls_run_at_the_same_time(opened: Open, use: Use, entry: ServerEntry) -> None:
    async with opened(every=entry) as servers:
        tools = servers.tools()
        long = asyncio.ensure_future(use(tools, "mcp_every_trigger-long-running-operation", duration=600, steps=1))
        assert (await use(tools, "mcp_every_echo", message="quick")).text == "Echo: quick"
        assert not long.done()
        long.cancel()
        await asyncio.wait([long])


@pytest.mark.parametrize(("transport", "path"), [("streamableHttp", "mcp"), ("sse", "sse")])
async def test_server_over_http_is_reached_in_the_way_that_it_knows(
    opened: Open, use: Use, everything: Path, port: int, transport: str, path: str
) -> None:
    with listening(everything, transport, port):
        async with opened(every=ServerEntry(url=f"http://127.0.0.1:{port}/{path}")) as servers:
            assert servers.notices == ()
            assert "mcp_every_echo" in names(servers)
            assert (await use(servers.tools(), "mcp_every_echo", message="hi")).text == "Echo: hi"


async def test_call_to_a_server_that_was_restarted_is_made_once_it_is_back(
    opened: Open, use: Use, everything: Path, port: int
) -> None:
    entry = ServerEntry(url=f"http://127.0.0.1:{port}/mcp")
    with listening(everything, "streamableHttp", port):
        clock = ManualClock(auto=True)
        stack = opened(every=entry, clock=clock)
        servers = await stack.__aenter__()
        assert (await use(servers.tools(), "mcp_every_echo", message="one")).text == "Echo: one"
    with listening(everything, "streamableHttp", port):
        again = await use(servers.tools(), "mcp_every_echo", message="two")
        await stack.__aexit__(None, None, None)
    assert again.text == "Echo: two"


async def test_tools_come_from_the_cache_before_the_server_answers(opened: Open, use: Use, entry: ServerEntry) -> None:
    async with opened(every=entry) as servers:
        first = servers.tools()
    async with opened(every=entry, clock=SystemClock()) as servers:
        known = servers.tools()
        assert [tool.spec for tool in known] == [tool.spec for tool in first]
        assert (await use(known, "mcp_every_echo", message="hi")).text == "Echo: hi"
