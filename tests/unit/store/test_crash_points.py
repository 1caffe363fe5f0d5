"""Every commit of the mail has a moment before it and a moment after it, and is passed on."""

from pathlib import Path

from talaria.core.ids import SessionId
from talaria.store.chat_ports import Inbound, Outgoing
from talaria.testing.crash import CrashPoints, World, crashing_store
from talaria.testing.manual_clock import ManualClock

SESSION = SessionId("session-1")


def around(*names: str) -> list[str]:
    return [f"{side} {name}" for name in names for side in ("before", "after")]


async def test_mail_passes_its_moments_on_the_way_in(home: Path, tmp_path: Path, clock: ManualClock) -> None:
    trace = World(tmp_path / "trace")
    async with crashing_store(CrashPoints(trace))(home, clock) as store:
        (mail,) = await store.inbox.accept([Inbound("p", "a", "c", "1", SESSION, "hi", "key")])
        assert mail is not None
        assert mail.session == SESSION
        (mail,) = await store.inbox.list_pending(SESSION)
        assert await store.inbox.take(mail.id)
        await store.inbox.finish(SESSION, [mail.id], [Outgoing("p:c", "hello", "reply", 9e9)])
        assert await store.chats.bind("key", SESSION, "p:c") == SESSION
        assert await store.outbox.list_targets() == ["p:c"]

    assert trace.lines() == around("accept", "take", "finish", "bind")


async def test_mail_passes_its_moments_on_the_way_out(home: Path, tmp_path: Path, clock: ManualClock) -> None:
    trace = World(tmp_path / "trace")
    async with crashing_store(CrashPoints(trace))(home, clock) as store:
        await store.outbox.add(SESSION, [Outgoing("p:c", "hello", key, 9e9) for key in "abc"])
        draft = await store.outbox.begin(SESSION, Outgoing("p:c", "hel", "draft", 9e9))
        first, second, third, fourth = await store.outbox.list_due("p:c")
        assert fourth == draft
        await store.outbox.start(first.id)
        await store.outbox.defer(first.id, "busy")
        await store.outbox.fail(second.id, "no")
        await store.outbox.expire(third.id)
        await store.outbox.mark_sent(fourth.id, "7")
        assert [row.state for row in await store.outbox.rows(SESSION)] == ["pending", "failed", "expired", "sent"]

    assert trace.lines() == around("add", "begin", "start", "defer", "fail", "expire", "mark sent")
