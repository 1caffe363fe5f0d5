"""Keys: none is tried for ever, and none is shown, also when an endpoint quotes it."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from talaria.testing.servers.model_server import Answer, ModelServer
from talaria.testing.servers.scripted_replies import Failure, Faults, Reply

if TYPE_CHECKING:
    from tests.contracts.faults.conftest import OpenWorld

TWO_KEYS = ("sk-first-of-two-keys-0123", "sk-second-of-two-keys-456")
ENOUGH = 24
"""Requests that no failure is worth."""


@pytest.mark.parametrize(
    "failure",
    [
        Failure(401),
        Failure(402, headers={"retry-after": "1"}),
        Failure(429),
        Failure(429, headers={"retry-after": "1"}),
        Failure(429, headers={"retry-after-ms": "1"}),
        Failure(429, headers={"retry-after": "30"}),
    ],
    ids=["401", "402 for a second", "429", "429 for a second", "429 for a moment", "429 for a while"],
)
async def test_keys_are_not_taken_in_turns_without_end(
    open_world: "OpenWorld", failure: Failure, second_says: str | None
) -> None:
    """Each request takes two seconds: a key that was to rest for less is awake again when the other has failed."""
    loop = asyncio.get_running_loop()

    def respond(_: object) -> Answer:
        loop.call_soon_threadsafe(world.clock.advance, 2)
        return failure if len(primary.requests) < ENOUGH else "Well, if you insist."

    primary = ModelServer(respond=respond)
    async with open_world(primary, second_says=second_says, keys=TWO_KEYS) as world:
        await world.ends_without_the_first("model-1")
        assert len(primary.requests) <= 3 * len(TWO_KEYS)
        used = {request.headers["authorization"] for request in primary.requests}
        assert used == {f"Bearer {key}" for key in TWO_KEYS}


SECRET = "sk-0123456789-of-somebody"
QUOTING: dict[str, Callable[[str], Answer]] = {
    "in a refusal": lambda said: Failure(401, {"error": {"message": said}}),
    "in a failure": lambda said: Failure(500, said.encode()),
    "in a stream": lambda said: Reply(
        "Half.", faults=Faults(error_in_stream={"message": said, "code": "server_error"})
    ),
    "in place of an answer": lambda said: Reply(faults=Faults(raw_body=said.encode(), content_type="text/plain")),
}


@pytest.mark.parametrize("way", QUOTING)
@pytest.mark.parametrize("where", ["key", "header"])
async def test_a_secret_that_an_endpoint_quotes_is_not_shown(open_world: "OpenWorld", way: str, where: str) -> None:
    keys, headers = ((SECRET,), {}) if where == "key" else ((), {"x-project-key": SECRET})
    primary = ModelServer(respond=lambda _: QUOTING[way](f"{SECRET} is no good."))
    async with open_world(primary, keys=keys, headers=headers) as world:
        await world.ends_without_the_first("model-1")
        assert all(SECRET in repr(request.headers) for request in primary.requests)


@pytest.mark.parametrize("way", QUOTING)
@pytest.mark.parametrize("chars_before", [175, 275])
async def test_no_half_of_a_secret_is_left_where_a_quotation_is_cut(
    open_world: "OpenWorld", way: str, chars_before: int
) -> None:
    primary = ModelServer(respond=lambda _: QUOTING[way](f"{'x' * chars_before} {SECRET} is no good."))
    async with open_world(primary, keys=(SECRET,)) as world:
        await world.ends_without_the_first("model-1")
