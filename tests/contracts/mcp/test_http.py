"""Against the official Python server over streamable HTTP, and against what may stand in its place."""

import asyncio
import gzip
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from mcp.server.mcpserver import Context, MCPServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tests.contracts.mcp.conftest import Open, Use, closing_connections, names, serving
from tests.waiting import until

from talaria.core.secret import Secret
from talaria.testing.manual_clock import ManualClock
from talaria.tools.mcp.server_entries import ServerEntry
from talaria.tools.mcp.transports import make_client


class Library:
    """A server with tools that add tools, wait, and repeat what they are told."""

    def __init__(self) -> None:
        self.server = MCPServer("library", log_level="CRITICAL")
        self.waits = threading.Event()
        self.was_cancelled = threading.Event()
        self.server.add_tool(self.greet, name="greet", description="Say hello.")
        self.server.add_tool(self.wait, name="wait")
        self.server.add_tool(self.grow, name="grow")

    def greet(self, name: str) -> str:
        return f"hello {name}"

    async def wait(self) -> str:
        self.waits.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            self.was_cancelled.set()
            raise
        return "waited"

    async def grow(self, ctx: Context[Any]) -> str:
        self.server.add_tool(self.greet, name="welcome")
        await ctx.notify_tools_changed()
        return "grown"


@pytest.fixture
def library() -> Library:
    return Library()


@pytest.fixture
def url(library: Library) -> Iterator[str]:
    with serving(library.server.streamable_http_app()) as served:
        yield f"http://127.0.0.1:{served.port}/mcp"


async def test_tools_of_a_python_server_are_called(opened: Open, use: Use, url: str) -> None:
    async with opened(library=ServerEntry(url=url)) as servers:
        assert names(servers) == ["mcp_library_greet", "mcp_library_wait", "mcp_library_grow"]
        assert (await use(servers.tools(), "mcp_library_greet", name="you")).text == "hello you"


async def test_cancelled_call_is_cancelled_in_the_server(opened: Open, use: Use, url: str, library: Library) -> None:
    async with opened(library=ServerEntry(url=url)) as servers:
        call = asyncio.ensure_future(use(servers.tools(), "mcp_library_wait"))
        await until(library.waits.is_set)
        call.cancel()
        await until(library.was_cancelled.is_set)
        assert (await use(servers.tools(), "mcp_library_greet", name="you")).text == "hello you"


async def test_changed_tools_are_heard_of(opened: Open, use: Use, url: str, clock: ManualClock) -> None:
    async with opened(library=ServerEntry(url=url)) as servers:
        await use(servers.tools(), "mcp_library_grow")
        await until(lambda: clock.slept)
        clock.advance(1)
        await until(lambda: "mcp_library_welcome" in names(servers))


async def test_call_waits_for_a_server_that_is_down(
    opened: Open, use: Use, library: Library, clock: ManualClock
) -> None:
    with serving(library.server.streamable_http_app()) as served:
        entering = opened(library=ServerEntry(url=f"http://127.0.0.1:{served.port}/mcp"))
        servers = await entering.__aenter__()
    call = asyncio.ensure_future(use(servers.tools(), "mcp_library_greet", name="you"))
    await until(lambda: clock.slept)
    with serving(Library().server.streamable_http_app(), served.port):
        clock.advance(1)
        assert (await call).text == "hello you"
        await entering.__aexit__(None, None, None)


async def test_call_that_may_have_arrived_is_not_made_again(
    opened: Open, use: Use, library: Library, clock: ManualClock
) -> None:
    with serving(closing_connections(library.server.streamable_http_app())) as served:
        async with opened(library=ServerEntry(url=f"http://127.0.0.1:{served.port}/mcp")) as servers:
            first = asyncio.ensure_future(use(servers.tools(), "mcp_library_wait"))
            await until(library.waits.is_set)
            library.waits.clear()
            served.shut()
            second = asyncio.ensure_future(use(servers.tools(), "mcp_library_wait"))
            result = await first
            assert result.text.endswith("during this call; whether it took effect is unknown.")
            await until(lambda: clock.slept)
            assert not second.done()
            second.cancel()
    assert not library.waits.is_set()


