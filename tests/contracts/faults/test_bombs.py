"""Compressed answers, although none was asked for: read if they are sane, and never more of them than fits."""

import gzip
import tracemalloc
import zlib
from typing import TYPE_CHECKING

import pytest

from talaria.testing.servers.model_server import Answer, ModelServer
from talaria.testing.servers.scripted_replies import Failure, Faults, Reply

if TYPE_CHECKING:
    from tests.contracts.faults.conftest import OpenWorld

GZIP = {"content-encoding": "gzip"}


def packed(body: bytes, content_type: str) -> Reply:
    return Reply(headers=GZIP, faults=Faults(raw_body=body, content_type=content_type))


def bomb(block: bytes) -> bytes:
    """2 GB of the block, in some 2 MB."""
    packer = zlib.compressobj(9, wbits=31)
    head = packer.compress(b"\n") + packer.flush(zlib.Z_FULL_FLUSH)
    packed = packer.compress(block * ((8 << 20) // len(block))) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + packed * 256


BOMBS: dict[str, tuple[Answer, str]] = {
    "a line": (packed(bomb(b"\0"), "text/event-stream"), "endless line"),
    "lines": (packed(bomb(b":" * 999 + b"\n"), "text/event-stream"), "endless answer"),
    "an event": (packed(bomb(b"data:" * 200 + b"\n"), "text/event-stream"), "endless event"),
    "a document": (packed(bomb(b"\0"), "application/json"), "not an answer"),
    "a failure": (Failure(500, bomb(b"\0"), GZIP), "having problems"),
}


@pytest.mark.parametrize("name", BOMBS)
async def test_a_bomb_of_compressed_bytes_takes_little_memory(open_world: "OpenWorld", name: str) -> None:
    answer, says = BOMBS[name]
    async with open_world(ModelServer(respond=lambda _: answer), max_attempts=1) as world:
        tracemalloc.start()
        try:
            await world.ends_without_the_first(says)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < 300 << 20
        assert len(world.primary.requests) <= 2


async def test_an_answer_that_is_compressed_unasked_is_read(open_world: "OpenWorld") -> None:
    stream = b'data: {"choices":[{"delta":{"content":"Fine."},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    answer = packed(gzip.compress(stream), "text/event-stream")
    async with open_world(ModelServer(respond=lambda _: answer)) as world:
        assert (await world.ask()).text == "Fine."
