"""Schema versions: a fresh file, a known one, an old one, one from the future."""

import time
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import cast

import apsw
import msgspec
import pytest

from talaria.core.entries import Entry, MessageAdded, Noted
from talaria.core.errors import StoreTooNew
from talaria.core.ids import CallId, SessionId, TurnId
from talaria.core.messages import Assistant, Text, ToolCall, ToolResult, Usage, user
from talaria.store.api_ports import HistoryMatch, HistoryPoint
from talaria.store.base import Amount, Held, NewSession, Totals, UsageRow
from talaria.store.signal_port import NewSignal
from talaria.store.sqlite.connection import LATEST, SqliteConnection, steps
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.manual_clock import ManualClock

AT = 1_770_000_000.0
"""2026-02-02 02:40 UTC: the day before, twelve hours further west."""

Row = tuple[str, int, float, str]
"""Session, place, time and body of an entry."""


def version(path: Path) -> int:
    connection = cast("SqliteConnection", apsw.Connection(str(path)))
    try:
        return int(connection.pragma("user_version"))
    finally:
        connection.close()


def write_future(path: Path, mode: str) -> None:
    path.parent.mkdir()
    connection = cast("SqliteConnection", apsw.Connection(str(path)))
    connection.pragma("journal_mode", mode)
    connection.execute("CREATE TABLE of_tomorrow (x)")
    connection.pragma("user_version", LATEST + 1)
    connection.close()


def row(session: str, seq: int, at: float, entry: Entry) -> Row:
    return session, seq, at, msgspec.json.encode(entry).decode()


def answer(usage: Usage | None, model: str = "large-1") -> MessageAdded:
    return MessageAdded(Assistant((Text("so"),), "end", usage, f"openai_chat https://example.org/v1 {model}"))


def write_schema(number: int, path: Path) -> None:
    """With a session called `one`."""
    path.parent.mkdir()
    connection = cast("SqliteConnection", apsw.Connection(str(path)))
    for _, sql in steps()[:number]:
        connection.execute(sql)
    connection.pragma("user_version", number)
    connection.execute(
        "INSERT INTO sessions (id, source, model, cwd, created_at, updated_at) VALUES ('one', 'test', '', '', 0, 0);"
        "INSERT INTO prompts VALUES ('one', '', '[]')"
    )
    connection.close()


def write_schema_1(path: Path, rows: Sequence[Row]) -> None:
    path.parent.mkdir()
    connection = cast("SqliteConnection", apsw.Connection(str(path)))
    connection.execute(steps()[0][1])
    connection.pragma("user_version", 1)
    for session in {row[0]: None for row in rows}:
        connection.execute(
            "INSERT INTO sessions (id, source, model, cwd, system_prompt, tools, created_at, updated_at)"
            " VALUES (?, 'test', '', '', '', '[]', 0, 0)",
            (session,),
        )
    connection.executemany("INSERT INTO entries (session, seq, at, body) VALUES (?, ?, ?, ?)", rows)
    connection.close()


@pytest.fixture
def twelve_hours_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local time is that of Baker Island."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "<-12>12")
        time.tzset()
        yield
    time.tzset()


def test_latest_is_the_number_of_the_newest_file() -> None:
    folder = resources.files("talaria.store.sqlite") / "migrations"
    names = sorted(item.name for item in folder.iterdir() if item.name.endswith(".sql"))

    assert int(names[-1].split("_")[0]) == LATEST


def test_migrations_are_numbered_without_gaps() -> None:
    assert [number for number, _ in steps()] == list(range(1, LATEST + 1))


async def test_fresh_home_gets_the_newest_schema(home: Path, clock: ManualClock) -> None:
    async with SqliteStore(home, clock) as store:
        await store.sessions.create(NewSession(SessionId("s"), "test"))

    assert version(home / "state.db") == LATEST


async def test_known_file_is_opened_as_it_is(home: Path, clock: ManualClock) -> None:
    async with SqliteStore(home, clock) as store:
        await store.sessions.create(NewSession(SessionId("s"), "test"))
    async with SqliteStore(home, clock) as store:
        assert await store.sessions.get(SessionId("s")) is not None


@pytest.mark.parametrize("mode", ["wal", "delete"])
async def test_file_from_the_future_is_refused_in_a_sentence_and_left_alone(
    home: Path, clock: ManualClock, mode: str
) -> None:
    path = home / "state.db"
    write_future(path, mode)
    before = path.read_bytes()

    with pytest.raises(StoreTooNew) as refusal:
        async with SqliteStore(home, clock):
            pass

    assert str(path) in str(refusal.value)
    assert f"schema {LATEST + 1}" in str(refusal.value)
    assert path.read_bytes() == before


async def test_answers_from_before_spending_was_counted_are_counted(home: Path, clock: ManualClock) -> None:
    call = ToolCall(CallId("c1"), "terminal", "{}")
    calling = MessageAdded(Assistant((call,), "calls", Usage(1, 20, 300, 4_000, 7), "openai_chat  small"))
    write_schema_1(
        home / "state.db",
        [
            row("one", 1, AT, MessageAdded(user('{"type":"assistant","usage":{"input":9}}'))),
            row("one", 2, AT + 1, calling),
            row("one", 3, AT + 2, MessageAdded(ToolResult(CallId("c1"), "terminal", "done"))),
            row("one", 4, AT + 3, answer(Usage(5))),
            row("two", 1, AT + 4, answer(Usage(10, 1))),
            row("two", 2, AT + 5, answer(None)),
            row("two", 3, AT + 6, Noted("assistant")),
        ],
    )

    async with SqliteStore(home, clock) as store:
        assert await store.spending.usage("session") == [
            UsageRow("two", 1, Usage(10, 1), 0.0, 1),
            UsageRow("one", 2, Usage(6, 20, 300, 4_000, 7), 0.0, 2),
        ]
        assert await store.spending.usage("model") == [
            UsageRow("small", 1, Usage(1, 20, 300, 4_000, 7), 0.0, 1),
            UsageRow("large-1", 2, Usage(15, 1), 0.0, 2),
        ]
        assert [line.key for line in await store.spending.usage("session", since=AT + 4)] == ["two"]