async def test_body_is_not_unfolded() -> None:
    with serving(answering(bomb)) as served:
        entry = ServerEntry(url=f"http://127.0.0.1:{served.port}/mcp")
        async with make_client(entry) as client, client.stream("GET", entry.url or "") as response:
            assert await response.aread() == BOMB


async def test_server_that_is_not_there_is_told_of(opened: Open, clock: ManualClock) -> None:
    async with opened(gone=ServerEntry(url="http://127.0.0.1:9/mcp")) as servers:
        assert servers.notices == ("The MCP server gone cannot be reached. Its tools are missing here.",)
        await until(lambda: clock.slept == [1.0])


def answering(answer: Any) -> Starlette:
    return Starlette(routes=[Route("/mcp", answer, methods=["GET", "POST", "DELETE"])])


async def test_refusal_is_told_with_its_status_and_without_the_secret(opened: Open) -> None:
    seen: list[str] = []

    async def refuse(request: Request) -> Response:
        seen.append(request.headers["authorization"])
        return Response(f"no: {seen[-1]}", 401)

    with serving(answering(refuse)) as served:
        entry = ServerEntry(url=f"http://127.0.0.1:{served.port}/mcp", headers={"Authorization": Secret("Bearer t-1")})
        async with opened(locked=entry) as servers:
            assert servers.notices == ("The MCP server locked answered 401 Unauthorized. Its tools are missing here.",)
    assert set(seen) == {"Bearer t-1"}


async def endless(request: Request) -> Response:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(1_000):
            yield b" " * 100_000
            await asyncio.sleep(0)

    return StreamingResponse(body(), media_type="application/json")


BOMB = gzip.compress(gzip.compress(b" " * 50_000_000, 1), 1)


async def bomb(request: Request) -> Response:
    return Response(BOMB, media_type="application/json", headers={"content-encoding": "gzip, gzip"})


async def elsewhere(request: Request) -> Response:
    return Response(status_code=307, headers={"location": "http://169.254.169.254/mcp"})


async def page(request: Request) -> Response:
    return Response("<h1>Welcome</h1>", media_type="text/html")


async def nonsense(request: Request) -> Response:
    return JSONResponse({"jsonrpc": "2.0", "id": "no", "result": "what"})


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (endless, "failed: ReadError: a body longer than 8 MB."),
        (bomb, "does not answer as an MCP server does."),
        (elsewhere, "said: Redirect to http://169.254.169.254/mcp not followed"),
        (page, "said: Unexpected content type: text/html"),
        (nonsense, "does not answer as an MCP server does."),
    ],
    ids=["endless", "bomb", "elsewhere", "page", "nonsense"],
)
async def test_whatever_answers_in_a_servers_place_hurts_nobody(
    opened: Open, use: Use, url: str, answer: Any, reason: str
) -> None:
    with serving(answering(answer)) as served:
        odd = ServerEntry(url=f"http://127.0.0.1:{served.port}/mcp")
        async with opened(odd=odd, library=ServerEntry(url=url)) as servers:
            assert servers.notices[0].startswith(f"The MCP server odd {reason}")
            assert (await use(servers.tools(), "mcp_library_greet", name="you")).text == "hello you"


async def test_server_that_accepts_and_says_nothing_is_given_up(opened: Open, clock: ManualClock) -> None:
    reached = threading.Event()

    async def silent(request: Request) -> Response:
        reached.set()
        await asyncio.sleep(600)
        return Response()

    with serving(answering(silent)) as served:
        entering = opened(odd=ServerEntry(url=f"http://127.0.0.1:{served.port}/mcp", connect_timeout=5))
        opening = asyncio.ensure_future(entering.__aenter__())
        await until(reached.is_set)
        clock.advance(5)
        servers = await opening
        assert servers.notices == ("The MCP server odd did not answer within 5 seconds. Its tools are missing here.",)
        await entering.__aexit__(None, None, None)
