"""Whatever a chat service does, an answer is there once, or says that it may be there twice, or is kept and told
elsewhere; and then all goes on."""

import asyncio
import math
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.contracts.faults.platform_stage import (
    CHATS,
    DISCORD,
    EVERYWHERE,
    PEOPLE,
    SLACK,
    TELEGRAM,
    WEBHOOK,
    Call,
    Place,
    Stage,
    at,
    played,
    staged,
)
from tests.port_proxies import OutboxProxy

from talaria.app.build import open_store
from talaria.core.clock import Clock
from talaria.core.ids import SessionId
from talaria.gateway import preview
from talaria.gateway.envelope import MARK, OutgoingBody, encode_body
from talaria.store.base import Store
from talaria.store.chat_ports import Outbox, OutboxRow, Outgoing
from talaria.testing.servers.chat_service import Fault, LostAnswer, Refusal, Slow
from talaria.testing.servers.scripted_replies import Faults, Reply, call

ANSWERED = (TELEGRAM, DISCORD, SLACK, WEBHOOK)
UNDER_WAY = 0.25
"""Of a pause, where several calls are made at the same time: they do not know of it yet."""
ONE = "One."
AGAIN = f"{MARK}\n\n{ONE}"
TOLD = re.compile(r"A reply in \S+ was not delivered: .+ It is kept: talaria gateway outbox\.")


class Row(msgspec.Struct, frozen=True):
    """What becomes of the calls that send one answer."""

    name: str
    faults: Callable[[Place], Sequence[Fault]]
    tries: int
    seen: tuple[str, ...] = (ONE,)
    says: str = ""
    """Why it is kept and not there."""
    waits_s: float = 0.0
    """At least, in all."""
    places: tuple[Place, ...] = ANSWERED


def always(*faults: Fault) -> Callable[[Place], Sequence[Fault]]:
    return lambda _: faults


def waited_out(name: str, *faults: Fault, **more: Any) -> Row:
    return Row(name, always(*faults), len(faults) + 1, **more)


def unsure(name: str, *faults: Fault) -> list[Row]:
    """Where the service knows a message by its key nobody notices; elsewhere it is there once more, and says so."""
    keyed = tuple(place for place in ANSWERED if place.is_keyed)
    others = tuple(place for place in ANSWERED if not place.is_keyed)
    sent = [ONE, *[AGAIN] * len(faults)]
    seen = (*(text for text, fault in zip(sent, faults, strict=False) if isinstance(fault, LostAnswer)), AGAIN)
    return [waited_out(name, *faults, places=keyed), waited_out(name, *faults, seen=seen, places=others)]


SENDS = [
    Row("nothing", always(), 1),
    waited_out("429 with a pause", Refusal(429, 10)),
    waited_out("429 with a pause, again and again", Refusal(429, 5), Refusal(429, 10), Refusal(429, 5)),
    waited_out("429 without a word", Refusal(429)),
    waited_out("429 with a pause that is over", *[Refusal(429, -20)] * 4, waits_s=1 + 2 + 4 + 8),
    waited_out("429 with no number", Refusal(429, math.nan), Refusal(429, math.inf), waits_s=3, places=(SLACK,)),
    waited_out("429 for all of the bot", Refusal(429, 10, extra={"global": True}), places=(DISCORD,)),
    *unsure("500", Refusal(500)),
    *unsure("502, again and again", *[Refusal(502)] * 4),
    *unsure("a lost answer", LostAnswer()),
    *unsure("two lost answers", LostAnswer(), LostAnswer()),
    *unsure("a lost answer after 503", Refusal(503), LostAnswer()),
    Row("an answer that comes late", always(Slow(0.1)), 1),
    Row("the token is refused", lambda place: (place.no_entry,), 2, places=CHATS),
    Row("blocked", lambda place: (place.blocked,), 1, (), "block|Cannot send|not_in_channel|410"),
    Row("rejected", lambda place: (place.rejected,), 1, (), "too long|2000 or fewer|too_many|400"),
    Row(
        "markup that is not understood",
        lambda place: (place.unparsable,) if place.unparsable else (),
        2,
        places=(TELEGRAM, SLACK),
    ),
]


