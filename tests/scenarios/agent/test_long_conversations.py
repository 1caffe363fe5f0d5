"""Conversations that outgrow their model's window."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from talaria.app.build import Application, open_application
from talaria.app.settings import Settings
from talaria.config.load import decode
from talaria.core.entries import Compacted, Entry, MessageAdded
from talaria.core.events import Event, Notice
from talaria.core.ids import SessionId
from talaria.core.messages import user
from talaria.store.memory import MemoryStore
from talaria.testing.manual_clock import ManualClock
from talaria.testing.rules import chat_problems, transcript_problems
from talaria.testing.servers.model_server import Answer, ModelServer, RecordedRequest
from talaria.testing.servers.scripted_replies import Failure, Reply, ReplyUsage, call
from talaria.tools.function import tool

SESSION = SessionId("long")
WINDOW = 32_000
CHARS_PER_TOKEN = 3.0


@tool(after_crash="repeat")
async def look(at: str) -> str:
    """Look at something, at length."""
    return f"{at}: " + "a long view " * 300


class Model:
    """Counts what it reads, refuses what does not fit, and sums up when it is asked to."""

    def __init__(self) -> None:
        self.rounds = 0
        self.largest = 0
        self.summaries = 0
        self.fails_to_summarise = False
        self.read: list[list[dict[str, Any]]] = []

    def __call__(self, request: RecordedRequest) -> Answer:
        tokens = int(len(request.body) / CHARS_PER_TOKEN)
        self.largest = max(self.largest, tokens)
        if tokens > WINDOW:
            return Failure(400, {"error": {"message": f"maximum context length is {WINDOW} tokens"}})
        usage = ReplyUsage(input=tokens, output=50)
        if "You condense a conversation" in request.json["messages"][0]["content"]:
            self.summaries += 1
            return Failure(400) if self.fails_to_summarise else Reply("Goal: see the world.", usage=usage)
        assert chat_problems(request.json) == []
        self.read.append(request.json["messages"])
        self.rounds += 1
        if self.rounds % 3:
            return Reply(
                "Let me look.", calls=(call("look", id=f"call_{self.rounds}", at=f"hill {self.rounds}"),), usage=usage
            )
        return Reply("Seen. " * 20, usage=usage)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
async def app(tmp_path: Path, model: Model) -> AsyncIterator[Application]:
    with ModelServer(respond=model) as server:
        document: dict[str, Any] = {
            "model": {"provider": "custom", "default": "m", "base_url": server.base_url, "context_length": WINDOW},
        }
        settings = Settings(tmp_path, decode(document, tmp_path / "config.yaml"), {})
        async with open_application(
            settings, clock=ManualClock(auto=True), tools=[look], open_store=lambda _, clock: MemoryStore(clock)
        ) as app:
            yield app


async def journal(app: Application) -> list[Entry]:
    return [recorded.entry for recorded in await app.store.journal.entries(SESSION)]


async def test_a_conversation_outgrows_its_window_many_times_and_goes_on(app: Application, model: Model) -> None:
    live = app.session(id=SESSION, cwd=app.settings.home, origin="terminal")
    for turn in range(60):
        report = await live.ask(user(f"What is behind hill {turn}?"))
        assert (report.outcome, report.error) == ("completed", None)
    entries = await journal(app)
    compactions = [entry for entry in entries if isinstance(entry, Compacted)]
    assert len(compactions) > 3
    assert model.largest <= WINDOW
    messages = [entry.message for entry in entries if isinstance(entry, MessageAdded)]
    assert len(messages) == 60 * 6
    assert transcript_problems(messages) == []


async def test_the_next_process_reads_what_this_one_would_have(app: Application, model: Model) -> None:
    live = app.session(id=SESSION, cwd=app.settings.home, origin="terminal")
    for turn in range(30):
        await live.ask(user(f"What is behind hill {turn}?"))
    assert [entry for entry in await journal(app) if isinstance(entry, Compacted)]
    again = app.session(await app.store.sessions.get(SESSION), cwd=app.settings.home, origin="terminal")
    assert (await again.ask(user("And now?"))).outcome == "completed"
    assert (await live.ask(user("And then?"))).outcome == "completed"


async def test_a_person_may_ask_for_it_with_a_focus_and_keep_the_last_messages(app: Application, model: Model) -> None:
    live = app.session(id=SESSION, cwd=app.settings.home, origin="terminal")
    for turn in range(4):
        await live.ask(user(f"What is behind hill {turn}?"))
    events: list[Event] = []
    assert "made shorter" in await live.compact(events.append, focus="the hills", keep_last=2)
    assert not [event for event in events if isinstance(event, Notice)]  # whoever asked for it says it
    (entry,) = [entry for entry in await journal(app) if isinstance(entry, Compacted)]
    assert entry.summary_by == "model"
    assert (await live.ask(user("And now?"))).outcome == "completed"
    assert not await app.session(cwd=app.settings.home, origin="terminal").compact()


async def test_without_a_model_to_sum_up_the_host_does_and_the_conversation_goes_on(
    app: Application, model: Model
) -> None:
    model.fails_to_summarise = True
    live = app.session(id=SESSION, cwd=app.settings.home, origin="terminal")
    for turn in range(30):
        assert (await live.ask(user(f"What is behind hill {turn}?"))).outcome == "completed"
    by = {entry.summary_by for entry in await journal(app) if isinstance(entry, Compacted)}
    assert "model" not in by
    assert model.summaries < 10


async def test_an_overflow_that_nobody_foresaw_is_healed_by_making_room(app: Application, model: Model) -> None:
    live = app.session(id=SESSION, cwd=app.settings.home, origin="terminal")
    for turn in range(3):
        await live.ask(user(f"What is behind hill {turn}?"))
    dense = "x" * 70_000  # our estimate believes that it fits
    report = await live.ask(user(dense))
    assert report.outcome in ("completed", "failed")
    assert transcript_problems([e.message for e in await journal(app) if isinstance(e, MessageAdded)]) == []


async def seen_by(app: Application, model: Model, text: str) -> list[str]:
    """What the model reads when the conversation goes on in another process."""
    live = app.session(await app.store.sessions.get(SESSION), cwd=app.settings.home, origin="terminal")
    await live.ask(user(text))
    return [str(message["content"]) for message in model.read[-1]]


async def test_a_turn_is_taken_back_also_across_a_compaction(app: Application, model: Model) -> None:
    live = app.session(id=SESSION, cwd=app.settings.home, origin="terminal")
    for turn in range(6):
        await live.ask(user(f"What is behind hill {turn}?"))
    before = [entry for entry in await journal(app) if isinstance(entry, Compacted)]
    while len([entry for entry in await journal(app) if isinstance(entry, Compacted)]) == len(before):
        await live.ask(user("What is behind the last hill?"))
    assert await live.undo() == "What is behind the last hill?"
    seen = await seen_by(app, model, "Where was I?")
    count = sum("behind the last hill" in text for text in seen)
    assert await live.undo() == "Where was I?"
    assert await live.undo() in ("What is behind the last hill?", "What is behind hill 5?")
    fewer = sum("behind the last hill" in text for text in await seen_by(app, model, "And now?"))
    assert fewer == max(count - 1, 0)


async def test_everything_can_be_taken_back_and_the_conversation_begins_again(app: Application, model: Model) -> None:
    live = app.session(id=SESSION, cwd=app.settings.home, origin="terminal")
    assert await live.undo() is None
    await live.ask(user("One."))
    await live.ask(user("Two."))
    assert [await live.undo(), await live.undo(), await live.undo()] == ["Two.", "One.", None]
    seen = await seen_by(app, model, "Three.")
    assert [text for text in seen if "One." in text or "Two." in text] == []
    assert transcript_problems([e.message for e in await journal(app) if isinstance(e, MessageAdded)]) == []


async def test_a_copy_of_a_conversation_does_not_bring_back_what_was_taken_back(app: Application, model: Model) -> None:
    live = app.session(id=SESSION, cwd=app.settings.home, origin="terminal")
    await live.ask(user("One."))
    await live.ask(user("Two."))
    await live.undo()
    row = await app.store.sessions.fork(SESSION, SessionId("copy"))
    await app.session(row, cwd=app.settings.home, origin="terminal").ask(user("Three."))
    assert not [message for message in model.read[-1] if "Two." in str(message["content"])]
