"""Whatever happens to the line to a chat service, or comes over it, what people say is answered once; and what somebody
must act on is told in one sentence."""

import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.contracts.faults.platform_stage import (
    DISCORD,
    EVERYWHERE,
    HOOKED,
    OWNER,
    SLACK,
    TELEGRAM,
    Place,
    Stage,
    at,
    played,
    staged,
)
from tests.servers.discord_server import DiscordServer
from tests.servers.slack_workspace import BOT, BOT_ID

from talaria.gateway import preview
from talaria.testing.servers.chat_service import Fault, LostAnswer, Refusal, Slow
from talaria.testing.servers.scripted_replies import Faults, Reply

Act = Callable[[Stage], Awaitable[object]]

FASTER = 120.0
"""Who was refused tries again after a minute: here that is half a second."""
LIVELY = msgspec.structs.replace(DISCORD, name="discord, lively", serve=lambda: DiscordServer(heartbeat_s=0.15))


class LineRow(msgspec.Struct, frozen=True):
    name: str
    break_: Act
    places: tuple[Place, ...]
    is_kept: bool = False
    """The platform itself stays open."""
    says: str = ""
    """Somebody must act: what health says until then."""
    pause_s: float = 0.0
    """That is asked for."""


def closed(code: int, says: str = "") -> LineRow:
    return LineRow(
        f"closed with {code}", lambda stage: stage.service.close_socket(code), (DISCORD,), is_kept=not says, says=says
    )


def asked(name: str, *faults: Fault, **more: Any) -> LineRow:
    """The next questions for news are answered so."""

    async def act(stage: Stage) -> None:
        stage.service.fault("getUpdates", *faults)
        stage.service.updates.end_poll()

    return LineRow(f"asked for news: {name}", act, (TELEGRAM,), **more)


def told_to_go(reason: str, says: str = "") -> LineRow:
    return LineRow(reason, lambda stage: stage.service.disconnect(reason), (SLACK,), says=says)


async def cut(stage: Stage) -> None:
    stage.service.gateway.cut() if stage.place is DISCORD else stage.service.cut_lines()


async def refuse_resuming(stage: Stage) -> None:
    stage.service.refuse_resume()
    await stage.service.close_socket(4000)


async def hang_up_on_resuming(stage: Stage) -> None:
    stage.service.gateway.hangs_up_on_resume = True
    await stage.service.close_socket(4000)


async def fall_silent(stage: Stage) -> None:
    """Nothing is closed; heartbeats and pings are just not answered any more."""
    server, name = (stage.service, "answers_pings") if stage.place is SLACK else (stage.service.gateway, "acknowledges")
    setattr(server, name, False)
    await stage.until(lambda: stage.health.failures > 0)
    setattr(server, name, True)


async def ask_as_well(stage: Stage) -> None:
    """Another program with the same token."""
    await stage.service.updates.ask(offset=0, limit=1, timeout_s=0, allowed=None)


LINES = [
    *map(closed, (1000, 1001, 4000, 4007, 4009)),
    LineRow("cut", cut, (DISCORD,), is_kept=True),
    LineRow("cut", cut, (SLACK,)),
    closed(4004, "token: copy it again"),
    closed(4013, "intents"),
    closed(4014, "switch on Message Content Intent"),
    LineRow("not resumed", refuse_resuming, (DISCORD,)),
    LineRow("hung up on while it is resumed", hang_up_on_resuming, (DISCORD,)),
    LineRow("the session is over", lambda stage: stage.service.gateway.invalidate(), (DISCORD,)),
    LineRow("asked to come again", lambda stage: stage.service.gateway.reconnect(), (DISCORD,), is_kept=True),
    LineRow("silent", fall_silent, (LIVELY, SLACK)),
    *map(told_to_go, ("warning", "refresh_requested", "too_many_websockets")),
    told_to_go("link_disabled", "Socket Mode is turned off"),
    LineRow("closed", lambda stage: stage.service.close_lines(), (SLACK,)),
    asked("a lost answer", LostAnswer()),
    asked("500, again and again", *[Refusal(500)] * 3),
    asked("429", Refusal(429, 20), pause_s=20),
    asked("401", Refusal(401), says="does not know the bot's token .* TELEGRAM_BOT_TOKEN"),
    asked("409", Refusal(409), says="Another program reads .* a bot of its own"),
    LineRow("another program asks", ask_as_well, (TELEGRAM,), says="Another program reads"),
]