@pytest.mark.usefixtures("twelve_hours_behind")
async def test_answers_from_before_belong_to_their_local_day_and_to_the_local_person(home: Path) -> None:
    write_schema_1(home / "state.db", [row("one", 1, AT, answer(Usage(10)))])
    seen: list[Totals] = []

    def look(totals: Totals) -> Amount:
        seen.append(totals)
        return Amount()

    async with SqliteStore(home, ManualClock(AT)) as store:
        assert [line.key for line in await store.spending.usage("day")] == ["2026-02-01"]
        owner = await store.owners.join("test")
        for person in ("local", "somebody"):
            await store.spending.hold(SessionId("one"), person, owner, look)

    assert [(totals.session.tokens, totals.day.tokens, totals.person.tokens) for totals in seen] == [
        (10, 10, 10),
        (10, 10, 0),
    ]


async def test_answer_that_a_fork_has_copied_is_counted_once_for_its_first_session(
    home: Path, clock: ManualClock
) -> None:
    said = [(2, AT, answer(Usage(10))), (4, AT + 1, answer(Usage(10)))]
    copied = [row(session, *one) for session in ("z-first", "a-fork", "m-fork") for one in said]
    write_schema_1(home / "state.db", [*copied, row("a-fork", 6, AT + 2, answer(Usage(1)))])

    async with SqliteStore(home, clock) as store:
        assert await store.spending.usage("session") == [
            UsageRow("a-fork", 1, Usage(1), 0.0, 1),
            UsageRow("z-first", 2, Usage(20), 0.0, 2),
        ]


async def test_damaged_entry_does_not_keep_an_old_file_from_being_opened(home: Path, clock: ManualClock) -> None:
    write_schema_1(home / "state.db", [("one", 1, AT, '{"type":"mess'), row("one", 2, AT, answer(Usage(10)))])

    async with SqliteStore(home, clock) as store:
        assert [line.usage for line in await store.spending.usage("session")] == [Usage(10)]


async def test_conversations_and_mail_from_before_platforms_are_kept(home: Path, clock: ManualClock) -> None:
    write_schema_1(home / "state.db", [row("one", 1, AT, MessageAdded(user("hello")))])
    connection = cast("SqliteConnection", apsw.Connection(str(home / "state.db")))
    connection.execute(
        "INSERT INTO inbox (platform, account, chat, message_id, session, body, received_at)"
        " VALUES ('telegram', 'bot', '42', '1', 'one', 'mail', 0);"
        "INSERT INTO outbox (session, target, body, key, created_at, expires_at)"
        " VALUES ('one', 'telegram:42', 'reply', 'key', 1, 2)"
    )
    connection.close()

    async with SqliteStore(home, clock) as store:
        assert [(session.id, session.person) for session in await store.sessions.list(person="local")] == [
            ("one", "local")
        ]
        assert [
            (mail.message_id, mail.key, mail.state) for mail in await store.inbox.list_pending(SessionId("one"))
        ] == [("1", "", "new")]
        (due,) = await store.outbox.list_due("telegram:42")
        assert (due.body, due.created_at, due.started_at) == ("reply", 1.0, None)


async def test_signals_from_before_lines_were_queued_are_kept(home: Path, clock: ManualClock) -> None:
    write_schema(8, home / "state.db")
    connection = cast("SqliteConnection", apsw.Connection(str(home / "state.db")))
    connection.execute(
        "INSERT INTO signals (id, key, session, turn, kind, person, surface, text, question, answer, created_at)"
        " VALUES (7, 'kept', 'one', 'turn', 'steer', 'local', 'terminal', 'be brief', '', '', 5),"
        " (9, 'pruned', 'one', 'turn', 'stop', 'local', 'terminal', '', '', '', 5);"
        "DELETE FROM signals WHERE id = 9"
    )
    connection.close()
    line = NewSignal("line", SessionId("one"), TurnId("turn"), "queue", "local", "terminal", "and then this")

    async with SqliteStore(home, clock) as store:
        sent = await store.signals.send(line)
        kept, last = await store.signals.list_new([SessionId("one")])

    assert (kept.id, kept.text, kept.created_at) == (7, "be brief", 5.0)
    assert last == sent
    assert sent.id == 10, "the id of a signal that was pruned is not given again"


async def test_sessions_from_before_signals_take_signals(home: Path, clock: ManualClock) -> None:
    write_schema(7, home / "state.db")
    stop = NewSignal("key", SessionId("one"), TurnId("turn"), "stop", "local", "terminal")

    async with SqliteStore(home, clock) as store:
        sent = await store.signals.send(stop)
        assert await store.signals.list_new([SessionId("one")]) == [sent]

    assert version(home / "state.db") == LATEST


async def test_sessions_from_before_the_api_have_histories(home: Path, clock: ManualClock) -> None:
    write_schema(8, home / "state.db")
    point = HistoryPoint("api:ann", "digest")

    async with SqliteStore(home, clock) as store:
        epoch = await store.journal.seize(SessionId("one"), await store.owners.join("test"))
        assert not isinstance(epoch, Held)
        await store.journal.record(SessionId("one"), epoch, [point])
        assert await store.histories.find(point) == [HistoryMatch(SessionId("one"), 0, is_end=True)]

    assert version(home / "state.db") == LATEST
