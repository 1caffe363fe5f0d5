"""5,000 messages in a window of 32,000 tokens: it never overflows, what all is about is never forgotten, and the
last turns are no more work than the early ones."""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest

from talaria.app.build import Application, OpenStore, open_application, open_store
from talaria.app.settings import Settings
from talaria.config.load import decode
from talaria.context.summary import OPENING, SYSTEM
from talaria.core.clock import Clock
from talaria.core.entries import Compacted, MessageAdded, Recorded
from talaria.core.errors import Overloaded, RequestRejected
from talaria.core.ids import CallId, Epoch, SessionId
from talaria.core.messages import Assistant, Message, Text, ToolCall, ToolResult, User, user
from talaria.core.usage import Usage
from talaria.providers.base import Delta, ModelRequest
from talaria.providers.upstream import Upstream
from talaria.providers.wires import wire_for
from talaria.runtime.session import LiveSession
from talaria.store.base import Write
from talaria.store.memory import MemoryStore
from talaria.testing import ManualClock, ScriptedProvider, transcript_problems
from talaria.testing.port_proxies import JournalProxy, StoreProxy
from talaria.tools.builtin.recall import recall_tools
from talaria.tools.function import tool
from talaria.tools.registry import Toolbox

SESSION, COPY, OTHER = SessionId("long"), SessionId("copy"), SessionId("other")
WINDOW = 32_000
GOAL = "We want to map every milestone between Ulm and Linz, on foot."
WORDS = "the road bends where a stone stands and its number can be read "
TURNS = 1_700
PERIOD = 400  # turns, after which they are alike again

Calls = Sequence[tuple[str, dict[str, object]]]
_encode = msgspec.json.Encoder().encode


@tool(after_crash="repeat")
async def look(at: str, chars: int) -> str:
    """Look at something, at length."""
    return f"{at}: {WORDS * (chars // len(WORDS) + 1)}"[:chars]


def looks(chars: int, *stones: int) -> Calls:
    return [("look", {"at": f"stone {stone}", "chars": chars}) for stone in stones or [0]]


def rounds_of(turn: int) -> Sequence[Calls]:
    if turn % PERIOD == PERIOD - 1:
        return [looks(40_000)]
    rounds = {3: [looks(300)], 6: [looks(2_500)], 8: [looks(600)], 9: [looks(9_000), looks(1_200)]}
    return rounds.get(turn % 10, [])


def question(turn: int) -> str:
    return f"{GOAL if turn == 0 else ''} Question q{turn}x: what now? {WORDS * (turn % 7)}"


def good_summary(told: str) -> str:
    goal = GOAL if GOAL in told else "nobody said"
    return f"Goal\n{goal}\n\nCompleted actions\n1. read {len(told)} letters about stones\n{WORDS * 40}"


def no_summary(_: str) -> str:
    raise Overloaded("The summariser is down.")


def aimless_summary(_: str) -> str:
    return "All went well."


