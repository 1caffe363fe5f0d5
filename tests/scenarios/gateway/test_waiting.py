"""What has to wait: for the terminal, and for a platform that wants to be left alone, also across a restart."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from tests.contracts.faults.platform_stage import QuickClock
from tests.contracts.pool.travelling import TravellingClock
from tests.servers.slack_server import SlackServer

from talaria.app.build import open_store
from talaria.app.gateway_app import open_gateway_app
from talaria.core.clock import Clock, SystemClock
from talaria.core.ids import SessionId
from talaria.gateway.connector import REFUSED_WAIT_S
from talaria.gateway.dispatcher import HELD, NOTIFY_AFTER_S
from talaria.gateway.envelope import MARK, NO_SESSION, OutgoingBody, encode_body
from talaria.gateway.gateway_state import PAUSE
from talaria.store.base import Held
from talaria.store.chat_ports import Outgoing
from talaria.testing import Reply
from talaria.testing.harness import OWNER, Harness
from talaria.testing.servers.chat_service import LostAnswer, Refusal, Slow
from talaria.testing.servers.scripted_replies import Faults

KEY = f"agent:main:telegram:dm:{OWNER}"
PAUSE_S = 40.0


@pytest.fixture
def clock(harness: Harness) -> QuickClock:
    harness.gateway_clock = QuickClock()
    harness.config["gateway"]["drain_s"] = 0.1
    return harness.gateway_clock


@asynccontextmanager
async def at_the_terminal(harness: Harness, session: SessionId) -> AsyncGenerator[None]:
    """Another process has the conversation."""
    async with open_store(harness.home) as store:
        held = await store.journal.seize(session, await store.owners.join("terminal"))
        assert not isinstance(held, Held)
        yield
        await store.journal.release(session, held, leaves_mail=True)


def texts(harness: Harness) -> list[str]:
    return [one.text for one in harness.telegram.list_messages()]


async def passed(harness: Harness, clock: Clock, seconds: float) -> None:
    began_at = clock.monotonic()
    await harness.until(lambda: clock.monotonic() - began_at >= seconds)


async def is_waiting(harness: Harness, session: SessionId, count: int) -> bool:
    return len(await harness.store.inbox.list_pending(session)) == count


async def test_whoever_waits_for_the_terminal_is_told_so_once(harness: Harness, clock: QuickClock) -> None:
    """However much they send meanwhile, and also when the gateway is started anew."""
    harness.model.say("One.", "Two.")
    async with harness.serve():
        await harness.telegram.say("first")
        await harness.wait_for_messages(1)
        session = await harness.session_of(KEY)
    async with at_the_terminal(harness, session):
        for said in ("second", "third"):
            async with harness.serve():
                await harness.telegram.say(said)
                await harness.wait_for_messages(2)
                await passed(harness, clock, 4 * NOTIFY_AFTER_S)
                assert texts(harness) == ["One.", HELD]
    async with harness.serve():
        await harness.wait_for_messages(3)
        assert texts(harness) == ["One.", HELD, "Two."]
        await harness.until(lambda: is_waiting(harness, session, 0))
        harness.model.say("Three.")
        async with at_the_terminal(harness, session):
            await harness.telegram.say("fourth")
            await harness.wait_for_messages(4)
        await harness.wait_for_messages(5)
    assert texts(harness) == ["One.", HELD, "Two.", HELD, "Three."]
    assert [request.body.decode().count("third") for request in harness.model.requests] == [0, 1, 1]


async def test_a_short_wait_is_not_worth_a_word(harness: Harness) -> None:
    harness.model.say("One.", "Two.")
    async with harness.serve():
        await harness.telegram.say("first")
        await harness.wait_for_messages(1)
        session = await harness.session_of(KEY)
        async with at_the_terminal(harness, session):
            await harness.telegram.say("second")
            await harness.until(lambda: is_waiting(harness, session, 1))
            await passed(harness, SystemClock(), 1.0)
        await harness.wait_for_messages(2)
    assert texts(harness) == ["One.", "Two."]


async def test_a_turn_of_the_chat_itself_is_not_the_terminal(harness: Harness, clock: QuickClock) -> None:
    """A command that became a turn is run beside the mail, which has to wait for it."""
    harness.model.say(Reply("One.", faults=Faults(first_byte_delay_s=8 * NOTIFY_AFTER_S / clock.pace)), "Two.")
    async with harness.serve():
        await harness.telegram.say("/steer first")
        await harness.until(lambda: len(harness.model.requests) == 1)
        await harness.telegram.say("second")
        await harness.wait_for_messages(2)
    assert texts(harness) == ["One.", "Two."]


@pytest.mark.parametrize("method", ["sendMessage", "sendChatAction"])
async def test_a_platform_is_left_alone_for_as_long_as_it_wants_also_after_a_restart(
    harness: Harness, clock: QuickClock, method: str
) -> None:
    harness.telegram.fault(method, Refusal(429, PAUSE_S))
    slow = Reply("One.", faults=Faults(first_byte_delay_s=0.2))
    harness.model.say(slow, slow)
    async with harness.serve():
        await harness.telegram.say("first")
        await harness.telegram.wait_for_calls(method, 1)
        await harness.until(lambda: _is_kept(harness))
    async with harness.serve():
        await harness.wait_for_messages(1)
    refused_at = harness.telegram.calls(method)[0]["at"]
    written = [one["at"] for each in ("sendMessage", "sendChatAction") for one in harness.telegram.calls(each)]
    assert texts(harness) == ["One."]
    assert [at for at in written if refused_at < at < refused_at + PAUSE_S / clock.pace] == []


async def _is_kept(harness: Harness) -> bool:
    return await harness.store.inbox.cursor("telegram", PAUSE) is not None


async def test_a_pause_that_is_over_holds_nobody_up(harness: Harness, clock: QuickClock) -> None:
    """Nor one from before the calendar was set right."""
    harness.telegram.fault("sendMessage", Refusal(429, 3600))
    harness.model.say("One.", "Two.")
    async with harness.serve():
        await harness.telegram.say("first")
        await harness.until(lambda: _is_kept(harness))
    for turned_s, count in ((3600, 1), (-3600, 2)):
        clock.turned_on_s = turned_s
        async with harness.serve():
            await harness.telegram.say("next")
            await harness.wait_for_messages(count)


LONG = " ".join(f"{number:05d}" for number in range(1000))
SHOWN = Reply(LONG, faults=Faults(chunk_delay_s=0.001))
FROZEN = Refusal(400, words="Bad Request: message can't be edited")


async def answered(harness: Harness) -> list[str]:
    """What is there of the long answer in the end."""
    harness.model.say(SHOWN, "Two.")
    async with harness.serve():
        await harness.telegram.say("first")
        await harness.until(lambda: "".join(texts(harness)).endswith(LONG[-10:]))
        await harness.telegram.say("second")
        await harness.until(lambda: texts(harness)[-1] == "Two.")
        assert not await harness.store.outbox.list(["failed", "expired"])
    shown, *parts, _ = texts(harness)
    assert LONG.startswith(shown.removesuffix(" …"))
    return parts


@pytest.mark.usefixtures("clock")
async def test_an_answer_stays_in_order_when_what_was_shown_of_it_cannot_be_edited(harness: Harness) -> None:
    harness.telegram.fault("editMessageText", *[FROZEN] * 99)
    parts = await answered(harness)
    assert " ".join(parts) == LONG
    assert len(parts) > 1


@pytest.mark.usefixtures("clock")
async def test_what_is_sent_in_place_of_an_edit_is_not_silently_sent_twice(harness: Harness) -> None:
    harness.telegram.fault("editMessageText", *[FROZEN] * 99)
    harness.telegram.fault("sendMessage", Slow(0), LostAnswer())
    first, again, *rest = await answered(harness)
    assert again == f"{MARK}\n\n{first}"
    assert " ".join((first, *rest)) == LONG


async def test_an_edit_that_a_crash_cut_off_and_nobody_takes_now_keeps_its_place(harness: Harness) -> None:
    def part(key: str, parcel: OutgoingBody) -> Outgoing:
        return Outgoing(f"telegram:{OWNER}", encode_body(parcel), key, time.time() + 60)

    async with open_store(harness.home) as store:
        shown = await store.outbox.begin(NO_SESSION, part("0", OutgoingBody("Wor", is_draft=True)))
        assert shown is not None
        await store.outbox.mark_sent(shown.id, "7")
        await store.outbox.add(NO_SESSION, [part("0", OutgoingBody("Words.")), part("1", OutgoingBody("More."))])
        await store.outbox.start(shown.id)
    harness.telegram.group(OWNER)
    harness.telegram.fault("editMessageText", FROZEN)
    async with harness.serve():
        await harness.wait_for_messages(2)
    assert texts(harness) == ["Words.", "More."]


async def test_a_reply_that_failed_is_told_on_a_platform_that_is_connected_only_later(harness: Harness) -> None:
    clock = TravellingClock()
    harness.gateway_clock = clock
    harness.model.say("Hello.")
    async with SlackServer() as slack:
        slack.fault("auth.test", Refusal(200, words="invalid_auth"))
        harness.add_platform("slack", {**slack.settings, "ping_s": 0.2, "home_channel": "D1001"})
        harness.telegram.fault("sendMessage", Refusal(403, words="Forbidden: bot was blocked by the user"))
        async with open_gateway_app(
            harness.settings(), clock=harness.gateway_clock, open_store=harness.open_store
        ) as gateway_app:
            harness.gateway, running = gateway_app, asyncio.create_task(gateway_app.gateway.run())
            await harness.until(lambda: {one.state for one in gateway_app.gateway.health} == {"connected", "refused"})
            await harness.telegram.say("hi")
            await harness.until(lambda: _is_due(harness, "slack:D1001"))
            clock.advance(REFUSED_WAIT_S)
            (told,) = await slack.wait_for(1)
            gateway_app.gateway.stop()
            await running
    assert told.text.startswith("A reply in telegram:1001 was not delivered: ")


async def _is_due(harness: Harness, target: str) -> bool:
    return target in await harness.store.outbox.list_targets()
