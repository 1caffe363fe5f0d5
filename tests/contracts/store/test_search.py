from collections.abc import Awaitable, Callable

import pytest

from talaria.core.entries import MessageAdded, Noted, TurnEnded, TurnStarted
from talaria.core.ids import CallId, Epoch, SessionId, TurnId
from talaria.core.messages import Assistant, Context, Text, Thinking, ToolCall, ToolResult, User, user
from talaria.store.base import NewSession, SearchHit, Store
from talaria.testing.manual_clock import ManualClock

Say = Callable[[str], Awaitable[None]]


@pytest.fixture
def say(store: Store, session: SessionId, epoch: Epoch) -> Say:
    async def record(text: str) -> None:
        await store.journal.record(session, epoch, [MessageAdded(user(text))])

    return record


async def found(store: Store, query: str) -> list[str]:
    return [hit.snippet for hit in await store.search.search(query)]


async def test_hit_names_session_title_time_and_role(
    store: Store, session: SessionId, epoch: Epoch, clock: ManualClock
) -> None:
    await store.sessions.rename(session, "Garden")
    await store.journal.record(session, epoch, [MessageAdded(Assistant((Text("Roses need water."),)))])

    assert await store.search.search("roses") == [
        SearchHit(session, "Garden", clock.now(), "assistant", "Roses need water.")
    ]


async def test_all_words_must_be_there_in_any_order(store: Store, say: Say) -> None:
    for text in ("red roses", "roses are red", "red tulips"):
        await say(text)

    assert await found(store, "red roses") == ["roses are red", "red roses"]


async def test_newest_message_comes_first_up_to_the_limit(store: Store, say: Say) -> None:
    for n in range(5):
        await say(f"note {n}")

    assert await found(store, "note") == ["note 4", "note 3", "note 2", "note 1", "note 0"]
    assert [hit.snippet for hit in await store.search.search("note", limit=2)] == ["note 4", "note 3"]


async def test_what_was_said_after_a_search_is_found_by_the_next(store: Store, say: Say) -> None:
    await say("first needle")
    assert await found(store, "needle") == ["first needle"]
    await say("second needle")

    assert await found(store, "needle") == ["second needle", "first needle"]


async def test_people_answers_and_results_are_searched_but_not_hidden_parts(
    store: Store, session: SessionId, epoch: Epoch
) -> None:
    await store.journal.record(
        session,
        epoch,
        [
            MessageAdded(User((Context("needle in the context"), Text("person's needle")))),
            MessageAdded(
                Assistant((Thinking("secret needle"), Text("answered needle"), ToolCall(CallId("c"), "needle", "{}")))
            ),
            MessageAdded(ToolResult(CallId("c"), "grep", "needle in a result")),
            Noted("needle in a note"),
        ],
    )

    hits = await store.search.search("needle")

    assert [(hit.role, hit.snippet) for hit in hits] == [
        ("result", "needle in a result"),
        ("assistant", "answered needle"),
        ("user", "person's needle"),
    ]


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("今日は東京で会議があります", "東京"),
        ("今日は東京で会議があります", "会議 東京"),
        ("我们明天去北京大学", "北京大学"),
        ("회의는 내일입니다", "내일"),
        ("mixed 東京 words", "東京 words"),
    ],
)
async def test_scripts_without_spaces_are_found_by_any_part(store: Store, say: Say, text: str, query: str) -> None:
    await say(text)
    await say("something else entirely")

    assert await found(store, query) == [text]


async def test_signs_in_another_order_are_not_the_same_word(store: Store, say: Say) -> None:
    await say("京東")

    assert await found(store, "東京") == []


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Crème brûlée", "creme brulee"),
        ("creme brulee", "CRÈME BRÛLÉE"),
        ("Ångström", "angstrom"),
        ("ПРИВЕТ", "привет"),
    ],
)
async def test_case_and_diacritics_do_not_matter(store: Store, say: Say, text: str, query: str) -> None:
    await say(text)

    assert await found(store, query) == [text]