@dataclass
class Model(ScriptedProvider):
    """Counts what it reads, more strictly than we do, refuses what does not fit, and notes what is wrong with it."""

    sum_up: Callable[[str], str] = good_summary
    counts: bool = True  # its answers say how long the prompt was
    stumbles: bool = False  # the first call of each turn fails
    bytes_per_token: float = 3.0
    asked_last: str = ""
    rounds: Sequence[Calls] = ()
    read: tuple[Message, ...] = ()
    problems: list[str] = field(default_factory=list[str])
    work: Counter[str] = field(default_factory=Counter[str])

    def __post_init__(self) -> None:
        super().__init__()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Assistant]:
        encoded = request.history.encoded("test", self._encoded)
        body = wire_for(self.endpoint.wire).body(request, self.endpoint, encoded)
        tokens = int(len(body) / self.bytes_per_token)
        self.work["bytes sent"] += len(body)
        if tokens > WINDOW:
            self.problems.append(f"{tokens} tokens")
            raise RequestRejected(f"The maximum is {WINDOW} tokens.", kind="context_overflow")
        if request.system == SYSTEM:
            answer = Assistant((Text(self.sum_up("".join(message.text for message in request.history))),))
        elif self.stumbles and not self.work["stumbles"]:
            self.work["stumbles"] += 1
            raise Overloaded("One moment.")
        else:
            self.read = tuple(request.history)
            self.problems += self._problems(body)
            answer = self._answer()
        yield msgspec.structs.replace(answer, usage=Usage(tokens, 50) if self.counts else None)

    def _encoded(self, message: Message) -> bytes:
        encoded = wire_for(self.endpoint.wire).encode(message, self.endpoint.origin)
        self.work.update({"messages encoded": 1, "bytes encoded": len(encoded)})
        return encoded

    def _problems(self, body: bytes) -> Iterator[str]:
        yield from transcript_problems(self.read, is_idle=False)
        said = [message.text for message in self.read if isinstance(message, User) and message.author == "person"]
        if said[-1:] != [self.asked_last]:
            yield "the last question is another"
        if GOAL.encode() not in body:
            yield "the goal is forgotten"
        if body.count(OPENING.encode()) > 1:
            yield "the summary is doubled"

    def _answer(self) -> Assistant:
        if not self.rounds:
            return Assistant((Text(f"So it is. {WORDS}"),))
        calls, *self.rounds = self.rounds
        parts = [ToolCall(CallId(""), name, _encode(arguments).decode()) for name, arguments in calls]
        return Assistant((Text("Let me look."), *parts), "calls")


class Watched(JournalProxy):
    """Counts what is read and written."""

    work: Counter[str]

    async def entries(self, session: SessionId, after: int = 0) -> Sequence[Recorded]:
        entries = await super().entries(session, after)
        self.work["entries read"] += len(entries)
        return entries

    async def record(self, session: SessionId, epoch: Epoch, writes: Sequence[Write]) -> bool:
        self.work["bytes written"] += sum(len(_encode(write)) for write in writes)
        self.work["compactions"] += sum(isinstance(write, Compacted) for write in writes)
        return await super().record(session, epoch, writes)


@dataclass
class Talk:
    app: Application
    live: LiveSession
    model: Model
    journal: Watched
    work: list[Counter[str]] = field(default_factory=list[Counter[str]])

    async def turn(self, text: str, rounds: Sequence[Calls] = ()) -> None:
        """Whatever is wrong with a request of it is a failure."""
        self.model.asked_last, self.model.rounds = text, rounds
        self.model.work = self.journal.work = Counter()
        report = await self.live.ask(user(text))
        assert (report.outcome, report.error, self.model.problems) == ("completed", None, [])
        self.work.append(self.model.work)

    async def turns(self, count: int) -> None:
        for turn in range(count):
            await self.turn(question(turn), rounds_of(turn))

    @property
    def compactions(self) -> list[int]:
        return [work["compactions"] for work in self.work]

    def output(self) -> str:
        return [message.text for message in self.model.read if isinstance(message, ToolResult)][-1]


def in_memory(_: Path, clock: Clock) -> MemoryStore:
    return MemoryStore(clock)


@asynccontextmanager
async def opened(
    home: Path, model: Model, *, store: OpenStore = in_memory, id: SessionId = SESSION, instructions: str = ""
) -> AsyncGenerator[Talk]:
    """The product as it is wired up, but with this model at the end of the wire."""
    clock = ManualClock(auto=True)
    document = {"model": {"provider": "custom", "default": "m", "base_url": "http://none", "context_length": WINDOW}}
    settings = Settings(home, decode(document, home / "config.yaml"), {})
    async with open_application(settings, clock=clock, tools=[], open_store=store) as wired:
        journal = Watched(wired.store.journal)
        journal.work = model.work
        app = replace(
            wired,
            store=StoreProxy(wired.store, journal),
            upstream=Upstream(lambda _: model, clock),
            toolbox=Toolbox([look, *recall_tools(wired.store.journal, wired.store.search, wired.store.sessions)]),
        )
        row = await app.store.sessions.get(id)
        live = app.session(row, id=id, cwd=home, origin="terminal", instructions=instructions)
        yield Talk(app, live, model, journal)


