"""Finds a model server: on the ports of this machine where such servers usually listen, or where
one is said to be."""

import asyncio
from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec

from talaria.core.errors import TalariaError
from talaria.net.client import HttpClient
from talaria.net.web_settings import Timeouts
from talaria.providers import provider_failures
from talaria.providers.catalog import ProviderFacts
from talaria.providers.wire_parts import parse_model_list

KNOCK_S = 0.2
FAR_KNOCK_S = 1.0
HERE = frozenset({"127.0.0.1", "localhost", "::1"})
_TIMEOUTS = Timeouts(connect_s=1.0, first_byte_s=2.0, chunk_s=2.0, total_s=4.0)
MAX_LIST_BYTES = 1 << 20


class LocalModel(msgspec.Struct, frozen=True):
    provider: str
    model: str


async def open_ports(candidates: Iterable[ProviderFacts]) -> list[ProviderFacts]:
    """Those whose port answers, in their order."""
    found = list(candidates)
    answers = await asyncio.gather(*(_answers(facts.base_url) for facts in found))
    return [facts for facts, is_open in zip(found, answers, strict=True) if is_open]


async def _answers(base_url: str) -> bool:
    parts = urlsplit(base_url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(KNOCK_S if parts.hostname in HERE else FAR_KNOCK_S):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def first_model(candidates: Iterable[ProviderFacts], client: HttpClient) -> LocalModel | None:
    """The first model of the first server that lists any."""
    for facts in candidates:
        try:
            async with client.get(f"{facts.base_url}/models", headers={}, timeouts=_TIMEOUTS) as response:
                models = parse_model_list(await response.read(MAX_LIST_BYTES))
        except (TalariaError, *provider_failures.UNREADABLE):
            continue  # something else listens there
        if models:
            return LocalModel(facts.name, models[0])
    return None
