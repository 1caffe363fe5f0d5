"""Server-sent events, as a client reads them."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2
import msgspec


class SseEvent(msgspec.Struct, frozen=True):
    name: str
    id: str
    data: Mapping[str, Any]


async def events_of(client: httpx2.AsyncClient, path: str, headers: Mapping[str, str]) -> AsyncIterator[SseEvent]:
    """Until the end of the stream, or of the gateway."""
    async with client.stream("GET", path, headers=dict(headers)) as streamed:
        if streamed.status_code == 503:
            return
        assert streamed.status_code == 200, await streamed.aread()
        fields: dict[str, str] = {}
        async for line in streamed.aiter_lines():
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                yield SseEvent(fields["event"], fields.get("id", ""), json.loads(fields["data"]))
                fields = {}
