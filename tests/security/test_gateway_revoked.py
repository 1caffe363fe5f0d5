"""Those who may not speak any more are not answered either: whatever of theirs waits reaches no model, and they are
told nothing. A turn of theirs that runs may end."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.security.chats import (
    FRIEND,
    LISTED,
    MEMBER,
    OWNER,
    Speaker,
    asked,
    heard_all,
    let_in,
    say,
    texts,
    told_to_model,
)

from talaria.app.build import open_store
from talaria.testing import Reply, call
from talaria.testing.harness import Harness
from talaria.testing.servers.chat_service import Slow
from talaria.testing.servers.scripted_replies import Faults

CANARY = "canary-Zq7"
SLOW = Reply("First.", faults=Faults(first_byte_delay_s=0.6))
owner, member = Speaker("the owner", OWNER), Speaker("a member", MEMBER)
SendAway = Callable[[Harness], Awaitable[None]]


def people(harness: Harness, **changed: Any) -> None:
    """The settings, from the next reading on."""
    before = harness.config["gateway"]["platforms"]["telegram"]
    harness.add_platform("telegram", {**before, **changed})


async def _revoke(harness: Harness) -> None:
    """As `talaria pairing revoke` does, from another process; and the gateway has noticed it."""
    async with open_store(harness.home) as other:
        assert await other.access.revoke("telegram", MEMBER)
    if harness.gateway is not None:
        await harness.until(lambda: _is_stranger(harness))


async def _is_stranger(harness: Harness) -> bool:
    """What they say now is offered a code."""
    await say(harness, member, "/whoami")
    await heard_all(harness)
    return any("pairing approve" in text for text in texts(harness, user=MEMBER))


async def _unlist(harness: Harness) -> None:
    people(harness, allowed_users=[OWNER, FRIEND])
    if harness.gateway is not None:
        await harness.gateway.reload(harness.settings())


WAYS: dict[str, tuple[bool, SendAway]] = {"revoked": (False, _revoke), "not listed any more": (True, _unlist)}


@pytest.fixture(params=WAYS)
async def send_away(harness: Harness, request: pytest.FixtureRequest) -> SendAway:
    """Somebody was let in, and this sends them away."""
    is_listed, away = WAYS[request.param]
    if is_listed:
        people(harness, allowed_users=[OWNER, FRIEND, MEMBER])
    else:
        await let_in(harness.home)
    return away


async def _has_arrived(harness: Harness, count: int) -> bool:
    waiting = [
        row
        for session in await harness.store.inbox.list_sessions()
        for row in await harness.store.inbox.list_pending(session)
    ]
    return len(waiting) == count


async def _has_no_mail(harness: Harness) -> bool:
    return not await harness.store.inbox.list_sessions()


def _answers(harness: Harness) -> list[str]:
    """What they were told besides a code and who they are."""
    seen = texts(harness, user=MEMBER)
    return [text for text in seen if "pairing approve" not in text and not text.endswith("· user")]


async def test_what_waits_of_somebody_who_is_sent_away_reaches_no_model(harness: Harness, send_away: SendAway) -> None:
    harness.model.say(SLOW)
    async with harness.serve():
        await say(harness, member, "go")
        await asked(harness, 1)
        await say(harness, member, f"and {CANARY}")
        await say(harness, member, "/undo")
        await harness.until(lambda: _has_arrived(harness, 3))
        await send_away(harness)
        await harness.until(lambda: _has_no_mail(harness))
        await harness.until(lambda: _answers(harness) == ["First."])
        await heard_all(harness)
        assert _answers(harness) == ["First."]
    assert CANARY not in told_to_model(harness.model.requests)
    assert len(harness.model.requests) == 1


async def test_what_a_restart_finds_of_somebody_who_was_sent_away_reaches_no_model(
    harness: Harness, send_away: SendAway
) -> None:
    """Neither what waits nor what was begun goes on."""
    harness.config["gateway"]["drain_s"] = 0.1
    harness.model.say(Reply("never", faults=Faults(hang=True)))
    async with harness.serve():
        await say(harness, member, "go")
        await asked(harness, 1)
        await say(harness, member, f"and {CANARY}")
        await harness.until(lambda: _has_arrived(harness, 2))
    harness.gateway = None
    await send_away(harness)
    async with harness.serve():
        await harness.until(lambda: _has_no_mail(harness))
        await heard_all(harness)
        assert texts(harness, user=MEMBER) == []
        assert len(harness.model.requests) == 1


async def test_whoever_is_let_in_again_goes_on_where_they_were(harness: Harness) -> None:
    harness.config["gateway"]["drain_s"] = 0.1
    await let_in(harness.home)
    harness.model.say(Reply("never", faults=Faults(hang=True)))
    async with harness.serve():
        await say(harness, member, "go")
        await asked(harness, 1)
    harness.gateway = None
    await _revoke(harness)
    async with harness.serve():
        await harness.until(lambda: _has_no_mail(harness))
        await let_in(harness.home)
        await harness.until(lambda: _is_heard(harness))
        await say(harness, member, "SAY here again")
        await harness.until(lambda: texts(harness, user=MEMBER)[-1] == "here again")
    assert len(harness.model.requests) == 2


async def _is_heard(harness: Harness) -> bool:
    await say(harness, member, "/whoami")
    await heard_all(harness)
    return any(text.endswith("· user") for text in texts(harness, user=MEMBER))


async def test_a_turn_is_not_steered_by_somebody_who_was_sent_away(harness: Harness, send_away: SendAway) -> None:
    harness.config["gateway"]["busy_mode"] = "steer"
    harness.model.say(Reply(calls=(call("todo", todos=[]),), faults=Faults(first_byte_delay_s=1.5)), "First.")
    async with harness.serve():
        await say(harness, member, "go")
        await asked(harness, 1)
        await say(harness, member, f"rather {CANARY}")
        await harness.until(lambda: _has_arrived(harness, 2))
        await send_away(harness)
        await harness.until(lambda: _answers(harness) == ["First."])
        await harness.until(lambda: _has_no_mail(harness))
    assert CANARY not in told_to_model(harness.model.requests)


async def test_somebody_who_is_sent_away_while_their_file_is_fetched_is_not_answered(harness: Harness) -> None:
    people(harness, allowed_users=[OWNER, FRIEND, MEMBER])
    async with harness.serve():
        kept = harness.telegram.keep_file(b"words")
        harness.telegram.fault("getFile", Slow(0.5))
        document = {"file_id": kept, "file_unique_id": kept, "file_name": "a.txt", "file_size": 5}
        await harness.telegram.post({"document": document, "caption": CANARY}, user=MEMBER)
        await harness.telegram.wait_for_calls("getFile", 1)
        await _unlist(harness)
        await harness.until(lambda: _has_no_mail(harness))
        await heard_all(harness)
        assert texts(harness, user=MEMBER) == []
    assert harness.model.requests == []


async def test_in_a_group_that_is_not_listed_any_more_nobody_is_answered(harness: Harness) -> None:
    there = Speaker("the owner there", OWNER, LISTED)
    harness.model.say(SLOW)
    async with harness.serve() as gateway_app:
        await say(harness, there, "go", thread="7")
        await asked(harness, 1)
        await say(harness, there, CANARY, thread="7")
        await harness.until(lambda: _has_arrived(harness, 2))
        people(harness, allowed_chats=[])
        await gateway_app.reload(harness.settings())
        await harness.until(lambda: _has_no_mail(harness))
        await harness.until(lambda: texts(harness, chat=LISTED) == ["First."])
    assert CANARY not in told_to_model(harness.model.requests)


async def test_what_waits_of_an_admin_who_is_none_any_more_is_no_admins(harness: Harness) -> None:
    harness.model.say(SLOW)
    async with harness.serve() as gateway_app:
        await say(harness, owner, "go")
        await asked(harness, 1)
        await say(harness, owner, "/sethome")
        await harness.until(lambda: _has_arrived(harness, 2))
        people(harness, admin_users=[FRIEND])
        await gateway_app.reload(harness.settings())
        await harness.until(lambda: texts(harness) == ["First.", "Only admins can use /sethome."])
        assert await harness.store.chats.home("telegram") is None


async def test_what_waits_is_kept_while_its_platform_is_not_set_up(harness: Harness) -> None:
    """Who may speak there is not known then, so nobody is sent away."""
    harness.model.say(SLOW)
    async with harness.serve() as gateway_app:
        await say(harness, owner, "go")
        await asked(harness, 1)
        await say(harness, owner, "SAY still here")
        await harness.until(lambda: _has_arrived(harness, 2))
        telegram = harness.config["gateway"]["platforms"].pop("telegram")
        await gateway_app.reload(harness.settings())
        await harness.until(lambda: gateway_app.gateway.running == 0)
        assert await _has_arrived(harness, 1)
        assert len(harness.model.requests) == 1
        harness.add_platform("telegram", telegram)
        await gateway_app.reload(harness.settings())
        await harness.until(lambda: texts(harness) == ["First.", "still here"])