class DoorRow(msgspec.Struct, frozen=True):
    """A platform that cannot be opened at first."""

    name: str
    places: tuple[Place, ...]
    shut: Callable[[Any], object]
    """Done to the service."""
    state: str
    says: str
    pause_s: float = 0.0


def shut(place: Place, method: str, name: str, *faults: Fault, **more: Any) -> DoorRow:
    return DoorRow(f"{method}: {name}", (place,), lambda service: service.fault(method, *faults), **more)


TROUBLE = {"state": "waiting", "says": "in trouble|failed|did not answer|broke|cannot be reached"}
DOORS = [
    shut(TELEGRAM, "getMe", "401", Refusal(401), state="refused", says="TELEGRAM_BOT_TOKEN in .env"),
    shut(TELEGRAM, "getMe", "500", *[Refusal(500)] * 4, **TROUBLE),
    shut(TELEGRAM, "getMe", "lost answers", *[LostAnswer()] * 4, **TROUBLE),
    shut(TELEGRAM, "getMe", "429", Refusal(429, 60), state="waiting", says="slow down", pause_s=60),
    shut(TELEGRAM, "deleteWebhook", "502", *[Refusal(502)] * 4, **TROUBLE),
    shut(HOOKED, "setWebhook", "401", Refusal(401), state="refused", says="TELEGRAM_BOT_TOKEN in .env"),
    shut(HOOKED, "setWebhook", "500", *[Refusal(500)] * 4, **TROUBLE),
    shut(DISCORD, "get_current_user", "401", Refusal(401), state="refused", says="token: copy it again"),
    shut(DISCORD, "get_current_user", "503", *[Refusal(503)] * 4, **TROUBLE),
    shut(DISCORD, "get_gateway_bot", "429", Refusal(429, 60), state="waiting", says="slow down", pause_s=60),
    shut(SLACK, "auth.test", "a bad token", SLACK.no_entry, state="refused", says="check SLACK_BOT_TOKEN"),
    shut(SLACK, "auth.test", "500", *[Refusal(500)] * 4, **TROUBLE),
    shut(SLACK, "apps.connections.open", "lost answers", *[LostAnswer()] * 4, **TROUBLE),
    shut(SLACK, "apps.connections.open", "429", Refusal(429, 60), state="waiting", says="asks us to wait", pause_s=60),
]


