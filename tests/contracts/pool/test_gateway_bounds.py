"""How many live sessions the gateway keeps for the people who write, which ones, and for how long."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.pool.travelling import TravellingClock
from tests.port_proxies import SessionsProxy, StoreProxy
from tests.scenarios.gateway.conftest import harness as gateway_house
from tests.scenarios.gateway.conftest import run_folder

from talaria.app.build import open_store
from talaria.app.gateway_app import GatewayApp
from talaria.core.clock import Clock
from talaria.core.ids import SessionId
from talaria.gateway.service import SWEEP_S
from talaria.store.base import Session, Sessions, Store
from talaria.testing import Reply, call
from talaria.testing.harness import Harness
from talaria.testing.servers.scripted_replies import Faults

__all__ = ["gateway_house", "run_folder"]

PEOPLE: Sequence[str] = ("1001", "1002", "1003", "1004")


class Company:
    """People who write to one gateway, each in a chat of their own."""

    def __init__(self, house: Harness) -> None:
        self.house = house
        house.add_platform("telegram", {**house.telegram.settings, "allowed_users": list(PEOPLE)})
        self._told = dict.fromkeys(PEOPLE, 0)

    async def hears(self, person: str, *answers: str | Reply, text: str = "go") -> str:
        """What they read in the end: a message of theirs, and what the model says to it."""
        self.house.model.say(*(answers or ("Fine.",)))
        return await self.says(person, text)

    async def says(self, person: str, text: str) -> str:
        """The last words that they read, once all is quiet again."""
        await self.house.telegram.say(text, user=person)
        self._told[person] += 1
        said = await self.house.wait_for_messages(self._told[person], user=person)
        await self.house.until(lambda: self.gateway_app.gateway.running == 0)
        return said[-1].text

    @property
    def gateway_app(self) -> GatewayApp:
        assert self.house.gateway is not None
        return self.house.gateway

    async def kept(self) -> Sequence[str]:
        """Whose live sessions are kept, the least recently used first."""
        whose = {await self.house.session_of(key(person)): person for person in PEOPLE if self._told[person]}
        return [whose[session] for session in self.gateway_app.gateway.pool]


def key(person: str) -> str:
    return f"agent:main:telegram:dm:{person}"


@pytest.fixture
def company(gateway_house: Harness) -> Company:
    return Company(gateway_house)


@pytest.mark.clause("C-14")
@pytest.mark.clause("C-16")
async def test_as_many_live_sessions_are_kept_as_the_settings_say_and_the_least_recently_used_goes(
    company: Company,
) -> None:
    company.house.config["gateway"]["max_live_sessions"] = 2
    async with company.house.serve():
        for person in PEOPLE[:3]:
            await company.hears(person)
        assert await company.kept() == [PEOPLE[1], PEOPLE[2]]
        await company.hears(PEOPLE[1])
        await company.hears(PEOPLE[3])
        assert await company.kept() == [PEOPLE[1], PEOPLE[3]]


class HeldSessions(SessionsProxy):
    """Looks up no conversation that is new to it before it may."""

    def __init__(self, sessions: Sessions) -> None:
        super().__init__(sessions)
        self.known: set[SessionId] | None = None
        self.is_asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def get(self, session: SessionId) -> Session | None:
        if self.known is not None and session not in self.known and not self.is_asked.is_set():
            self.is_asked.set()
            await self.may_answer.wait()
        return await super().get(session)


@pytest.mark.clause("C-24")
async def test_one_that_is_being_built_keeps_no_other_from_going_and_comes_to_its_turn(company: Company) -> None:
    held: list[HeldSessions] = []

    @asynccontextmanager
    async def opened(home: Path, clock: Clock) -> AsyncGenerator[Store]:
        async with open_store(home, clock) as store:
            held.append(HeldSessions(store.sessions))
            yield StoreProxy(store, store.journal, held[0])

    house, (first, second, slow, fourth) = company.house, PEOPLE
    house.open_store = opened
    house.config["gateway"]["max_live_sessions"] = 2
    async with house.serve():
        for person in (first, second):
            await company.hears(person)
        held[0].known = {await house.session_of(key(person)) for person in (first, second)}
        await house.telegram.say("go", user=slow)
        await held[0].is_asked.wait()
        house.model.say("For the fourth.")
        await house.telegram.say("go", user=fourth)
        await house.wait_for_messages(1, user=fourth)
        pool = company.gateway_app.gateway.pool
        expected = [await house.session_of(key(person)) for person in (second, fourth)]
        await house.until(lambda: list(pool) == expected)
        house.model.say("For the slow one.")
        held[0].may_answer.set()
        assert [one.text for one in await house.wait_for_messages(1, user=slow)] == ["For the slow one."]
        await house.until(lambda: company.gateway_app.gateway.running == 0)
        assert list(pool) == [expected[1], await house.session_of(key(slow))]


@pytest.mark.clause("C-17")
@pytest.mark.clause("C-29")
async def test_who_had_to_go_for_another_finds_shell_and_processes_again(company: Company) -> None:
    house, (here, other, *_) = company.house, PEOPLE
    house.config["gateway"]["max_live_sessions"] = 1

    async def uses(name: str, **arguments: Any) -> str:
        await company.hears(here, Reply(calls=(call(name, **arguments),)), "Done.")
        messages = house.model.requests[-1].json["messages"]
        return next(one["content"] for one in reversed(messages) if one["role"] == "tool")

    async with house.serve() as gateway_app:
        await uses("terminal", command="export COLOUR=green; cd /tmp")
        assert "p1" in await uses("terminal", command="echo up; exec sleep 1000", background=True)
        left = gateway_app.gateway.pool.find(await house.session_of(key(here)))
        assert left is not None
        await company.hears(other)
        assert await company.kept() == [other]
        assert left.is_unloaded
        assert "green /tmp" in await uses("terminal", command="echo $COLOUR $PWD")
        assert await company.kept() == [here]
        listed = await uses("process", action="list")
        assert "p1" in listed
        assert "running" in listed


class SweepingClock(TravellingClock):
    def __init__(self) -> None:
        super().__init__()
        self.sweeps = 0
        """How many have been: after each the next is waited for."""

    async def sleep(self, seconds: float) -> None:
        self.sweeps += seconds == SWEEP_S
        await super().sleep(seconds)

    async def sweep(self, house: Harness) -> None:
        before = self.sweeps
        self.advance(SWEEP_S)
        await house.until(lambda: self.sweeps > before)


@pytest.mark.clause("C-18")
async def test_those_whose_last_turn_ended_long_ago_are_released_and_the_others_stay(company: Company) -> None:
    house, clock, (lively, quiet, *_) = company.house, SweepingClock(), PEOPLE
    house.gateway_clock = clock
    async with house.serve():
        for person in (lively, quiet):
            await company.hears(person)
        clock.advance(3000)
        await clock.sweep(house)
        assert await company.kept() == [lively, quiet]
        await company.hears(lively)
        clock.advance(300)
        await clock.sweep(house)
        assert await company.kept() == [lively]


@pytest.mark.clause("C-14")
@pytest.mark.clause("C-21")
async def test_a_lower_cap_applies_at_once_and_takes_nobody_out_of_a_turn(company: Company) -> None:
    house, (busy, second, third, _) = company.house, PEOPLE
    house.config["gateway"]["drain_s"] = 0.1
    house.model.say(Reply(faults=Faults(hang=True)))
    async with house.serve() as gateway_app:
        pool = gateway_app.gateway.pool
        await house.telegram.say("think", user=busy)
        await asyncio.to_thread(house.model.wait_for_requests, 1)
        for number, person in enumerate((second, third), 2):
            house.model.say("Fine.")
            await house.telegram.say("go", user=person)
            await house.wait_for_messages(1, user=person)
            await house.until(lambda number=number: (len(pool), gateway_app.gateway.running) == (number, 1))
        lives = [pool.find(await house.session_of(key(person))) for person in (busy, second, third)]
        house.config["gateway"]["max_live_sessions"] = 1
        await gateway_app.reload(house.settings())
        assert [live.is_unloaded for live in lives if live] == [False, True, False]
        await house.telegram.say("/stop", user=busy)
        await house.until(lambda: gateway_app.gateway.running == 0)
        assert [pool.find(live.id) for live in lives if live] == [lives[0], None, None]


@pytest.mark.clause("C-18")
async def test_a_shorter_idle_time_counts_from_the_next_sweep_on(company: Company) -> None:
    house, clock, (person, *_) = company.house, SweepingClock(), PEOPLE
    house.gateway_clock = clock
    async with house.serve() as gateway_app:
        await company.hears(person)
        clock.advance(300)
        await clock.sweep(house)
        assert await company.kept() == [person]
        house.config["gateway"]["live_session_idle_s"] = 60
        await gateway_app.reload(house.settings())
        await clock.sweep(house)
        assert await company.kept() == []
