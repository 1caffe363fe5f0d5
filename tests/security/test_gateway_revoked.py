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


def people(house: Harness, **changed: Any) -> None:
    """The settings, from the next reading on."""
    before = house.config["gateway"]["platforms"]["telegram"]
    house.add_platform("telegram", {**before, **changed})


async def _revoke(house: Harness) -> None:
    """As `talaria pairing revoke` does, from another process; and the gateway has noticed it."""
    async with open_store(house.home) as other:
        assert await other.access.revoke("telegram", MEMBER)
    if house.gateway is not None:
        await house.until(lambda: _is_stranger(house))


async def _is_stranger(house: Harness) -> bool:
    """What they say now is offered a code."""
    await say(house, member, "/whoami")
    await heard_all(house)
    return any("pairing approve" in text for text in texts(house, user=MEMBER))


async def _unlist(house: Harness) -> None:
    people(house, allowed_users=[OWNER, FRIEND])
    if house.gateway is not None:
        await house.gateway.reload(house.settings())


WAYS: dict[str, tuple[bool, SendAway]] = {"revoked": (False, _revoke), "not listed any more": (True, _unlist)}


@pytest.fixture(params=WAYS)
async def send_away(house: Harness, request: pytest.FixtureRequest) -> SendAway:
    """Somebody was let in, and this sends them away."""
    is_listed, away = WAYS[request.param]
    if is_listed:
        people(house, allowed_users=[OWNER, FRIEND, MEMBER])
    else:
        await let_in(house.home)
    return away


async def _has_arrived(house: Harness, count: int) -> bool:
    waiting = [
        row
        for session in await house.store.inbox.list_sessions()
        for row in await house.store.inbox.list_pending(session)
    ]
    return len(waiting) == count


async def _has_no_mail(house: Harness) -> bool:
    return not await house.store.inbox.list_sessions()


def _answers(house: Harness) -> list[str]:
    """What they were told besides a code and who they are."""
    seen = texts(house, user=MEMBER)
    return [text for text in seen if "pairing approve" not in text and not text.endswith("· user")]


async def test_what_waits_of_somebody_who_is_sent_away_reaches_no_model(house: Harness, send_away: SendAway) -> None:
    house.model.say(SLOW)
    async with house.serve():
        await say(house, member, "go")
        await asked(house, 1)
        await say(house, member, f"and {CANARY}")
        await say(house, member, "/undo")
        await house.until(lambda: _has_arrived(house, 3))
        await send_away(house)
        await house.until(lambda: _has_no_mail(house))
        await house.until(lambda: _answers(house) == ["First."])
        await heard_all(house)
        assert _answers(house) == ["First."]
    assert CANARY not in told_to_model(house.model.requests)
    assert len(house.model.requests) == 1


async def test_what_a_restart_finds_of_somebody_who_was_sent_away_reaches_no_model(
    house: Harness, send_away: SendAway
) -> None:
    """Neither what waits nor what was begun goes on."""
    house.config["gateway"]["drain_s"] = 0.1
    house.model.say(Reply("never", faults=Faults(hang=True)))
    async with house.serve():
        await say(house, member, "go")
        await asked(house, 1)
        await say(house, member, f"and {CANARY}")
        await house.until(lambda: _has_arrived(house, 2))
    house.gateway = None
    await send_away(house)
    async with house.serve():
        await house.until(lambda: _has_no_mail(house))
        await heard_all(house)
        assert texts(house, user=MEMBER) == []
        assert len(house.model.requests) == 1


async def test_whoever_is_let_in_again_goes_on_where_they_were(house: Harness) -> None:
    house.config["gateway"]["drain_s"] = 0.1
    await let_in(house.home)
    house.model.say(Reply("never", faults=Faults(hang=True)))
    async with house.serve():
        await say(house, member, "go")
        await asked(house, 1)
    house.gateway = None
    await _revoke(house)
    async with house.serve():
        await house.until(lambda: _has_no_mail(house))
        await let_in(house.home)
        await house.until(lambda: _is_heard(house))
        await say(house, member, "SAY here again")
        await house.until(lambda: texts(house, user=MEMBER)[-1] == "here again")
    assert len(house.model.requests) == 2