@pytest.fixture
async def stage(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # bots of other tests have the same name
    monkeypatch.setattr(preview, "SHOWN_AFTER_S", math.inf)
    async with staged(place, tmp_path) as stage:
        yield stage


@pytest.fixture
def shown(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are, while they are written."""
    monkeypatch.setattr(preview, "SHOWN_AFTER_S", 1.0)


@played(SENDS)
async def test_an_answer_ends_as_promised(stage: Stage, row: Row) -> None:
    faults = row.faults(stage.place)
    stage.fault("send", *faults)
    stage.model.say(ONE, "Two.")
    async with stage.open():
        await stage.say("first")
        await stage.settled(1)
        await stage.say("second")
        await stage.settled(2)
        assert stage.texts() == [*row.seen, "Two."]
        kept = await stage.rows("failed", "expired")
        assert [bool(re.search(row.says, one.error)) for one in kept] == [True] * bool(row.says)
        assert [bool(TOLD.fullmatch(text)) for text in stage.elsewhere()] == [True] * bool(row.says)
    *tries, _ = [one["at"] for one in stage.calls("send")]
    assert len(tries) == row.tries
    assert tries[-1] - tries[0] >= row.waits_s / stage.clock.pace
    assert stage.early("send", faults) == []


WORDS = " ".join(f"word{number}" for number in range(40))
SLOW_ANSWER = Reply(WORDS, faults=Faults(chunk_delay_s=0.012))
"""People see it grow: it takes about seventeen seconds by the clock."""


class DraftRow(msgspec.Struct, frozen=True):
    """What becomes of an answer that is shown while it is written."""

    name: str
    when: Call
    faults: Callable[[Place], Sequence[Fault]]
    seen: Callable[[Place, Sequence[str]], bool] = lambda _, texts: texts == [WORDS]
    places: tuple[Place, ...] = CHATS


def drafts(when: Call, name: str, *faults: Fault, **more: Any) -> DraftRow:
    return DraftRow(f"{when}: {name}", when, always(*faults), **more)


def is_marked(place: Place, texts: Sequence[str]) -> bool:
    """Behind what may be there of it already."""
    return texts == [WORDS] if place.is_keyed else texts[-1] == f"{MARK}\n\n{WORDS}" and WORDS not in texts


def is_anew(_: Place, texts: Sequence[str]) -> bool:
    return texts[-1] == WORDS and len(texts) == 2 and WORDS.startswith(texts[0].removesuffix(" …"))


DRAFTS = [
    drafts("send", "429", Refusal(429, 16)),
    drafts("send", "500", Refusal(500), seen=is_marked),
    drafts("send", "a lost answer", LostAnswer(), seen=is_marked),
    DraftRow("send: rejected", "send", lambda place: (place.rejected,)),
    DraftRow("send: blocked for a moment", "send", lambda place: (place.blocked,)),
    drafts("edit", "429", Refusal(429, 16)),
    drafts("edit", "429, again and again", *[Refusal(429, 8)] * 3),
    drafts("edit", "500", *[Refusal(500)] * 3),
    drafts("edit", "lost answers", *[LostAnswer()] * 3),
    DraftRow("edit: rejected once", "edit", lambda place: (place.rejected,)),
    DraftRow("edit: always rejected", "edit", lambda place: [place.rejected] * 99, is_anew),
    DraftRow("typing: blocked", "typing", lambda place: [place.blocked] * 9, places=(TELEGRAM, DISCORD)),
    drafts("typing", "500", *[Refusal(500)] * 9, places=(TELEGRAM, DISCORD)),
]


@pytest.mark.usefixtures("shown")
@played(DRAFTS)
async def test_an_answer_that_is_shown_while_it_is_written_ends_as_promised(stage: Stage, row: DraftRow) -> None:
    faults = row.faults(stage.place)
    stage.fault(row.when, *faults)
    stage.model.say(SLOW_ANSWER, "Two.")
    async with stage.open():
        await stage.say("first")
        await stage.settled(1)
        await stage.say("second")
        await stage.settled(2)
        *texts, last = stage.texts()
        assert last == "Two."
        assert row.seen(stage.place, texts)
        assert not await stage.rows("failed", "expired")
    assert len(stage.calls(row.when)) >= min(len(faults), 3)
    assert stage.early(row.when, faults, UNDER_WAY) == []


class SilenceRow(msgspec.Struct, frozen=True):
    """What becomes of words that were shown, when the answer is not to be sent."""

    name: str
    faults: Callable[[Place], Sequence[Fault]]
    places: tuple[Place, ...] = CHATS
    is_left: bool = False
    """The service does not take them back."""


SILENCES = [
    SilenceRow("nothing", always()),
    SilenceRow("429", always(Refusal(429, 10))),
    SilenceRow("500", always(Refusal(500))),
    SilenceRow("lost answers", always(LostAnswer())),
    SilenceRow("rejected", lambda place: (place.rejected,), is_left=True),
]
LOOKING = Reply("I look into it. " * 8, calls=(call("todo"),), faults=Faults(chunk_delay_s=0.02))


@pytest.mark.usefixtures("shown")
@played(SILENCES)
async def test_what_was_shown_is_taken_back_when_the_answer_is_silence(stage: Stage, row: SilenceRow) -> None:
    faults = row.faults(stage.place)
    stage.fault("delete", *faults)
    stage.model.say(LOOKING, "[SILENT]", "Two.")
    async with stage.open():
        await stage.say("first")
        await stage.settled(2)
        await stage.say("second")
        await stage.settled(3)
        assert stage.texts()[-1] == "Two."
        assert len(stage.texts()) == 1 + row.is_left
        assert not await stage.rows("failed", "expired")
    assert len(stage.calls("delete")) >= 1
    assert stage.early("delete", faults) == []


class PauseRow(msgspec.Struct, frozen=True):
    """Which call is answered with 429, and an answer during which it is made."""

    name: Call
    answer: Reply
    places: tuple[Place, ...] = CHATS


PAUSES = [
    PauseRow("send", Reply(WORDS)),
    PauseRow("edit", SLOW_ANSWER),
    PauseRow("typing", Reply(WORDS, faults=Faults(first_byte_delay_s=0.2)), (TELEGRAM, DISCORD)),
]


@pytest.mark.usefixtures("shown")
@played(PAUSES)
async def test_nobody_is_written_to_before_a_pause_has_passed(stage: Stage, row: PauseRow) -> None:
    """Neither by an answer, nor by what is shown of one, in any chat."""
    pause_s, when = 30.0, row.name
    stage.fault(when, Refusal(429, pause_s))
    stage.model.say(row.answer, SLOW_ANSWER, SLOW_ANSWER, SLOW_ANSWER)
    async with stage.open():
        await stage.say("first")
        await stage.until(lambda: len(stage.calls(when)) == 1)
        for user in ("1002", "1003", "1004"):
            await stage.say("hello", user=user)
        await stage.settled(4)
        assert [stage.texts(user=user) for user in PEOPLE] == [[WORDS]] * 4
    assert stage.early(when, [Refusal(429, pause_s)], UNDER_WAY) == []


@at(TELEGRAM, DISCORD)
async def test_a_pause_that_is_asked_for_with_the_menu_holds_for_answers(stage: Stage) -> None:
    method = "setMyCommands" if stage.place is TELEGRAM else "overwrite_commands"
    stage.service.fault(method, Refusal(429, 40))
    stage.model.say(ONE)
    async with stage.open():
        await stage.until(lambda: len(stage.service.calls(method)) == 1)
        await stage.say("first")
        await stage.settled(1)
        assert stage.texts() == [ONE]
    refused = stage.service.calls(method)[0]["at"]
    assert all(at >= refused + 40 / stage.clock.pace for at, _ in stage.written())


class Hesitant(OutboxProxy):
    """Who has put a row of the second person on the disk waits before they go on."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__(outbox)
        self.reached, self.goes_on = asyncio.Event(), asyncio.Event()

    async def start_due(
        self, target: str, limit: int, is_wanted: Callable[[OutboxRow], bool]
    ) -> tuple[OutboxRow | None, Sequence[OutboxRow]]:
        started, rows = await super().start_due(target, limit, is_wanted)
        if started is not None and "1002" in target:
            self.reached.set()
            await self.goes_on.wait()
        return started, rows


@at(TELEGRAM, SLACK)
async def test_a_pause_holds_for_what_is_about_to_be_sent(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    hesitant: list[Hesitant] = []

    @asynccontextmanager
    async def opened(home: Path, clock: Clock) -> AsyncGenerator[Store]:
        async with open_store(home, clock) as store:
            hesitant.append(Hesitant(store.outbox))
            monkeypatch.setattr(store, "outbox", hesitant[0])
            yield store

    stage.harness.open_store = opened
    stage.fault("send", Refusal(429, 20))
    stage.model.say(ONE, "Two.")
    async with stage.open():
        (outbox,) = hesitant
        await stage.say("hello", user="1002")
        await outbox.reached.wait()
        await stage.say("hello")
        await stage.until(lambda: len(stage.calls("send")) == 1)
        await stage.until(stage.has_been_put_off)
        outbox.goes_on.set()
        await stage.settled(2)
        assert (stage.texts(user="1002"), stage.texts()) == ([ONE], ["Two."])
    assert stage.early("send", [Refusal(429, 20)]) == []


@pytest.mark.usefixtures("shown")
@at(TELEGRAM)
async def test_a_platform_that_cannot_show_typing_takes_nothing_down(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def break_(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("talaria.platforms.telegram.platform.Telegram.show_typing", break_)
    stage.model.say(SLOW_ANSWER, "Two.")
    async with stage.open():
        await stage.say("first")
        await stage.settled(1)
        await stage.say("second")
        await stage.settled(2)
        assert stage.texts() == [WORDS, "Two."]


LONG = " ".join(f"{number:05d}" for number in range(1000))


class OrderRow(msgspec.Struct, frozen=True):
    name: str
    faults: tuple[Fault, ...]
    places: tuple[Place, ...] = CHATS


ORDERS = [
    OrderRow("429 in the middle", (Slow(0), Refusal(429, 5), Slow(0), Refusal(429, 5))),
    OrderRow("500 in the middle", (Slow(0), Refusal(500))),
    OrderRow("lost answers", (LostAnswer(), Slow(0), LostAnswer())),
]


@played(ORDERS)
async def test_parts_of_an_answer_stay_in_order(stage: Stage, row: OrderRow) -> None:
    stage.fault("send", *row.faults)
    stage.model.say(LONG, "Two.")
    async with stage.open():
        await stage.say("first")
        await stage.until(lambda: len(stage.model.requests) == 1)
        await stage.say("second")
        await stage.settled(2)
        *parts, last = [text.removeprefix(MARK).strip() for text in stage.texts()]
        assert last == "Two."
        assert " ".join(dict.fromkeys(parts)) == LONG
        assert len(set(parts)) >= 2


@at(WEBHOOK)
async def test_a_chat_to_which_nothing_can_be_sent_holds_up_no_other(stage: Stage) -> None:
    stage.service.troubled.add("deaf")
    stage.model.say(*["Well."] * 4, "Two.")
    async with stage.open():
        await stage.say("first", chat="deaf")
        await stage.until(lambda: len(stage.calls("send")) >= 2)
        for chat in ("1", "2", "3"):
            await stage.say("hello", chat=chat)
            await stage.until(lambda chat=chat: stage.texts(chat=chat) == ["Well."])
        (waiting,) = [one for one in await stage.rows("pending", "started") if one.target.endswith("deaf")]
        assert waiting.attempts > 1
        stage.service.troubled.clear()
        await stage.settled(4)
        assert stage.texts(chat="deaf") == ["Well."]


@at(TELEGRAM, SLACK)
async def test_a_chat_that_shut_us_out_is_told_elsewhere_and_no_other_suffers(stage: Stage) -> None:
    if stage.place is TELEGRAM:
        stage.service.block("1002")
    else:
        stage.service.archive("D1002")
    stage.model.say(LONG * 2, "Well.", "Well.")
    async with stage.open():
        await stage.say("hello", user="1002")
        await stage.settled(1)
        await stage.say("hello")
        await stage.settled(2)
        await stage.say("hello?", user="1002")
        await stage.settled(3)
        assert (stage.texts(), stage.texts(user="1002")) == (["Well."], [])
        kept = await stage.rows("failed")
        assert all(one.target.endswith("1002") for one in kept)
        told = stage.elsewhere()
        assert len(told) == len(kept)
        assert all(TOLD.fullmatch(text) for text in told)


@at(*CHATS)
async def test_what_is_not_delivered_in_time_is_told_and_not_sent(stage: Stage) -> None:
    stage.fault("send", *[Refusal(429, 30)] * 2)
    stage.model.say(ONE)
    async with stage.open():
        await stage.say("first")
        await stage.until(lambda: len(stage.calls("send")) == 1)
        stage.clock.turned_on_s = 25 * 3600.0
        await stage.until(lambda: len(stage.elsewhere()) == 1)
        assert "in time" in stage.elsewhere()[0]
        (expired,) = await stage.rows("expired")
        assert expired.target.startswith(stage.place.platform)
        assert stage.texts() == []


@at(TELEGRAM, SLACK)
async def test_what_expires_while_we_are_shut_out_is_told_and_not_sent(stage: Stage) -> None:
    stage.model.say(Reply(ONE, faults=Faults(first_byte_delay_s=0.5)))
    async with stage.open():
        await stage.say("first")
        await stage.until(lambda: len(stage.model.requests) == 1)
        if stage.place is SLACK:
            await stage.service.disconnect("link_disabled")
        else:
            stage.service.fault("getUpdates", Refusal(401))
            stage.service.updates.end_poll()
        await stage.until(lambda: stage.health.state == "refused")
        await stage.until(stage.has_something_due)
        stage.clock.turned_on_s = 25 * 3600.0
        await stage.until(lambda: len(stage.elsewhere()) == 1)
        assert "in time" in stage.elsewhere()[0]
        assert stage.calls("send") == ()


@at(TELEGRAM)
async def test_a_draft_that_nobody_finished_is_cleared_away(stage: Stage) -> None:
    stage.model.say(ONE)
    async with stage.open():
        draft = Outgoing(
            "telegram:1001", encode_body(OutgoingBody("⚙ 1 step", is_draft=True)), "left:0", time.time() - 1
        )
        await stage.harness.store.outbox.begin(SessionId("left"), draft)
        await stage.say("first")
        await stage.settled(1)
        assert stage.texts() == [ONE]
        assert [row.key for row in await stage.rows("expired")] == ["left:0"]
        assert stage.elsewhere() == []


@at(*CHATS)
async def test_a_gateway_that_is_stopped_while_it_waits_sends_once_after_its_start(stage: Stage) -> None:
    stage.fault("send", Refusal(429, 100))
    stage.harness.config["gateway"]["drain_s"] = 1.0
    stage.model.say(ONE, "Two.")
    async with stage.open():
        await stage.say("first")
        await stage.until(stage.has_been_put_off)
    assert stage.texts() == []
    async with stage.open():
        await stage.settled(1)
        assert stage.texts() == [ONE]
        await stage.say("second")
        await stage.settled(2)
        assert stage.texts() == [ONE, "Two."]
    assert len(stage.calls("send")) == 3


@at(TELEGRAM)
async def test_an_answer_follows_a_group_that_has_moved(stage: Stage) -> None:
    stage.harness.config["gateway"]["platforms"]["telegram"]["allowed_chats"] = ["-4002"]
    stage.model.say(Reply(LONG, faults=Faults(first_byte_delay_s=0.1)))
    async with stage.open():
        await stage.say("@talaria_bot hello", chat="-4002")
        await stage.until(lambda: len(stage.model.requests) == 1)
        new = stage.service.migrate("-4002")
        await stage.settled(1)
        assert stage.texts(chat="-4002") == []
        assert " ".join(stage.texts(chat=new)) == LONG


@at(TELEGRAM)
async def test_groups_that_each_say_they_are_the_other_are_not_chased(stage: Stage) -> None:
    there = Refusal(400, words="upgraded", extra={"parameters": {"migrate_to_chat_id": -1005}})
    back = Refusal(400, words="upgraded", extra={"parameters": {"migrate_to_chat_id": 1001}})
    stage.fault("send", *[there, back] * 3)
    stage.model.say(ONE)
    async with stage.open():
        await stage.say("first")
        await stage.settled(1)
        assert stage.texts() == [ONE]
    first, *others = [one["at"] for one in stage.calls("send")]
    assert others[-1] - first >= (1 + 2 + 4) / stage.clock.pace


SIGNS = (
    "👨‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇨🇭",
    "שלום مرحبا \u202eabc\u202c \u2066x\u2069 end",
    "Z̴̵̗̘̙̜̝͑ͫ̓A̷̖͔̰͗L̸̯͚G̵̢O̶̟",
    "\U0001d518\U0001d52b 𠜎𠜱",
    "a\u200dc\u2060d",
    "".join(f"{'é' * 90}{number}" for number in range(550)),  # numbered: a model that only repeats itself is stopped
    "".join(f"{'👨‍👩‍👧‍👦' * 9}{number}" for number in range(450)),
)
ODD = ("half \ud83d of a sign", "the other \ude00 half", "a\x00b\x07c\x1b[31md\x7f")


@at(*EVERYWHERE)
async def test_any_signs_go_through_whole_both_ways(stage: Stage) -> None:
    async with stage.open():
        for turn, words in enumerate(SIGNS):
            before = len(stage.texts())
            stage.model.say(Reply(words, chunk_chars=len(words)))
            await stage.say(words)
            await stage.settled(turn + 1)
            heard = stage.model.requests[-1].json["messages"][-1]["content"]
            assert str(heard).strip().endswith(words)
            assert "".join(stage.texts()[before:]) == words


@at(*EVERYWHERE)
async def test_signs_that_are_none_stop_nothing(stage: Stage) -> None:
    async with stage.open():
        for turn, words in enumerate(ODD):
            stage.model.say("One.", "Two.")
            await stage.say(words)
            await stage.say("hello", user="1002")
            await stage.until(lambda turn=turn: len(stage.texts(user="1002")) == turn + 1)
        assert not await stage.rows("failed", "expired")


class FileRow(msgspec.Struct, frozen=True):
    """What becomes of a file that is sent after an answer."""

    name: str
    method: str
    faults: tuple[Fault, ...]
    places: tuple[Place, ...]
    is_there: bool = True
    says: str = ""


def carried(place: Place, method: str, too_big: Refusal, *, first: tuple[Fault, ...] = ()) -> list[FileRow]:
    """`first` is what the answer itself meets, where it goes the same way."""
    return [
        FileRow(f"{method}: 429", method, (*first, Refusal(429, 10)), (place,)),
        FileRow(f"{method}: a lost answer", method, (*first, LostAnswer()), (place,)),
        FileRow(f"{method}: too big", method, (*first, too_big), (place,), is_there=False, says="[Ll]arge"),
    ]


FILES = [
    *carried(TELEGRAM, "sendDocument", Refusal(413, words="Request Entity Too Large")),
    *carried(DISCORD, "create_message", Refusal(413, words="too large", extra={"code": 40005}), first=(Slow(0),)),
    *carried(SLACK, "files.completeUploadExternal", Refusal(200, words="file_too_large")),
    FileRow("files.upload: 500", "files.upload", (Refusal(500),), (SLACK,)),
]


@played(FILES)
async def test_a_file_is_there_or_it_is_told_why_not(stage: Stage, row: FileRow, tmp_path: Path) -> None:
    stage.harness.config["gateway"]["cwd"] = str(tmp_path)
    (tmp_path / "plan.txt").write_text("All of it.")
    stage.service.fault(row.method, *row.faults)
    stage.model.say(f"Here.\n\nMEDIA:{tmp_path / 'plan.txt'}", "Two.")
    async with stage.open():
        await stage.say("first")
        await stage.settled(1)
        await stage.say("second")
        await stage.settled(2)
        first, *files, last = stage.service.list_messages()
        assert (first.text, last.text) == ("Here.", "Two.")
        assert {one.file for one in files} == ({"plan.txt"} if row.is_there else {""})
        assert all(one.text == MARK for one in files[1:])
        assert row.is_there or re.match(r"\(plan.txt was not sent: ", files[0].text)
        kept = await stage.rows("failed")
        assert [bool(re.search(row.says, one.error)) for one in kept] == [True] * (not row.is_there)
        assert not stage.elsewhere(), "it was told in the chat"


@at(DISCORD)
async def test_a_file_that_is_too_big_is_not_even_tried(stage: Stage, tmp_path: Path) -> None:
    stage.harness.config["gateway"]["cwd"] = str(tmp_path)
    with (tmp_path / "film.bin").open("wb") as film:
        film.truncate(11 * 2**20)
    stage.model.say(f"Here.\n\nMEDIA:{tmp_path / 'film.bin'}")
    async with stage.open():
        await stage.say("first")
        await stage.settled(1)
        said = "Here.\n\n(film.bin was not sent: it is larger than 10 MB.)"
        assert (stage.texts(), len(stage.calls("send")), len(stage.elsewhere())) == ([said], 1, 0)
