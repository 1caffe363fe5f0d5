"""Model servers on this machine."""

from tests.ports import reserved_port

from talaria.core.clock import SystemClock
from talaria.net.client import HttpClient
from talaria.providers import server_discovery
from talaria.providers.catalog import ProviderFacts
from talaria.testing.servers.model_server import ModelServer


def facts(name: str, base_url: str) -> ProviderFacts:
    return ProviderFacts(name, name, base_url, is_local=True)


async def test_only_servers_that_answer_are_open_and_their_order_stays() -> None:
    with ModelServer() as first, ModelServer() as second, reserved_port() as closed:
        away = facts("away", f"http://127.0.0.1:{closed}/v1")
        here = [facts("one", first.base_url), away, facts("two", second.base_url)]
        assert [found.name for found in await server_discovery.open_ports(here)] == ["one", "two"]


async def test_first_model_of_the_first_server_that_has_one_is_taken() -> None:
    with ModelServer(models=()) as empty, ModelServer(models=("a", "b")) as full:
        candidates = [facts("empty", empty.base_url), facts("full", full.base_url)]
        async with HttpClient(SystemClock()) as client:
            assert await server_discovery.first_model(candidates, client) == server_discovery.LocalModel("full", "a")


async def test_server_of_another_kind_is_passed_over() -> None:
    with ModelServer() as server, reserved_port() as closed:
        candidates = [
            facts("other", f"{server.url}/elsewhere"),
            facts("gone", f"http://127.0.0.1:{closed}/v1"),
        ]
        async with HttpClient(SystemClock()) as client:
            assert await server_discovery.first_model(candidates, client) is None
