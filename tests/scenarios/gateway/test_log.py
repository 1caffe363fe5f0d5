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
def log_file(house: Harness) -> Iterator[None]:
    with logged(house.home, Redactor()):
        yield


def lines(house: Harness, words: str) -> list[dict[str, str]]:
    text = gateway_log.file(house.home).read_text()
    return [line for line in map(json.loads, text.splitlines()) if words in line["message"]]


def facts(line: dict[str, str]) -> dict[str, str]:
    return dict(re.findall(r'(\w+)=("[^"]*"|\S+)', line["message"]))


async def test_each_turn_is_one_line_with_its_outcome(house: Harness) -> None:
    house.model.say(
        "One.", Reply(faults=Faults(hang=True)), Failure(401, {"error": {"message": f"no such key {CANARY}"}})
    )
    async with house.serve():
        await house.telegram.say("go")
        await house.wait_for_messages(1)
        await house.telegram.say("and on")
        await asyncio.to_thread(house.model.wait_for_requests, 2)
        await house.telegram.say("/stop")
        await house.until(lambda: len(lines(house, "turn ended")) == 2)
        await house.telegram.say("again")
        await house.until(lambda: len(lines(house, "turn ended")) == 3)
        session = await house.session_of(f"agent:main:telegram:dm:{OWNER}")
    completed, stopped, failed = ended = lines(house, "turn ended")
    assert [facts(line)["outcome"] for line in ended] == ["completed", "interrupted", "failed"]
    assert [line["level"] for line in ended] == ["INFO", "INFO", "WARNING"]
    assert {line["session"] for line in ended} == {session}
    assert len({line["turn"] for line in ended}) == 3
    assert {(facts(line)["person"], facts(line)["chat"]) for line in ended} == {("telegram:1001", "telegram:1001")}
    assert int(facts(completed)["tokens_in"]) > 0
    assert (facts(completed)["cost_usd"], facts(stopped)["tokens_out"]) == ("unknown", "0")
    assert (facts(failed)["error"], facts(failed)["kind"]) == ("KeyRejected", "auth")
    assert CANARY not in gateway_log.file(house.home).read_text()


async def test_a_limit_that_ends_a_turn_is_named(house: Harness) -> None:
    house.config["limits"] = {"turn": {"tokens": 10}}
    async with house.serve():
        await house.telegram.say("go")
        await house.until(lambda: len(lines(house, "turn ended")) == 1)
    (failed,) = lines(house, "turn ended")
    assert facts(failed)["error"] == "LimitReached"
    assert "10" in facts(failed)["reason"]


async def test_nothing_that_people_say_or_name_is_in_the_log(house: Harness) -> None:
    folder(house).mkdir(parents=True)
    (folder(house) / f"{CANARY}.txt").write_text(CANARY)
    given = {"file_id": "gone", "file_unique_id": "u", "file_name": f"{CANARY}.csv", "file_size": 3}
    house.telegram.fault("sendDocument", Refusal(400, words=f"Bad Request: not {CANARY}"))
    house.model.say(f"{CANARY}\nMEDIA: {CANARY}.txt", f"More {CANARY}.")
    async with house.serve():
        await house.telegram.post({"document": given, "caption": f"{CANARY}?"})
        await house.wait_for_messages(2)
        await house.telegram.say(f"/title {CANARY}")
        await house.wait_for_messages(3)
        house.telegram.fault("sendMessage", Refusal(400, words=f'Bad Request: bad tag "{CANARY}"'))
        await house.telegram.say(f"{CANARY}!")
        await house.until(lambda: len(lines(house, "reply not delivered")) == 2)
        await house.telegram.say(f"{CANARY}, let me in", user=STRANGER, name=CANARY)
        (offer,) = await house.wait_for_messages(1, user=STRANGER)
        await house.telegram.say(f"@talaria_bot {CANARY}", chat=GROUP)
        await house.telegram.say(f"just talking, {CANARY}", chat=GROUP)
        await house.until(lambda: len(lines(house, "refused: ")) == 2)
    text = gateway_log.file(house.home).read_text()
    assert CANARY not in text
    code = re.search(r"approve telegram (\w{8})", offer.text)
    assert code is not None
    assert code[1] not in text
    assert [facts(line) for line in lines(house, "refused: ")] == [
        {"person": "telegram:666", "chat": "telegram:666"},
        {"person": "telegram:1001", "chat": f"telegram:{GROUP}"},
    ]
    file, reply = lines(house, "reply not delivered")
    assert (facts(file)["chat"], facts(reply)["error"]) == ("telegram:1001", "rejected")
    assert file["level"] == reply["level"] == "WARNING"


async def test_a_crowd_of_strangers_does_not_fill_the_log(house: Harness) -> None:
    clock = TravellingClock()
    house.gateway_clock = clock
    crowd = 10 * REFUSALS_EACH_MINUTE
    async with house.serve():
        for number in range(crowd):
            await house.telegram.say("let me in", user=str(10_000 + number))
        await house.telegram.say("let me in", user="10000")
        await house.until(lambda: house.telegram.updates.waiting == 0)
        await house.until(lambda: len(lines(house, "refused: ")) == REFUSALS_EACH_MINUTE)
        clock.advance(MINUTE_S)
        await house.telegram.say("let me in", user="99999")
        await house.until(lambda: len(lines(house, "refused: ")) == REFUSALS_EACH_MINUTE + 2)
    *_, left_out, last = lines(house, "refused: ")
    assert f" {crowd - REFUSALS_EACH_MINUTE} more" in left_out["message"]
    assert facts(last)["person"] == "telegram:99999"


def test_a_handoff_is_one_line(house: Harness) -> None:
    log_handoff(SessionId("s1"), "telegram", "completed", 1.25)
    log_handoff(SessionId("s1"), "telegram", "failed", 45.0, TimeoutError(CANARY))
    done, failed = lines(house, "handoff ended")
    assert (done["level"], facts(done)) == ("INFO", {"outcome": "completed", "platform": "telegram", "seconds": "1.2"})
    assert (failed["level"], facts(failed)["kind"]) == ("WARNING", "TimeoutError")
    assert CANARY not in failed["message"]
