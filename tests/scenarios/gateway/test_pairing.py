"""Strangers get codes, and whoever is let in is told so."""

import re

from talaria.app.build import open_store
from talaria.core.clock import SystemClock
from talaria.gateway.authorization import APPROVED, MAX_PENDING, Pairing
from talaria.store.permission_ports import Member
from talaria.testing.harness import Harness

STRANGERS = ("2001", "2002", "2003", "2004")


async def offered(house: Harness, user: str) -> str:
    """The code that they are told."""
    (offer,) = await house.wait_for_messages(1, user=user)
    found = re.search(r"approve telegram (\w{8})", offer.text)
    assert found is not None
    return found[1]


async def approve(house: Harness, code: str) -> None:
    """As `talaria pairing approve` does, in another process."""
    async with open_store(house.home) as other:
        assert isinstance(await Pairing(other.access, SystemClock()).approve("telegram", code), Member)


async def test_whoever_writes_twice_does_not_keep_others_from_getting_a_code(house: Harness) -> None:
    async with house.serve():
        for user in STRANGERS[:MAX_PENDING]:
            for _ in range(2):
                await house.telegram.say("let me in", user=user)
            await offered(house, user)
        await house.telegram.say("let me in", user=STRANGERS[MAX_PENDING])
        await house.until(lambda: house.telegram.updates.waiting == 0)
        assert [len(house.telegram.list_messages(user=user)) for user in STRANGERS] == [1, 1, 1, 0]


async def test_who_is_let_in_is_told_once_whatever_ran_at_that_moment(house: Harness) -> None:
    async with house.serve():
        await house.telegram.say("let me in", user="2001")
        code = await offered(house, "2001")
    await approve(house, code)
    for _ in range(2):
        async with house.serve():
            assert [one.text for one in await house.wait_for_messages(2, user="2001")][1:] == [APPROVED]
            await house.until(lambda: _is_all_sent(house))
    assert len(house.telegram.list_messages(user="2001")) == 2


async def test_what_somebody_says_in_the_moment_they_are_let_in_is_answered(house: Harness) -> None:
    """Their message usually arrives before the gateway looks for what other processes wrote."""
    house.model.say("Welcome.")
    async with house.serve():
        await house.telegram.say("let me in", user="2001")
        await approve(house, await offered(house, "2001"))
        await house.telegram.say("hello", user="2001")
        await house.until(lambda: "Welcome." in [one.text for one in house.telegram.list_messages(user="2001")])


async def _is_all_sent(house: Harness) -> bool:
    return not await house.store.outbox.list_targets()
