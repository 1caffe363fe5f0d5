"""A first model that falls silent, or never comes to an end: every wait has its limit, and the clock alone decides."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from tests.scripted_provider import WIRES

from talaria.config.schema import LimitsConfig, TimeoutsConfig, TurnCapConfig
from talaria.core.errors import LimitReached
from talaria.core.events import RouteSwitched, TextDelta
from talaria.providers.base import WireName
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Faults, Reply

if TYPE_CHECKING:
    from tests.contracts.faults.conftest import OpenWorld, World

RECONNECT_S = 24.0
"""The longest that two retries, new connections, and two more retries wait."""
FINE = "Fine."


@dataclass(frozen=True)
class Stall:
    """A silence of the first model, and how to tell from outside that it has begun."""

    name: str
    reply: Reply
    says: str
    has_begun: Callable[["World"], bool]


def is_asked(world: "World") -> bool:
    return len(world.primary.requests) > world.restarts


HALF = Reply("Half an answer, and more. " * 20, faults=Faults(stall_at=1500))
STALLS = [
    Stall("before the answer", Reply(faults=Faults(hang=True)), "did not answer within 60 s", is_asked),
    Stall("within it", HALF, "sent nothing for 30 s", lambda world: bool(world.shown)),
]


async def let_time_pass(world: "World", stall: Stall, times: int) -> None:
    """Until each silence has been given up."""
    for known in range(times):
        while not stall.has_begun(world):
            await asyncio.sleep(0.001)
        while world.restarts == known:
            world.clock.advance(5)
            await asyncio.sleep(0.001)


async def while_time_passes(world: "World", stall: Stall, times: int, turn: Awaitable[Any]) -> Any:
    passing = asyncio.create_task(let_time_pass(world, stall, times))
    try:
        return await turn
    finally:
        passing.cancel()
        with suppress(asyncio.CancelledError):
            await passing


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("stall", STALLS, ids=[stall.name for stall in STALLS])
async def test_silence_is_not_waited_for_without_end(
    open_world: "OpenWorld", stall: Stall, wire: WireName, second_says: str | None
) -> None:
    primary = ModelServer(respond=lambda _: stall.reply)
    async with open_world(primary, wire, second_says=second_says) as world:
        await while_time_passes(world, stall, 6, world.ends_without_the_first(stall.says))
        assert len(primary.requests) == 6
        assert sum(world.clock.slept) <= RECONNECT_S


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("stall", STALLS, ids=[stall.name for stall in STALLS])
async def test_after_a_silence_the_same_model_is_asked_again(
    open_world: "OpenWorld", stall: Stall, wire: WireName
) -> None:
    primary = ModelServer(respond=lambda _: FINE)
    primary.say(stall.reply)
    async with open_world(primary, wire, second_says="I would.") as world:
        report = await while_time_passes(world, stall, 1, world.ask())
        assert (report.text, world.shown, len(primary.requests)) == (FINE, FINE, 2)


@pytest.mark.parametrize("wire", WIRES)
async def test_an_answer_that_goes_on_and_on_is_cut(
    open_world: "OpenWorld", wire: WireName, second_says: str | None
) -> None:
    """Every piece of it comes five seconds after the one before: never silent, never done."""
    endless = Reply("more " * 200, chunk_chars=1, faults=Faults(chunk_delay_s=0.001))
    primary = ModelServer(respond=lambda _: endless)
    async with open_world(primary, wire, second_says=second_says) as world:
        world.watch = lambda event: (
            world.clock.advance(5) if isinstance(event, TextDelta) and not has_moved_on(world) else None
        )
        await world.ends_without_the_first("had not finished its answer within 120 s")
        assert len(primary.requests) == 6


def has_moved_on(world: "World") -> bool:
    return any(isinstance(event, RouteSwitched) for event in world.events)


async def test_a_byte_every_five_seconds_is_not_an_answer(open_world: "OpenWorld", second_says: str | None) -> None:
    dripping = Reply("drop " * 99, faults=Faults(drip=True, chunk_delay_s=0.0005))
    primary = ModelServer(respond=lambda _: dripping)
    timeouts = TimeoutsConfig(first_byte_s=300, chunk_s=300, total_s=500)
    async with open_world(primary, second_says=second_says, timeouts=timeouts, max_attempts=1) as world:
        stall = Stall("drip", dripping, "had not finished its answer within 500 s", is_asked)
        await while_time_passes(world, stall, 2, world.ends_without_the_first(stall.says))
        assert len(primary.requests) == 2


async def test_when_the_time_of_a_turn_is_over_nobody_else_is_asked(open_world: "OpenWorld") -> None:
    stall = STALLS[0]
    primary = ModelServer(respond=lambda _: stall.reply)
    limits = LimitsConfig(turn=TurnCapConfig(seconds=50))
    async with open_world(primary, second_says="I would.", limits=limits) as world:
        report = await while_time_passes(world, stall, 1, world.ask())
        assert isinstance(report.error, LimitReached)
        assert re.fullmatch(r"Stopped: this turn has taken 5\d of 50 seconds\.", str(report.error))
        assert (len(primary.requests), len(world.second.requests), world.restarts) == (1, 0, 0)
