"""The log tells the operator what happened and how it ended, and nothing of what people say."""

import asyncio
import json
import re
from collections.abc import Iterator

import pytest
from tests.contracts.pool.travelling import TravellingClock
from tests.scenarios.gateway.test_files import folder
from tests.security.chats import logged

from talaria.cli.gateway import log as gateway_log
from talaria.core.ids import SessionId
from talaria.core.redaction import Redactor
from talaria.gateway.audit import MINUTE_S, REFUSALS_EACH_MINUTE, log_handoff
from talaria.testing import Reply
from talaria.testing.harness import OWNER, Harness
from talaria.testing.servers.chat_service import Refusal
from talaria.testing.servers.scripted_replies import Failure, Faults

CANARY = "canary-Zq7"
STRANGER = "666"
GROUP = "-4002"


@pytest.fixture(autouse=True)
def log_file(harness: Harness) -> Iterator[None]:
    with logged(harness.home, Redactor()):
        yield


def lines(harness: Harness, words: str) -> list[dict[str, str]]:
    text = gateway_log.file(harness.home).read_text()
    return [line for line in map(json.loads, text.splitlines()) if words in line["message"]]


def facts(line: dict[str, str]) -> dict[str, str]:
    return dict(re.findall(r'(\w+)=("[^"]*"|\S+)', line["message"]))


async def test_each_turn_is_one_line_with_its_outcome(harness: Harness) -> None:
    harness.model.say(
        "One.", Reply(faults=Faults(hang=True)), Failure(401, {"error": {"message": f"no such key {CANARY}"}})
    )
    async with harness.serve():
        await harness.telegram.say("go")
        await harness.wait_for_messages(1)
        await harness.telegram.say("and on")
        await asyncio.to_thread(harness.model.wait_for_requests, 2)
        await harness.telegram.say("/stop")
        await harness.until(lambda: len(lines(harness, "turn ended")) == 2)
        await harness.telegram.say("again")
        await harness.until(lambda: len(lines(harness, "turn ended")) == 3)
        session = await harness.session_of(f"agent:main:telegram:dm:{OWNER}")
    completed, stopped, failed = ended = lines(harness, "turn ended")
    assert [facts(line)["outcome"] for line in ended] == ["completed", "interrupted", "failed"]
    assert [line["level"] for line in ended] == ["INFO", "INFO", "WARNING"]
    assert {line["session"] for line in ended} == {session}
    assert len({line["turn"] for line in ended}) == 3
    assert {(facts(line)["person"], facts(line)["chat"]) for line in ended} == {("telegram:1001", "telegram:1001")}
    assert int(facts(completed)["tokens_in"]) > 0
    assert (facts(completed)["cost_usd"], facts(stopped)["tokens_out"]) == ("unknown", "0")
    assert (facts(failed)["error"], facts(failed)["kind"]) == ("KeyRejected", "auth")
    assert CANARY not in gateway_log.file(harness.home).read_text()


async def test_a_limit_that_ends_a_turn_is_named(harness: Harness) -> None:
    harness.config["limits"] = {"turn": {"tokens": 10}}
    async with harness.serve():
        await harness.telegram.say("go")
        await harness.until(lambda: len(lines(harness, "turn ended")) == 1)
    (failed,) = lines(harness, "turn ended")
    assert facts(failed)["error"] == "LimitReached"
    assert "10" in facts(failed)["reason"]


async def test_nothing_that_people_say_or_name_is_in_the_log(harness: Harness) -> None:
    folder(harness).mkdir(parents=True)
    (folder(harness) / f"{CANARY}.txt").write_text(CANARY)
    given = {"file_id": "gone", "file_unique_id": "u", "file_name": f"{CANARY}.csv", "file_size": 3}
    harness.telegram.fault("sendDocument", Refusal(400, words=f"Bad Request: not {CANARY}"))
    harness.model.say(f"{CANARY}\nMEDIA: {CANARY}.txt", f"More {CANARY}.")
    async with harness.serve():
        await harness.telegram.post({"document": given, "caption": f"{CANARY}?"})
        await harness.wait_for_messages(2)
        await harness.telegram.say(f"/title {CANARY}")
        await harness.wait_for_messages(3)
        harness.telegram.fault("sendMessage", Refusal(400, words=f'Bad Request: bad tag "{CANARY}"'))
        await harness.telegram.say(f"{CANARY}!")
        await harness.until(lambda: len(lines(harness, "reply not delivered")) == 2)
        await harness.telegram.say(f"{CANARY}, let me in", user=STRANGER, name=CANARY)
        (offer,) = await harness.wait_for_messages(1, user=STRANGER)
        await harness.telegram.say(f"@talaria_bot {CANARY}", chat=GROUP)
        await harness.telegram.say(f"just talking, {CANARY}", chat=GROUP)
        await harness.until(lambda: len(lines(harness, "refused: ")) == 2)
    text = gateway_log.file(harness.home).read_text()
    assert CANARY not in text
    code = re.search(r"approve telegram (\w{8})", offer.text)
    assert code is not None
    assert code[1] not in text
    assert [facts(line) for line in lines(harness, "refused: ")] == [
        {"person": "telegram:666", "chat": "telegram:666"},
        {"person": "telegram:1001", "chat": f"telegram:{GROUP}"},
    ]
    file, reply = lines(harness, "reply not delivered")
    assert (facts(file)["chat"], facts(reply)["error"]) == ("telegram:1001", "rejected")
    assert file["level"] == reply["level"] == "WARNING"


async def test_a_crowd_of_strangers_does_not_fill_the_log(harness: Harness) -> None:
    clock = TravellingClock()
    harness.gateway_clock = clock
    crowd = 10 * REFUSALS_EACH_MINUTE
    async with harness.serve():
        for number in range(crowd):
            await harness.telegram.say("let me in", user=str(10_000 + number))
        await harness.telegram.say("let me in", user="10000")
        await harness.until(lambda: harness.telegram.updates.waiting == 0)
        await harness.until(lambda: len(lines(harness, "refused: ")) == REFUSALS_EACH_MINUTE)
        clock.advance(MINUTE_S)
        await harness.telegram.say("let me in", user="99999")
        await harness.until(lambda: len(lines(harness, "refused: ")) == REFUSALS_EACH_MINUTE + 2)
    *_, left_out, last = lines(harness, "refused: ")
    assert f" {crowd - REFUSALS_EACH_MINUTE} more" in left_out["message"]
    assert facts(last)["person"] == "telegram:99999"


def test_a_handoff_is_one_line(harness: Harness) -> None:
    log_handoff(SessionId("s1"), "telegram", "completed", 1.25)
    log_handoff(SessionId("s1"), "telegram", "failed", 45.0, TimeoutError(CANARY))
    done, failed = lines(harness, "handoff ended")
    assert (done["level"], facts(done)) == ("INFO", {"outcome": "completed", "platform": "telegram", "seconds": "1.2"})
    assert (failed["level"], facts(failed)["kind"]) == ("WARNING", "TimeoutError")
    assert CANARY not in failed["message"]