@pytest.mark.parametrize(
    "query",
    [
        '"fox',
        '"quick fox"',
        "fox*",
        "(fox)",
        "fox AND",
        "NEAR(fox",
        "text:fox",
        "-fox",
        "^fox",
        "fox + quick",
        "'fox'",
        "fox;",
        "{fox}",
        "fox\\",
        "\0fox",
        'AND OR NOT "fox',
    ],
)
async def test_search_syntax_is_plain_text(store: Store, say: Say, query: str) -> None:
    await say("near fox and text: fox or not quick")

    assert await found(store, query) == ["near fox and text: fox or not quick"]


@pytest.mark.parametrize("query", ["", "   ", '"', '""', "*", "( )", "- -", "\0"])
async def test_query_without_words_finds_nothing(store: Store, say: Say, query: str) -> None:
    await say("anything ( ) - *")

    assert await found(store, query) == []


async def test_part_of_a_word_does_not_match(store: Store, say: Say) -> None:
    await say("gardening")

    assert await found(store, "garden") == []


async def test_word_with_a_hyphen_is_a_phrase(store: Store, say: Say) -> None:
    await say("a well-known path")
    await say("known well by all")

    assert await found(store, "well-known") == ["a well-known path"]


async def test_long_message_is_shown_around_the_first_word(store: Store, say: Say) -> None:
    await say("before " * 100 + "needle" + " after" * 100)

    (snippet,) = await found(store, "needle after")

    assert "needle" in snippet
    assert snippet.startswith("…")
    assert snippet.endswith("…")
    assert len(snippet) <= 162


async def test_deleted_session_is_not_found_and_does_not_use_up_the_limit(store: Store, say: Say) -> None:
    await say("needle that stays")
    owner = await store.owners.join("test")
    await store.sessions.create(NewSession(SessionId("gone"), "test"))
    epoch = await store.journal.seize(SessionId("gone"), owner)
    assert isinstance(epoch, int)
    await store.journal.record(SessionId("gone"), epoch, [MessageAdded(user(f"needle {n}")) for n in range(5)])
    assert len(await store.search.search("needle")) == 6
    await store.owners.leave(owner)

    await store.sessions.delete(SessionId("gone"))

    assert [hit.snippet for hit in await store.search.search("needle", limit=1)] == ["needle that stays"]


async def test_search_of_one_person_finds_only_theirs_and_others_do_not_use_up_the_limit(store: Store) -> None:
    owner = await store.owners.join("test")
    for person in ("ann", "bob"):
        mine = SessionId(f"of {person}")
        await store.sessions.create(NewSession(mine, "test", person=person))
        epoch = await store.journal.seize(mine, owner)
        assert isinstance(epoch, int)
        await store.journal.record(mine, epoch, [MessageAdded(user(f"{person}'s needle {n}")) for n in range(9)])

    assert [hit.snippet for hit in await store.search.search("needle", 2, "ann")] == [
        "ann's needle 8",
        "ann's needle 7",
    ]
    assert len(await store.search.search("needle", person="ann")) == 9
    assert await store.search.search("needle", person="nobody") == []
    assert len(await store.search.search("needle")) == 18


async def test_session_deleted_before_it_was_ever_indexed_is_not_found(store: Store, session: SessionId) -> None:
    owner = await store.owners.join("test")
    epoch = await store.journal.seize(session, owner)
    assert isinstance(epoch, int)
    await store.journal.record(session, epoch, [MessageAdded(user("needle"))])
    await store.owners.leave(owner)
    await store.sessions.delete(session)

    assert await found(store, "needle") == []


async def test_fork_is_found_beside_its_origin(store: Store, say: Say, session: SessionId, epoch: Epoch) -> None:
    await store.journal.record(session, epoch, [TurnStarted(TurnId("t"), "terminal")])
    await say("needle")
    await store.journal.record(session, epoch, [TurnEnded(TurnId("t"), "completed")])
    await store.sessions.fork(session, SessionId("copy"))

    assert [hit.session for hit in await store.search.search("needle")] == ["copy", session]


async def test_rebuilt_index_finds_the_same(store: Store, say: Say, session: SessionId, epoch: Epoch) -> None:
    await say("first needle")
    await say("second needle")
    await store.journal.record(session, epoch, [Noted("not a message")])
    before = await store.search.search("needle")

    assert await store.search.rebuild() == 2
    assert await store.search.search("needle") == before
    assert await store.search.rebuild() == 2
