import pytest

from talaria.core.entries import Entry, MessageAdded, Noted, Recorded, TurnEnded, TurnStarted
from talaria.core.ids import OwnerId, SessionId, TurnId
from talaria.core.messages import Assistant, Text, Usage, user
from talaria.store.base import BrokenRuleError, Held, NewSession, Store
from talaria.testing.manual_clock import ManualClock

OLD = SessionId("20250101_120000_abcdef")
FIRST, SECOND = TurnId("turn-1"), TurnId("turn-2")


def turn(id: TurnId, question: str, at: float) -> list[tuple[float, Entry]]:
    return [
        (at, TurnStarted(id, "terminal")),
        (at, MessageAdded(user(question))),
        (at + 5, MessageAdded(Assistant((Text(f"answer to {question}"),)))),
        (at + 5, TurnEnded(id, "completed", Usage(1, 2))),
    ]


def journal(*entries: tuple[float, Entry]) -> list[Recorded]:
    return [Recorded(seq, at, entry) for seq, (at, entry) in enumerate(entries, 1)]


TWO_TURNS = journal(*turn(FIRST, "needle", 100.0), *turn(SECOND, "thread", 200.0))


async def test_adopted_session_stands_as_if_it_had_been_recorded_then(store: Store) -> None:
    new = NewSession(OLD, "cli", "openai:gpt", "/work", "You are…", '[{"name":"x"}]', "Sewing")

    assert await store.sessions.adopt(new, 90.0, TWO_TURNS)

    session = await store.sessions.get(OLD)
    assert session is not None
    assert (session.source, session.model, session.cwd, session.title) == ("cli", "openai:gpt", "/work", "Sewing")
    assert (session.system_prompt, session.tools) == ("You are…", '[{"name":"x"}]')
    assert (session.created_at, session.updated_at) == (90.0, 205.0)
    assert (session.open_turn, session.message_count, session.usage) == (None, 4, Usage(2, 4))
    assert session.preview == "needle"
    assert await store.journal.entries(OLD) == TWO_TURNS
    assert [(hit.session, hit.at) for hit in await store.search.search("thread answer")] == [(OLD, 205.0)]


async def test_adopting_again_changes_nothing(store: Store) -> None:
    await store.sessions.adopt(NewSession(OLD, "cli", title="Sewing"), 90.0, TWO_TURNS)
    before = await store.sessions.get(OLD)

    other = journal(*turn(FIRST, "other", 300.0))
    assert not await store.sessions.adopt(NewSession(OLD, "telegram", title="Other"), 300.0, other)

    assert await store.sessions.get(OLD) == before
    assert await store.journal.entries(OLD) == TWO_TURNS


async def test_adopted_session_goes_on(store: Store, owner: OwnerId, clock: ManualClock) -> None:
    await store.sessions.adopt(NewSession(OLD, "cli"), 90.0, TWO_TURNS)
    epoch = await store.journal.seize(OLD, owner)
    assert not isinstance(epoch, Held)

    await store.journal.record(OLD, epoch, [TurnStarted(TurnId("turn-3"), "terminal"), MessageAdded(user("more"))])

    last = (await store.journal.entries(OLD))[-1]
    assert (last.seq, last.at) == (10, clock.now())
    assert await store.journal.list_interrupted() == []


async def test_adopted_session_is_listed_by_its_own_activity(store: Store, session: SessionId) -> None:
    await store.sessions.adopt(NewSession(OLD, "cli"), 90.0, TWO_TURNS)

    assert [found.id for found in await store.sessions.list()] == [session, OLD]
    assert await store.sessions.latest("cli") == await store.sessions.get(OLD)


async def test_title_that_is_taken_gets_the_next_free_number(store: Store) -> None:
    await store.sessions.create(NewSession(SessionId("mine"), "test", title="Sewing"))
    await store.sessions.create(NewSession(SessionId("mine-2"), "test", title="Sewing (2)"))
    for name in ("old-1", "old-2"):
        assert await store.sessions.adopt(NewSession(SessionId(name), "cli", title="Sewing"), 90.0, [])

    titles = {found.id: found.title for found in await store.sessions.list()}
    assert titles == {"mine": "Sewing", "mine-2": "Sewing (2)", "old-1": "Sewing (3)", "old-2": "Sewing (4)"}


async def test_blank_title_is_none(store: Store) -> None:
    assert await store.sessions.adopt(NewSession(OLD, "cli", title=" \n"), 90.0, [])

    session = await store.sessions.get(OLD)
    assert session is not None
    assert (session.title, session.updated_at) == (None, 90.0)


async def test_parent_is_kept_if_it_is_here(store: Store, session: SessionId) -> None:
    await store.sessions.adopt(NewSession(OLD, "cli", parent=session), 90.0, [])
    await store.sessions.adopt(NewSession(SessionId("other"), "cli", parent=SessionId("nobody")), 90.0, [])

    parents = {found.id: found.parent for found in await store.sessions.list()}
    assert (parents[OLD], parents[SessionId("other")]) == (session, None)


@pytest.mark.parametrize(
    "entries",
    [
        [*turn(FIRST, "whole", 1.0), *turn(SECOND, "open", 9.0)[:3]],
        [*turn(FIRST, "open", 1.0)[:2], *turn(SECOND, "inside", 9.0)],
        [*turn(FIRST, "whole", 1.0), (9.0, TurnEnded(SECOND, "completed"))],
    ],
    ids=["no end", "turn inside a turn", "end without a start"],
)
async def test_journal_that_is_not_at_rest_is_refused_whole(store: Store, entries: list[tuple[float, Entry]]) -> None:
    with pytest.raises(BrokenRuleError):
        await store.sessions.adopt(NewSession(OLD, "cli"), 90.0, journal(*entries))

    assert await store.sessions.get(OLD) is None
    assert await store.journal.entries(OLD) == []


async def test_refused_session_leaves_its_id_and_title_free(store: Store) -> None:
    with pytest.raises(BrokenRuleError):
        await store.sessions.adopt(
            NewSession(OLD, "cli", title="Sewing"), 90.0, journal((1.0, TurnStarted(FIRST, "terminal")))
        )

    assert await store.sessions.adopt(NewSession(OLD, "cli", title="Sewing"), 90.0, journal((1.0, Noted("a"))))
    assert [found.title for found in await store.sessions.list()] == ["Sewing"]
