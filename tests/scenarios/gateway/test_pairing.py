"""Strangers get codes, and whoever is let in is told so."""

import re

from talaria.app.build import open_store
from talaria.core.clock import SystemClock
from talaria.gateway.authorization import APPROVED, MAX_PENDING, Pairing
from talaria.store.permission_ports import Member
from talaria.testing.harness import Harness

STRANGERS = ("2001", "2002", "2003", "2004")


async def offered(harness: Harness, user: str) -> str:
    """The code that they are told."""
    (offer,) = await harness.wait_for_messages(1, user=user)
    found = re.search(r"approve telegram (\w{8})", offer.text)
    assert found is not None
    return found[1]


async def approve(harness: Harness, code: str) -> None:
    """As `talaria pairing approve` does, in another process."""
    async with open_store(harness.home) as other:
        assert isinstance(await Pairing(other.access, SystemClock()).approve("telegram", code), Member)


async def test_whoever_writes_twice_does_not_keep_others_from_getting_a_code(harness: Harness) -> None:
    async with harness.serve():
        for user in STRANGERS[:MAX_PENDING]:
            for _ in range(2):
                await harness.telegram.say("let me in", user=user)
            await offered(harness, user)
        await harness.telegram.say("let me in", user=STRANGERS[MAX_PENDING])
        await harness.until(lambda: harness.telegram.updates.waiting == 0)
        assert [len(harness.telegram.list_messages(user=user)) for user in STRANGERS] == [1, 1, 1, 0]


async def test_who_is_let_in_is_told_once_whatever_ran_at_that_moment(harness: Harness) -> None:
    async with harness.serve():
        await harness.telegram.say("let me in", user="2001")
        code = await offered(harness, "2001")
    await approve(harness, code)
    for _ in range(2):
        async with harness.serve():
            assert [one.text for one in await harness.wait_for_messages(2, user="2001")][1:] == [APPROVED]
            await harness.until(lambda: _is_all_sent(harness))
    assert len(harness.telegram.list_messages(user="2001")) == 2


async def test_what_somebody_says_in_the_moment_they_are_let_in_is_answered(harness: Harness) -> None:
    """Their message usually arrives before the gateway looks for what other processes wrote."""
    harness.model.say("Welcome.")
    async with harness.serve():
        await harness.telegram.say("let me in", user="2001")
        await approve(harness, await offered(harness, "2001"))
        await harness.telegram.say("hello", user="2001")
        await harness.until(lambda: "Welcome." in [one.text for one in harness.telegram.list_messages(user="2001")])


async def _is_all_sent(harness: Harness) -> bool:
    return not await harness.store.outbox.list_targets()