@pytest.fixture
async def stage(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # bots of other tests have the same name
    monkeypatch.setattr(preview, "SHOWN_AFTER_S", math.inf)
    async with staged(place, tmp_path) as stage:
        yield stage


@played(LINES)
async def test_a_line_that_breaks_loses_nothing_and_doubles_nothing(stage: Stage, row: LineRow) -> None:
    stage.clock.pace = FASTER
    stage.model.say("One.", "Two.", "Three.")
    async with stage.open():
        await stage.say("first")
        await stage.settled(1)
        before = len(stage.service.calls("getUpdates"))
        await row.break_(stage)
        if row.says:
            await stage.until(lambda: stage.health.state == "refused")
            assert re.search(row.says, stage.health.error)
        await stage.say("meanwhile")
        await stage.settled(2)
        await stage.until(
            lambda: (stage.health.state, stage.health.failures, stage.health.error) == ("connected", 0, "")
        )
        await stage.say("after")
        await stage.settled(3)
        assert stage.texts() == ["One.", "Two.", "Three."]
        assert stage.health.opened == 1 if row.is_kept else stage.health.opened > 1
    if row.pause_s:
        refused, following = [one["at"] for one in stage.service.calls("getUpdates")][before : before + 2]
        assert following - refused >= row.pause_s / stage.clock.pace


@at(TELEGRAM)
async def test_a_line_on_which_nothing_is_heard_is_opened_anew(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question for news that nobody ever answers."""
    monkeypatch.setattr("talaria.gateway.connector.SILENT_PULSES", 0.005)
    stage.model.say("One.")
    async with stage.open():
        await stage.until(lambda: stage.health.opened > 1)
        monkeypatch.setattr("talaria.gateway.connector.SILENT_PULSES", 3)
        await stage.say("first")
        await stage.settled(1)
        assert stage.texts() == ["One."]


@played(DOORS)
async def test_a_door_that_is_shut_says_why_and_is_tried_again(stage: Stage, row: DoorRow) -> None:
    stage.clock.pace = FASTER
    row.shut(stage.service)
    stage.model.say("One.")
    async with stage.begun():
        await stage.until(lambda: stage.health.state == row.state and bool(re.search(row.says, stage.health.error)))
        await stage.until(lambda: stage.health.state == "connected")
        await stage.say("first")
        await stage.settled(1)
        assert stage.texts() == ["One."]
        assert stage.health.error == ""
    method = row.name.partition(":")[0]
    refused, following = [one["at"] for one in stage.service.calls(method)][:2]
    assert following - refused >= row.pause_s / stage.clock.pace


@at(TELEGRAM, DISCORD, SLACK)
async def test_a_line_that_breaks_cuts_nothing_that_is_being_sent(stage: Stage) -> None:
    stage.fault("send", Slow(0.3))
    stage.model.say("One.", "Two.")
    async with stage.open():
        await stage.say("first")
        await stage.until(lambda: len(stage.calls("send")) == 1)
        match stage.place.platform:
            case "telegram":
                stage.service.fault("getUpdates", Refusal(500))
                stage.service.updates.end_poll()
            case "discord":
                await refuse_resuming(stage)
            case _:
                stage.service.cut_lines()
        await stage.until(lambda: stage.health.opened > 1)
        await stage.settled(1)
        await stage.say("second")
        await stage.settled(2)
        assert stage.texts() == ["One.", "Two."]


class HeardRow(msgspec.Struct, frozen=True):
    """What comes besides one message, while its answer is written."""

    name: str
    places: tuple[Place, ...]
    tell: Callable[[Stage, str], Awaitable[object]]
    """With that message's id."""


async def tell_again(stage: Stage, message: str) -> None:
    service = stage.service
    match stage.place.platform:
        case "telegram":
            service.updates.tell_again()
        case "discord":
            await service.tell_again(message)
        case "slack":
            await service.tell(_of_slack(message, user="U1001", text="first"))
        case _:
            await service.post({"id": message, "text": "first", "chat": OWNER, "thread": ""})


async def edit(stage: Stage, message: str) -> None:
    match stage.place.platform:
        case "telegram":
            await stage.service.change(message, "second thoughts")
        case "discord":
            await stage.service.gateway.tell("MESSAGE_UPDATE", {**stage.service.raw(message), "content": "changed"})
        case _:
            changed = {"message": _of_slack(message, user="U1001", text="changed"), "subtype": "message_changed"}
            await stage.service.tell(_of_slack(f"{time.time():.6f}", **changed))


async def delete(stage: Stage, message: str) -> None:
    if stage.place is DISCORD:
        await stage.service.gateway.tell("MESSAGE_DELETE", {"id": message, "channel_id": stage.service.dm()})
    else:
        await stage.service.tell(_of_slack(f"{time.time():.6f}", subtype="message_deleted", deleted_ts=message))


async def echo(stage: Stage, message: str) -> None:
    """Our own words."""
    await stage.service.tell(_of_slack(f"{float(message) + 1:.6f}", user=BOT, bot_id=BOT_ID, text="One."))


async def tell_nonsense(stage: Stage, _: str) -> None:
    stage.service.updates.tell("message", {"message_id": "x", "text": "what?"})
    stage.service.updates.tell("message", {"message_id": 9, "chat": None, "text": "\ud83d", "from": {"id": 1001}})


def _of_slack(ts: str, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "channel": "D1001", "channel_type": "im", "ts": ts, "event_ts": ts, **fields}


HEARD = [
    HeardRow("the same again", EVERYWHERE, tell_again),
    HeardRow("an edit", (TELEGRAM, DISCORD, SLACK), edit),
    HeardRow("that it is deleted", (DISCORD, SLACK), delete),
    HeardRow("an echo", (SLACK,), echo),
    HeardRow("nonsense", (TELEGRAM, HOOKED), tell_nonsense),
]


@played(HEARD)
async def test_what_is_no_news_changes_nothing(stage: Stage, row: HeardRow) -> None:
    stage.model.say(Reply("One.", faults=Faults(first_byte_delay_s=0.15)), "Two.")
    async with stage.open():
        message = await stage.say("first")
        await stage.until(lambda: len(stage.model.requests) == 1)
        await row.tell(stage, message)
        await stage.settled(1)
        await stage.say("second")
        await stage.settled(2)
        assert stage.texts() == ["One.", "Two."]
        assert len(stage.model.requests) == 2


@at(*EVERYWHERE)
async def test_what_is_told_again_after_a_restart_is_not_answered_again(stage: Stage) -> None:
    stage.model.say("One.", "Two.")
    async with stage.open():
        message = await stage.say("first")
        await stage.settled(1)
    if stage.place.platform == "telegram":
        await tell_again(stage, message)  # it keeps that until we are back
    async with stage.open():
        if stage.place.platform != "telegram":
            await tell_again(stage, message)
        await stage.say("second")
        await stage.settled(2)
        assert stage.texts() == ["One.", "Two."]
        assert len(stage.model.requests) == 2


@at(TELEGRAM, HOOKED)
@pytest.mark.parametrize("numbers", [(1007, 1005, 1006), (5, 4, 6), (2000, 9, 10)])
async def test_updates_in_any_order_are_each_answered_once(stage: Stage, numbers: tuple[int, ...]) -> None:
    people = ("1002", "1003", "1004")
    stage.model.say("Well.", "Well.", "Well.", "One.")
    for number, user in zip(numbers, people, strict=True):
        person = {"id": int(user), "is_bot": False, "first_name": "Person"}
        message = {"message_id": 7, "date": 1, "from": person, "chat": {"id": int(user), "type": "private"}}
        stage.service.group(user)
        stage.service.updates.tell_as_it_is({"update_id": number, "message": {**message, "text": "hello"}})
    async with stage.open():
        await stage.settled(3)
        await stage.say("first")
        await stage.settled(4)
        assert [stage.texts(user=user) for user in (*people, OWNER)] == [["Well."], ["Well."], ["Well."], ["One."]]
        assert len(stage.model.requests) == 4


@at(*EVERYWHERE)
async def test_a_burst_reaches_the_model_once_and_in_order(stage: Stage) -> None:
    async with stage.open():
        stage.model.say(*["Well."] * 100)
        for number in range(100):
            await stage.say(f"({number})")
        await stage.until(lambda: "(99)" in said_to(stage))
        await stage.settled(1)
        heard = [int(number) for number in re.findall(r"\((\d+)\)", said_to(stage))]
        assert heard == list(range(100))
        assert len(stage.texts()) == len(stage.model.requests)


def said_to(stage: Stage) -> str:
    """By people, to the model."""
    asked: list[dict[str, Any]] = stage.model.requests[-1].json["messages"] if stage.model.requests else []
    return "\n".join(str(one["content"]) for one in asked if one["role"] == "user")