async def _is_heard(house: Harness) -> bool:
    await say(house, member, "/whoami")
    await heard_all(house)
    return any(text.endswith("· user") for text in texts(house, user=MEMBER))


async def test_a_turn_is_not_steered_by_somebody_who_was_sent_away(house: Harness, send_away: SendAway) -> None:
    house.config["gateway"]["busy_mode"] = "steer"
    house.model.say(Reply(calls=(call("todo", todos=[]),), faults=Faults(first_byte_delay_s=1.5)), "First.")
    async with house.serve():
        await say(house, member, "go")
        await asked(house, 1)
        await say(house, member, f"rather {CANARY}")
        await house.until(lambda: _has_arrived(house, 2))
        await send_away(house)
        await house.until(lambda: _answers(house) == ["First."])
        await house.until(lambda: _has_no_mail(house))
    assert CANARY not in told_to_model(house.model.requests)


async def test_somebody_who_is_sent_away_while_their_file_is_fetched_is_not_answered(house: Harness) -> None:
    people(house, allowed_users=[OWNER, FRIEND, MEMBER])
    async with house.serve():
        kept = house.telegram.keep_file(b"words")
        house.telegram.fault("getFile", Slow(0.5))
        document = {"file_id": kept, "file_unique_id": kept, "file_name": "a.txt", "file_size": 5}
        await house.telegram.post({"document": document, "caption": CANARY}, user=MEMBER)
        await house.telegram.wait_for_calls("getFile", 1)
        await _unlist(house)
        await house.until(lambda: _has_no_mail(house))
        await heard_all(house)
        assert texts(house, user=MEMBER) == []
    assert house.model.requests == []


async def test_in_a_group_that_is_not_listed_any_more_nobody_is_answered(house: Harness) -> None:
    there = Speaker("the owner there", OWNER, LISTED)
    house.model.say(SLOW)
    async with house.serve() as board:
        await say(house, there, "go", thread="7")
        await asked(house, 1)
        await say(house, there, CANARY, thread="7")
        await house.until(lambda: _has_arrived(house, 2))
        people(house, allowed_chats=[])
        await board.reload(house.settings())
        await house.until(lambda: _has_no_mail(house))
        await house.until(lambda: texts(house, chat=LISTED) == ["First."])
    assert CANARY not in told_to_model(house.model.requests)


async def test_what_waits_of_an_admin_who_is_none_any_more_is_no_admins(house: Harness) -> None:
    house.model.say(SLOW)
    async with house.serve() as board:
        await say(house, owner, "go")
        await asked(house, 1)
        await say(house, owner, "/sethome")
        await house.until(lambda: _has_arrived(house, 2))
        people(house, admin_users=[FRIEND])
        await board.reload(house.settings())
        await house.until(lambda: texts(house) == ["First.", "Only admins can use /sethome."])
        assert await house.store.chats.home("telegram") is None


async def test_what_waits_is_kept_while_its_platform_is_not_set_up(house: Harness) -> None:
    """Who may speak there is not known then, so nobody is sent away."""
    house.model.say(SLOW)
    async with house.serve() as board:
        await say(house, owner, "go")
        await asked(house, 1)
        await say(house, owner, "SAY still here")
        await house.until(lambda: _has_arrived(house, 2))
        telegram = house.config["gateway"]["platforms"].pop("telegram")
        await board.reload(house.settings())
        await house.until(lambda: board.gateway.running == 0)
        assert await _has_arrived(house, 1)
        assert len(house.model.requests) == 1
        house.add_platform("telegram", telegram)
        await board.reload(house.settings())
        await house.until(lambda: texts(house) == ["First.", "still here"])