async def test_five_thousand_messages_in_a_small_window(tmp_path: Path) -> None:
    model = Model()
    async with opened(tmp_path, model, store=open_store) as talk:
        await talk.turns(TURNS)
        assert max(talk.compactions) == 1
        assert 30 < sum(talk.compactions) < TURNS / 20
        early, late = (sum(work, Counter[str]()) for work in (talk.work[100 : 100 + PERIOD], talk.work[-PERIOD:]))
        assert {what: late[what] for what in late if late[what] > 1.1 * early[what] + 2} == {}
        assert late["bytes encoded"] < late["bytes sent"] / 10
        entries = [recorded.entry for recorded in await talk.journal.entries(SESSION)]
        messages = [entry.message for entry in entries if isinstance(entry, MessageAdded)]
        assert len(messages) > 5_000
        assert transcript_problems(messages) == []
        searched = [await talk.app.store.search.search(f"q{turn}x") for turn in range(0, TURNS, 50)]
        assert all(searched)
        await talk.turn("Where were we?", [[("recall", {"query": "Question q7x:"})]])
        assert question(7).strip() in talk.output()
        await talk.app.store.sessions.fork(SESSION, COPY)
        await talk.turn("And tomorrow?")
        read = model.read
    async with opened(tmp_path, model, store=open_store, id=COPY) as talk:
        await talk.turn("And tomorrow?")
        assert model.read == read
    async with opened(tmp_path, model, store=open_store, id=OTHER) as talk:
        await talk.turn(GOAL, [[("session_search", {"query": "q7x"})]])
        assert SESSION in talk.output()


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("sum_up", [good_summary, no_summary, aimless_summary, str])  # `str` repeats it all
async def test_models_that_do_not_count_or_sum_up(tmp_path: Path, sum_up: Callable[[str], str], counts: bool) -> None:
    async with opened(tmp_path, Model(sum_up, counts=counts)) as talk:
        await talk.turns(PERIOD)
        assert max(talk.compactions) == 1
        assert 10 < sum(talk.compactions) < PERIOD / 20


async def test_a_model_that_stumbles_and_has_half_the_window_filled_by_instructions(tmp_path: Path) -> None:
    async with opened(tmp_path, Model(str, stumbles=True), instructions=WORDS * 750) as talk:
        await talk.turns(PERIOD)
        assert max(talk.compactions) == 1
        assert 20 < sum(talk.compactions) < PERIOD / 8


@pytest.mark.parametrize("counts", [True, False])
async def test_turns_that_fill_the_window_by_themselves(tmp_path: Path, counts: bool) -> None:
    async with opened(tmp_path, Model(counts=counts)) as talk:
        await talk.turn(f"{GOAL} {WORDS * 900}")
        await talk.turn("Look at them one by one.", [looks(9_000, stone) for stone in range(50)])
        assert 3 < talk.compactions[-1] < 20
        await talk.turn("Look at all at once.", [looks(40_000, *range(start, start + 6)) for start in (0, 6, 12)])
        assert talk.compactions[-1] <= 3
        await talk.turn(f"Read this. {WORDS * 900}", [looks(9_000)])
        await talk.turn(f"And this. {WORDS * 900}")
        assert talk.compactions[-1] <= 2


@pytest.mark.parametrize("model", [Model(), Model(counts=False, bytes_per_token=4.6)], ids=["counts", "does not"])
async def test_text_that_takes_more_tokens_than_it_looks_like(tmp_path: Path, model: Model) -> None:
    async with opened(tmp_path, model) as talk:
        await talk.turn(question(0))
        for turn in range(60):
            await talk.turn(f"q{turn}x {'路' * (1_000 if turn % 4 else 13_000)}")
        assert max(talk.compactions) == 1
        assert sum(talk.compactions) <= 30
