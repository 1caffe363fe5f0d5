"""The store in memory answers everything as the SQLite store does, whatever is asked in whatever order."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from talaria.core.entries import MessageAdded, Noted, RouteChanged, TurnEnded, TurnStarted
from talaria.core.errors import TalariaError
from talaria.core.ids import ApprovalId, CallId, Epoch, GrantId, HoldId, InboxId, OutboxId, OwnerId, SessionId, TurnId
from talaria.core.messages import Assistant, Text, ToolCall, ToolResult, Usage, user
from talaria.store.api_ports import ApiToken, HistoryPoint
from talaria.store.base import (
    Amount,
    BrokenRuleError,
    CallEnded,
    CallIntended,
    CallStarted,
    Held,
    HoldReleased,
    NewSession,
    SessionReleased,
    SessionSeized,
    Spent,
    Store,
    Totals,
    Write,
)
from talaria.store.chat_ports import BusyMode, Cursor, Inbound, InboxDone, InboxTaken, OutboxRow, OutboxState, Outgoing
from talaria.store.memory import MemoryStore
from talaria.store.permission_ports import Approval, Grant, Greeting, NewApproval, PairingRequest
from talaria.store.signal_port import NewSignal, Signal, SignalId, SignalObeyed
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.manual_clock import ManualClock

T = TypeVar("T")

START = 1_000.0
SESSIONS = [SessionId(name) for name in ("alpha_1", "alpha_2", "beta_1")]
TURNS = [TurnId("turn-1"), TurnId("turn-2")]
CALLS = [CallId("call-1"), CallId("call-2")]
PERSONS = ["ann", "bob"]
APPROVALS = [ApprovalId(name) for name in ("7f3a01", "7f3a02", "c0de01")]
DIGESTS = ["digest-1", "digest-2"]
CHATS = ["telegram:dm:42", "telegram:dm:43"]
PLATFORMS = ["telegram", "slack"]
TARGETS = ["42", "43"]
KEYS = "abcdef"
STATES: list[OutboxState] = ["pending", "started", "sent", "failed", "expired"]
SIGNALS = ["signal-1", "signal-2", "signal-3"]
GRANTS = [GrantId(name) for name in ("grant-2", "grant-1", "grant-3")]
TOKENS = ["phone", "laptop"]
WORDS = ["red", "röd", "blue-green", "東京", "京", "*", '"red"', "(x)", "Red"]

sessions = st.sampled_from(SESSIONS)
turns = st.sampled_from(TURNS)
calls = st.sampled_from(CALLS)
titles = st.sampled_from(["Garden", "alpha_1", "alpha", " "])
texts = st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)
usages = st.builds(Usage, st.integers(0, 9), st.integers(0, 9))
persons = st.sampled_from(PERSONS)
dollars = st.sampled_from([0.0, 0.25, 1.5])
"""Their sums are exact, whoever adds them up."""
spendings = st.builds(
    Spent,
    st.sampled_from(["openai:large", "openai:small", "ollama:tiny"]),
    persons,
    st.sampled_from(["turn", "title"]),
    st.builds(Usage, *[st.integers(0, 9)] * 5),
    st.none() | dollars,
)
approvals = st.sampled_from(APPROVALS)
digests = st.sampled_from(DIGESTS)
spans = st.sampled_from([7.0, 1e6])
inbounds = st.builds(
    Inbound,
    st.just("telegram"),
    st.just("bot"),
    st.just("42"),
    st.sampled_from("123456"),
    sessions,
    texts,
    st.sampled_from(["", *CHATS]),
)
outgoing = st.builds(
    Outgoing,
    st.sampled_from(TARGETS),
    texts,
    st.sampled_from(KEYS),
    st.floats(START, START + 100, allow_nan=False),
)
signals = st.builds(
    NewSignal,
    st.sampled_from(SIGNALS),
    sessions,
    turns,
    st.sampled_from(["stop", "steer", "answer", "queue"]),
    persons,
    st.just("terminal"),
    texts,
    texts,
    texts,
)
tokens = st.builds(
    ApiToken,
    name=st.sampled_from(TOKENS),
    digest=digests,
    scopes=st.sampled_from([(), ("chat", "runs")]),
    created_at=st.sampled_from([START, START + 1]),
    usd_per_day=st.none() | dollars,
)
points = st.builds(HistoryPoint, persons, digests)
plain_writes: st.SearchStrategy[Write] = st.one_of(
    texts.map(lambda text: MessageAdded(user(text))),
    texts.map(lambda text: MessageAdded(user(text, author="host"))),
    texts.map(lambda text: MessageAdded(Assistant((Text(text),)))),
    st.builds(Noted, texts),
    st.builds(RouteChanged, turns, st.just("openai:large"), st.just("openai:small"), texts),
    spendings,
    st.builds(TurnStarted, turns, st.just("terminal")),
    st.builds(TurnEnded, turns, st.just("completed"), usages),
    st.builds(CallIntended, turns, st.builds(ToolCall, calls, st.just("x"), st.just("{}"))),
    st.builds(CallStarted, calls),
    calls.map(lambda id: CallEnded(ToolResult(id, "x", "done"))),
    outgoing,
    points,
)


def numberless(row: OutboxRow | None) -> object:
    """The stores number rows as they like; the key says which row it is."""
    return row and msgspec.structs.replace(row, id=OutboxId(0))


def unnumbered(mail: Inbound) -> Inbound:
    return msgspec.structs.replace(mail, id=InboxId(0))


def idless(signal: Signal | None) -> object:
    """The key says which signal it is."""
    return signal and msgspec.structs.replace(signal, id=SignalId(0))


def ownerless(row: Approval | None) -> object:
    """The stores name owners as they like."""
    return row and msgspec.structs.replace(row, owner=OwnerId(""))


class NoRoom(TalariaError):
    """What a `decide` raises."""


class Twins(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = ManualClock(START)
        self.sqlite = SqliteStore(Path(self.folder.name), self.clock)
        self.memory = MemoryStore(self.clock)
        self.owners: list[tuple[OwnerId, OwnerId]] = []
        self.holds: list[tuple[HoldId, HoldId]] = []

    @initialize()
    def open(self) -> None:
        self.runner.run(self.sqlite.__aenter__())
        for session in SESSIONS[:2]:
            self.create(session, None, None, PERSONS[0])
        self.join()
        self.seize(SESSIONS[0], 0)
        for id in APPROVALS[:2]:
            self.request(id, SESSIONS[1], 0, PERSONS[0], DIGESTS[0], 1e6)

    def teardown(self) -> None:
        self.runner.run(self.sqlite.__aexit__())
        self.runner.close()
        self.folder.cleanup()

    def ask(self, store: Store, question: Callable[[Store], Awaitable[T]]) -> T | type[Exception]:
        async def answer() -> T:
            return await question(store)

        try:
            return self.runner.run(answer())
        except (TalariaError, BrokenRuleError) as refusal:
            return type(refusal)

    def both(self, question: Callable[[Store], Awaitable[Any]]) -> Any:
        """Ask both, see that they agree, and return the answer."""
        first, second = self.ask(self.sqlite, question), self.ask(self.memory, question)
        assert first == second
        return first

    def twice(self, question: Callable[[Store, int], Awaitable[T]]) -> tuple[T | type[Exception], T | type[Exception]]:
        """Ask each in its own words: owners and row numbers differ."""
        return (
            self.ask(self.sqlite, lambda store: question(store, 0)),
            self.ask(self.memory, lambda store: question(store, 1)),
        )

    @rule(seconds=st.sampled_from([0.5, 7.0, 40.0, 86_400.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(session=sessions, title=st.none() | titles, parent=st.none() | sessions, person=persons)
    def create(self, session: SessionId, title: str | None, parent: SessionId | None, person: str) -> None:
        new = NewSession(session, "test", title=title, parent=parent, person=person)
        self.both(lambda store: store.sessions.create(new))

    @rule(session=sessions, title=titles)
    def rename(self, session: SessionId, title: str) -> None:
        self.both(lambda store: store.sessions.rename(session, title))

    @rule(session=sessions, new=sessions, title=st.none() | titles, until=st.none() | st.integers(0, 9))
    def fork(self, session: SessionId, new: SessionId, title: str | None, until: int | None) -> None:
        self.both(lambda store: store.sessions.fork(session, new, title, until))

    @rule(session=sessions)
    def delete(self, session: SessionId) -> None:
        self.both(lambda store: store.sessions.delete(session))

    @rule(
        name=st.sampled_from(["alpha_1", "alpha", "alph", "alp", "beta", "Garden", "beta_1"]),
        person=st.none() | persons,
    )
    def find(self, name: str, person: str | None) -> None:
        self.both(lambda store: store.sessions.find(name, person))

    @rule()
    def join(self) -> None:
        first, second = self.twice(lambda store, _: store.owners.join("test"))
        assert isinstance(first, str)
        assert isinstance(second, str)
        self.owners.append((first, second))

    @rule(which=st.integers(0, 3))
    def leave(self, which: int) -> None:
        pair = self.owners[which % len(self.owners)]
        self.twice(lambda store, side: store.owners.leave(pair[side]))

    @rule(session=sessions, which=st.integers(0, 3))
    def seize(self, session: SessionId, which: int) -> None:
        pair = self.owners[which % len(self.owners)]
        first, second = self.twice(lambda store, side: store.journal.seize(session, pair[side]))
        if isinstance(first, Held) and isinstance(second, Held):
            assert (first.owner, second.owner) in self.owners
        else:
            assert first == second

    @rule(session=sessions)
    def holder(self, session: SessionId) -> None:
        pair = self.twice(lambda store, _: store.journal.holder(session))
        assert pair == (None, None) or pair in self.owners

    @rule(session=sessions, epoch=st.integers(1, 3), leaves_mail=st.booleans())
    def release(self, session: SessionId, epoch: int, leaves_mail: bool) -> None:
        self.both(lambda store: store.journal.release(session, Epoch(epoch), leaves_mail=leaves_mail))

    @rule(batch=st.lists(inbounds, max_size=3), cursor=st.none() | st.sampled_from("123"))
    def accept(self, batch: list[Inbound], cursor: str | None) -> None:
        moved = Cursor("telegram", "bot", cursor) if cursor else None

        async def accept(store: Store) -> list[Inbound | None]:
            return [mail and unnumbered(mail) for mail in await store.inbox.accept(batch, moved)]

        self.both(accept)
        self.both(lambda store: store.inbox.cursor("telegram", "bot"))

    @rule(session=sessions, epoch=st.integers(1, 2), writes=st.lists(plain_writes, min_size=1, max_size=4))
    def record(self, session: SessionId, epoch: int, writes: list[Write]) -> None:
        self.both(lambda store: store.journal.record(session, Epoch(epoch), writes))

    @rule(
        session=sessions,
        epoch=st.integers(1, 3),
        which=st.none() | st.integers(0, 3),
        writes=st.lists(plain_writes, max_size=2),
        leaves_mail=st.none() | st.booleans(),
    )
    def record_at_once(
        self, session: SessionId, epoch: int, which: int | None, writes: list[Write], leaves_mail: bool | None
    ) -> None:
        """With the hold taken before, or given up after."""
        pair = None if which is None else self.owners[which % len(self.owners)]
        last = [] if leaves_mail is None else [SessionReleased(leaves_mail)]

        async def record(store: Store, side: int) -> bool:
            first = [] if pair is None else [SessionSeized(pair[side])]
            return await store.journal.record(session, Epoch(epoch), [*first, *writes, *last])

        first, second = self.twice(record)
        assert first == second

    @rule(session=sessions, which=st.integers(0, 2), is_taking=st.booleans())
    def handle_mail(self, session: SessionId, which: int, is_taking: bool) -> None:
        async def handle(store: Store, _: int) -> None:
            ids = tuple(mail.id for mail in await store.inbox.list_pending(session))[which : which + 1]
            write = InboxTaken(TURNS[0], ids) if is_taking else InboxDone(ids)
            await store.journal.record(session, Epoch(1), [write])

        first, second = self.twice(handle)
        assert first == second

    @rule(session=sessions, which=st.integers(0, 2))
    def take_mail(self, session: SessionId, which: int) -> None:
        async def take(store: Store) -> SessionId | None:
            mail = await store.inbox.list_pending(session)
            return await store.inbox.take(mail[which].id if which < len(mail) else InboxId(10_000))

        self.both(take)

    @rule(session=sessions, count=st.integers(1, 2), replies=st.lists(outgoing, max_size=2))
    def finish_mail(self, session: SessionId, count: int, replies: list[Outgoing]) -> None:
        async def finish(store: Store) -> None:
            ids = [mail.id for mail in await store.inbox.list_pending(session)][:count]
            await store.inbox.finish(session, ids, replies)

        self.both(finish)

    @rule(seconds_ago=st.sampled_from([0.0, 7.0]))
    def prune(self, seconds_ago: float) -> None:
        before = self.clock.now() - seconds_ago
        self.both(lambda store: store.inbox.prune(before))
        self.both(lambda store: store.outbox.prune(before))
        self.both(lambda store: store.signals.prune(before))

    @rule(key=st.sampled_from(CHATS), session=sessions, address=st.sampled_from(TARGETS))
    def bind(self, key: str, session: SessionId, address: str) -> None:
        self.both(lambda store: store.chats.bind(key, session, address))

    @rule(key=st.sampled_from(CHATS), mode=st.sampled_from([None, "queue", "steer", "interrupt"]))
    def set_busy_mode(self, key: str, mode: BusyMode | None) -> None:
        self.both(lambda store: store.chats.set_busy_mode(key, mode))

    @rule(platform=st.sampled_from(PLATFORMS), address=st.sampled_from(TARGETS))
    def set_home(self, platform: str, address: str) -> None:
        self.both(lambda store: store.chats.set_home(platform, address))

    @rule(
        platform=st.sampled_from(PLATFORMS),
        user=st.sampled_from("123"),
        digest=digests,
        seconds=st.sampled_from([7.0, 1e6]),
        address=st.sampled_from(["", *TARGETS]),
    )
    def ask_to_be_let_in(self, platform: str, user: str, digest: str, seconds: float, address: str) -> None:
        request = PairingRequest(platform, user, f"at {self.clock.now()}", digest, self.clock.now() + seconds, address)
        self.both(lambda store: store.access.request(request, 2))

    @rule(platform=st.sampled_from(PLATFORMS), codes=st.lists(st.sampled_from([*DIGESTS, "wrong"]), max_size=4))
    def try_codes(self, platform: str, codes: list[str]) -> None:
        async def try_them(store: Store) -> list[object]:
            greeting = Greeting(SessionId("gateway"), "welcome", self.clock.now() + 7.0)
            return [await store.access.approve(platform, code, greeting) for code in codes]

        self.both(try_them)

    @rule(platform=st.sampled_from(PLATFORMS), user=st.sampled_from("123"))
    def turn_out(self, platform: str, user: str) -> None:
        self.both(lambda store: store.access.revoke(platform, user))

    @rule(address=st.sampled_from(TARGETS), limit=st.integers(1, 3))
    def due(self, address: str, limit: int) -> None:
        async def due(store: Store) -> list[object]:
            return [numberless(row) for row in await store.outbox.list_due(address, limit)]

        self.both(due)

    @rule(address=st.sampled_from(TARGETS), limit=st.integers(1, 3), is_wanted=st.booleans())
    def start_due(self, address: str, limit: int, is_wanted: bool) -> None:
        async def start(store: Store) -> list[object]:
            started, rows = await store.outbox.start_due(address, limit, lambda _: is_wanted)
            return [numberless(started), *map(numberless, rows)]

        self.both(start)

    @rule(states=st.lists(st.sampled_from(STATES), unique=True), limit=st.integers(1, 3))
    def list_outbox(self, states: list[OutboxState], limit: int) -> None:
        async def listed(store: Store) -> list[object]:
            return [numberless(row) for row in await store.outbox.list(states, limit)]

        self.both(listed)

    @rule(session=sessions, parts=st.lists(outgoing, max_size=2))
    def add(self, session: SessionId, parts: list[Outgoing]) -> None:
        self.both(lambda store: store.outbox.add(session, parts))

    @rule(session=sessions, draft=outgoing)
    def begin(self, session: SessionId, draft: Outgoing) -> None:
        async def begin(store: Store) -> object:
            return numberless(await store.outbox.begin(session, draft))

        self.both(begin)

    @rule(address=st.sampled_from(TARGETS), to=st.sampled_from(TARGETS))
    def move(self, address: str, to: str) -> None:
        self.both(lambda store: store.outbox.move(address, to))

    @rule(
        key=st.sampled_from(KEYS),
        steps=st.lists(st.sampled_from(["start", "sent", "defer", "fail", "expire", "retry"]), min_size=1, max_size=3),
    )
    def deliver(self, key: str, steps: list[str]) -> None:
        async def deliver(store: Store) -> list[object]:
            row = await store.outbox.find(key)
            return [await take(store, step, row.id if row else OutboxId(10_000)) for step in steps]

        async def take(store: Store, step: str, row: OutboxId) -> object:
            match step:
                case "start":
                    return numberless(await store.outbox.start(row))
                case "sent":
                    return await store.outbox.mark_sent(row, "7")
                case "defer":
                    return await store.outbox.defer(row, "later")
                case "fail":
                    return await store.outbox.fail(row, "no")
                case "expire":
                    return await store.outbox.expire(row)
                case _:
                    return await store.outbox.retry(row, START + 200)

        self.both(deliver)

    @rule(session=sessions, step=st.sampled_from(["request", "claim", "complete", "fail"]))
    def hand_off(self, session: SessionId, step: str) -> None:
        async def hand_off(store: Store) -> bool:
            match step:
                case "request":
                    return await store.handoffs.request(session, "telegram")
                case "claim":
                    return await store.handoffs.claim(session)
                case "complete":
                    return await store.handoffs.complete(session)
                case _:
                    return await store.handoffs.fail(session, "why")

        self.both(hand_off)

    @rule()
    def reclaim(self) -> None:
        async def reclaim(store: Store) -> list[SessionId]:
            return sorted(await store.handoffs.reclaim())

        self.both(reclaim)

    @rule(
        session=sessions,
        person=persons,
        which=st.integers(0, 3),
        amount=st.builds(Amount, st.integers(0, 9), dollars),
        cap=st.sampled_from([0, 20, 1_000]),
    )
    def hold(self, session: SessionId, person: str, which: int, amount: Amount, cap: int) -> None:
        pair = self.owners[which % len(self.owners)]

        def decide(totals: Totals) -> Amount:
            if totals.day.tokens + amount.tokens > cap:
                raise NoRoom
            return amount

        first, second = self.twice(lambda store, side: store.spending.hold(session, person, pair[side], decide))
        if isinstance(first, int) and isinstance(second, int):
            self.holds.append((first, second))
        else:
            assert first is second is NoRoom

    @rule(session=sessions, which=st.integers(0, 2), spent=st.none() | spendings)
    def free(self, session: SessionId, which: int, spent: Spent | None) -> None:
        pair = self._hold(which)
        spending = [spent] if spent else []
        self.twice(lambda store, side: store.spending.add(session, [*spending, HoldReleased(pair[side])]))

    @rule(session=sessions, which=st.integers(0, 2), epoch=st.integers(1, 2), writes=st.lists(plain_writes, max_size=2))
    def free_in_a_record(self, session: SessionId, which: int, epoch: int, writes: list[Write]) -> None:
        pair = self._hold(which)
        first, second = self.twice(
            lambda store, side: store.journal.record(session, Epoch(epoch), [HoldReleased(pair[side]), *writes])
        )
        assert first == second

    def _hold(self, which: int) -> tuple[HoldId, HoldId]:
        """One of the last that were made, or one that never was."""
        return self.holds[-1 - which] if which < len(self.holds) else (HoldId(10_000), HoldId(10_000))

    @rule(seconds_ago=st.sampled_from([0.0, 7.0, 86_400.0]))
    def usage(self, seconds_ago: float) -> None:
        since = self.clock.now() - seconds_ago
        self.both(lambda store: store.spending.usage("day", since))
        self.both(lambda store: store.spending.usage("model", since))
        self.both(lambda store: store.spending.usage("session", since))

    @rule(id=approvals, session=sessions, which=st.integers(0, 3), person=persons, digest=digests, seconds=spans)
    def request(self, id: ApprovalId, session: SessionId, which: int, person: str, digest: str, seconds: float) -> None:
        pair = self.owners[which % len(self.owners)]
        until = self.clock.now() + seconds

        def new(owner: OwnerId) -> NewApproval:
            return NewApproval(id, session, TURNS[0], CALLS[0], owner, person, "x", "x?", digest, until)

        first, second = self.twice(lambda store, side: store.approvals.request(new(pair[side])))
        assert first == second

    @rule(
        id=approvals,
        steps=st.lists(st.sampled_from(["allow", "deny", "use"]), min_size=1, max_size=3),
        who=persons,
        digest=digests,
    )
    def answer(self, id: ApprovalId, steps: list[str], who: str, digest: str) -> None:
        async def answer(store: Store) -> list[bool]:
            return [await take(store, step) for step in steps]

        async def take(store: Store, step: str) -> bool:
            if step == "use":
                return await store.approvals.use(id, digest)
            return await store.approvals.decide(id, is_allowed=step == "allow", by=who)

        self.both(answer)

    @rule(
        id=st.sampled_from(GRANTS),
        person=persons,
        what=texts,
        session=st.none() | sessions,
        seconds=st.none() | spans,
    )
    def grant(self, id: GrantId, person: str, what: str, session: SessionId | None, seconds: float | None) -> None:
        now = self.clock.now()
        grant = Grant(id, person, "x", what, "/", session, now, now + seconds if seconds else None)
        self.both(lambda store: store.grants.add(grant))

    @rule(id=st.sampled_from(GRANTS))
    def revoke(self, id: GrantId) -> None:
        self.both(lambda store: store.grants.revoke(id))

    @rule(new=signals)
    def send(self, new: NewSignal) -> None:
        async def send(store: Store) -> object:
            return idless(await store.signals.send(new))

        self.both(send)

    @rule(key=st.sampled_from(SIGNALS), state=st.sampled_from(["obeyed", "late"]), outcome=texts)
    def settle(self, key: str, state: Literal["obeyed", "late"], outcome: str) -> None:
        async def settle(store: Store) -> bool:
            return await store.signals.settle(await _signal_id(store, key), state, outcome)

        self.both(settle)

    @rule(
        session=sessions,
        epoch=st.integers(1, 2),
        key=st.sampled_from(SIGNALS),
        writes=st.lists(plain_writes, max_size=2),
    )
    def obey(self, session: SessionId, epoch: int, key: str, writes: list[Write]) -> None:
        async def obey(store: Store) -> bool:
            obeyed = SignalObeyed(await _signal_id(store, key))
            return await store.journal.record(session, Epoch(epoch), [*writes, obeyed])

        self.both(obey)

    @rule(new=tokens)
    def add_token(self, new: ApiToken) -> None:
        self.both(lambda store: store.api_tokens.add(new))

    @rule(name=st.sampled_from(TOKENS))
    def revoke_token(self, name: str) -> None:
        self.both(lambda store: store.api_tokens.revoke(name))

    @rule(session=sessions, point=points)
    def adopt(self, session: SessionId, point: HistoryPoint) -> None:
        self.both(lambda store: store.sessions.adopt(NewSession(session, "api"), 1.0, [], point))

    @rule(session=sessions, limit=st.integers(1, 3), before=st.integers(0, 9), person=st.none() | persons)
    def turn_the_page(self, session: SessionId, limit: int, before: int, person: str | None) -> None:
        self.both(lambda store: store.journal.latest(session, limit, before))
        self.both(lambda store: store.sessions.list(limit, person, session))

    @rule(query=texts, limit=st.integers(1, 5), person=st.none() | persons)
    def search(self, query: str, limit: int, person: str | None) -> None:
        self.both(lambda store: store.search.search(query, limit, person))

    @rule()
    def rebuild(self) -> None:
        self.both(lambda store: store.search.rebuild())

    @invariant()
    def both_look_the_same(self) -> None:
        self.both(_everything)


async def _signal_id(store: Store, key: str) -> SignalId:
    """Or one that never was."""
    found = await store.signals.find(key)
    return found.id if found else SignalId(10_000)


async def _everything(store: Store) -> list[object]:
    seen: list[object] = [
        await store.sessions.list(),
        [await store.sessions.list(person=person) for person in PERSONS],
        await store.journal.list_interrupted(),
        await store.inbox.list_sessions(),
        await store.outbox.list_targets(),
        [numberless(row) for row in await store.outbox.list(STATES)],
        [await store.chats.get(key) for key in CHATS],
        [await store.chats.home(platform) for platform in PLATFORMS],
        await store.access.requests(),
        await store.access.members(),
        await store.handoffs.list_pending(),
        await store.spending.usage("day"),
        await store.spending.usage("model"),
        await store.spending.usage("session"),
        [ownerless(row) for row in await store.approvals.list_pending()],
        [ownerless(await store.approvals.find(name)) for name in (*APPROVALS, "7F3A", "c0de", "c0d")],
        await store.grants.list(),
        [idless(await store.signals.find(key)) for key in SIGNALS],
        [idless(one) for one in await store.signals.list_new(SESSIONS[1:])],
        await store.api_tokens.list(),
        [await store.api_tokens.find(digest) for digest in DIGESTS],
        [await store.histories.find(HistoryPoint(person, digest)) for person in PERSONS for digest in DIGESTS],
        [unnumbered(mail) for mail in await store.inbox.list_from("telegram", "bot", "42", 5)],
    ]
    for session in SESSIONS:
        seen += await _totals(store, session)
        seen += [
            await store.journal.entries(session),
            [await store.journal.calls(session, turn) for turn in TURNS],
            [unnumbered(mail) for mail in await store.inbox.list_pending(session)],
            await store.chats.list_for(session),
            [numberless(row) for row in await store.outbox.rows(session)],
            await store.handoffs.state(session),
            [ownerless(row) for row in await store.approvals.list_pending(session)],
            [await store.grants.list_valid(person, session) for person in PERSONS],
            [idless(one) for one in await store.signals.list_new([session])],
        ]
    return seen


async def _totals(store: Store, session: SessionId) -> list[Totals]:
    """What a `decide` would be shown, for either person."""
    seen: list[Totals] = []

    def look(totals: Totals) -> Amount:
        seen.append(totals)
        raise NoRoom

    for person in PERSONS:
        with pytest.raises(NoRoom):
            await store.spending.hold(session, person, OwnerId("0-nobody"), look)
    return seen


def _settings(examples: int) -> settings:
    return settings(
        max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )


class TestTwins(Twins.TestCase):
    settings = _settings(25)


@pytest.mark.long
class TestTwinsAtLength(Twins.TestCase):
    settings = _settings(1_000)
