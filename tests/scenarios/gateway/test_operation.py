"""The gateway as a process: started, told, looked at, ended and killed."""

import asyncio
import json
import os
import re
import signal
import stat
import sys
import urllib.error
import urllib.request
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from talaria.app.build import open_store
from talaria.gateway.claims import find_holder, gateway_file
from talaria.gateway.gateway_status import read_status, status_file
from talaria.testing import ModelServer, Reply, call
from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.chat_service import Refusal, Slow
from talaria.testing.servers.scripted_replies import Faults
from talaria.testing.servers.telegram_server import TelegramServer

PAUSE_S = 5.0
OWNER, OTHER = "1001", "1002"


class Ended(msgspec.Struct, frozen=True):
    code: int
    out: str
    err: str


class Station:
    """A home, the chat service and the model of its gateway, and the command."""

    def __init__(self, home: Path, environment: dict[str, str], model: ModelServer, telegram: TelegramServer) -> None:
        self.home = home
        self.model = model
        self.telegram = telegram
        self.config: dict[str, Any] = {
            "model": {"default": "first-model", "base_url": model.base_url},
            "gateway": {
                "workspace": str(home / "people"),
                "platforms": {"telegram": {**telegram.settings, "allowed_users": [OWNER]}},
            },
        }
        self._environment = environment
        self._gateways: list[Process] = []

    def write(self) -> None:
        (self.home / "config.yaml").write_text(json.dumps(self.config))

    async def spawn(self, *arguments: str) -> Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "talaria.cli.main", *arguments),
            env=self._environment,
            cwd=self._environment["PWD"],
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
        )

    async def talaria(self, *arguments: str) -> Ended:
        process = await self.spawn(*arguments)
        async with asyncio.timeout(PATIENCE_S):
            out, err = await process.communicate()
        return Ended(process.returncode or 0, out.decode(), err.decode())

    async def gateway(self) -> Process:
        """In the foreground, once it listens."""
        asked = len(self.telegram.calls("getUpdates"))
        self.write()
        process = await self.spawn("gateway", "run")
        self._gateways.append(process)
        await self.telegram.wait_for_calls("getUpdates", asked + 1)
        return process

    async def wait_for_messages(self, count: int, *, user: str = OWNER) -> list[str]:
        return [one.text for one in await self.telegram.wait_for(count, user=user)]

    async def asked(self, count: int) -> None:
        """Until the model was."""
        await asyncio.to_thread(self.model.wait_for_requests, count, PATIENCE_S)

    async def logged(self, words: str, count: int = 1) -> list[dict[str, str]]:
        """All lines of the log, once so many have these words."""
        file = self.home / "logs" / "gateway.log"
        async with asyncio.timeout(PATIENCE_S):
            while True:
                text = file.read_text() if file.exists() else ""
                lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
                if sum(words in line["message"] for line in lines) >= count:
                    return lines
                await asyncio.sleep(0.01)

    async def until_stopping(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while (status := read_status(self.home)) is None or not status.is_stopping:
                await asyncio.sleep(0.01)

    async def aclose(self) -> None:
        if (pid := find_holder(gateway_file(self.home))) is not None:
            os.kill(pid, signal.SIGKILL)
        for process in self._gateways:
            await process.communicate()


async def ended(process: Process) -> int:
    async with asyncio.timeout(PATIENCE_S):
        return await process.wait()


@pytest.fixture
async def station(home: Path, environment: dict[str, str]) -> AsyncIterator[Station]:
    async with AsyncExitStack() as stack:
        model = stack.enter_context(ModelServer())
        telegram = await stack.enter_async_context(TelegramServer())
        home.mkdir(mode=0o700)
        made = Station(home, environment, model, telegram)
        stack.push_async_callback(made.aclose)
        yield made


async def test_stopping_lets_a_turn_end_and_sends_its_answer(station: Station) -> None:
    station.model.say(Reply("Here you are.", faults=Faults(first_byte_delay_s=0.4)))
    gateway = await station.gateway()
    await station.telegram.say("think about it")
    await station.asked(1)
    gateway.send_signal(signal.SIGTERM)
    assert await ended(gateway) == 0
    assert [one.text for one in station.telegram.list_messages()] == ["Here you are."]
    assert not status_file(station.home).exists()


async def test_a_second_signal_ends_it_at_once_and_the_turn_goes_on_at_the_next_start(station: Station) -> None:
    station.model.say(Reply(faults=Faults(hang=True)), "I was away.")
    gateway = await station.gateway()
    await station.telegram.say("think about it")
    await station.asked(1)
    gateway.send_signal(signal.SIGTERM)
    await station.until_stopping()
    gateway.send_signal(signal.SIGTERM)
    assert await ended(gateway) == -signal.SIGTERM
    await station.gateway()
    assert await station.wait_for_messages(1) == ["I was away."]


async def test_a_second_gateway_on_the_home_is_refused(station: Station) -> None:
    first = await station.gateway()
    for word in ("run", "start"):
        second = await station.talaria("gateway", word)
        assert second.code == 2
        assert f"A gateway is already running on {station.home} (process {first.pid})" in second.err
    station.model.say("Still here.")
    await station.telegram.say("hello?")
    assert await station.wait_for_messages(1) == ["Still here."]


async def test_a_hangup_takes_up_new_settings_and_keeps_conversations(station: Station) -> None:
    gateway = await station.gateway()
    station.model.say("One.", "Two.", "Three.")
    await station.telegram.say("first")
    await station.wait_for_messages(1)
    station.config["model"]["default"] = "second-model"
    station.config["gateway"]["platforms"]["telegram"]["allowed_users"] = [OWNER, OTHER]
    station.write()
    gateway.send_signal(signal.SIGHUP)
    await station.logged("new settings are in use")
    await station.telegram.say("may I?", user=OTHER)
    assert await station.wait_for_messages(1, user=OTHER) == ["Two."]
    await station.telegram.say("second")
    assert await station.wait_for_messages(2) == ["One.", "Three."]
    assert [request.json["model"] for request in station.model.requests] == ["first-model", *2 * ["second-model"]]
    said = json.dumps(station.model.requests[-1].json["messages"])
    assert "first" in said
    assert "One." in said


async def test_settings_that_are_wrong_change_nothing(station: Station) -> None:
    gateway = await station.gateway()
    (station.home / "config.yaml").write_text("gateway: {drain_s: never}")
    gateway.send_signal(signal.SIGHUP)
    lines = await station.logged("the settings stay as they were")
    assert "drain_s" in lines[-1]["message"]
    station.model.say("As before.")
    await station.telegram.say("hello?")
    assert await station.wait_for_messages(1) == ["As before."]


async def test_setting_a_value_tells_the_gateway(station: Station) -> None:
    gateway = await station.gateway()
    station.model.say("Welcome.")
    told = await station.talaria("config", "set", "gateway.platforms.telegram.allowed_users", f"[{OTHER}]")
    assert told.err.splitlines()[1:] == [f"The gateway (process {gateway.pid}) was notified."]
    await station.logged("new settings are in use")
    await station.telegram.say("hello?", user=OTHER)
    assert await station.wait_for_messages(1, user=OTHER) == ["Welcome."]


async def test_status_tells_what_runs_and_what_was_killed(station: Station) -> None:
    gateway = await station.gateway()
    station.model.say("Hello.")
    await station.telegram.say("hi")
    await station.wait_for_messages(1)
    async with asyncio.timeout(PATIENCE_S):
        while not (status := read_status(station.home)) or not status.platforms[0].message_at or not status.live:
            await asyncio.sleep(0.01)
    seen = await station.talaria("gateway", "status", "--json")
    told = json.loads(seen.out)
    assert (seen.code, told["is_healthy"], told["complaints"], told["pid"]) == (0, True, [], gateway.pid)
    assert (told["status"]["live"], told["mail"]) == (1, {"waiting_sessions": 0, "outbox_due": 0, "outbox_failed": 0})
    lines = (await station.talaria("gateway", "status")).out.splitlines()
    assert lines[0].startswith(f"The gateway is running: process {gateway.pid}, version ")
    assert re.fullmatch(r"  telegram: connected as 123456; heard \d+ s ago, last message \d+ s ago", lines[1])
    gateway.kill()
    await ended(gateway)
    assert status_file(station.home).exists()
    after = await station.talaria("gateway", "status")
    assert after.code == 2
    assert "! No gateway is running here; `talaria gateway start` starts one." in after.out


async def test_killed_it_leaves_a_platform_alone_for_as_long_as_that_wants(station: Station) -> None:
    station.telegram.fault("sendMessage", Refusal(429, PAUSE_S))
    station.model.say("Hello.")
    gateway = await station.gateway()
    await station.telegram.say("hi")
    async with open_store(station.home) as store, asyncio.timeout(PATIENCE_S):
        while not any(row.error for row in await store.outbox.list(["pending"])):
            await asyncio.sleep(0.01)
    gateway.kill()
    await ended(gateway)
    await station.gateway()
    assert await station.wait_for_messages(1) == ["Hello."]
    refused, taken = [one["at"] for one in station.telegram.calls("sendMessage")]
    assert taken - refused >= PAUSE_S


@pytest.mark.long
@pytest.mark.parametrize("moment", ["the file is on the wire", "the question is on the wire", "it waits"])
async def test_killed_while_it_asks_it_asks_once_more_and_never_with_two_questions(
    station: Station, tmp_path: Path, moment: str
) -> None:
    """The short version is in tests/security/test_what_is_shown.py."""
    target, content = tmp_path / "outside.txt", "line\n" * 3_000
    writing = Reply(calls=(call("write_file", path=str(target), content=content),), chunk_chars=100_000)
    station.model.say(writing, "Done.")
    station.telegram.fault(
        "sendDocument" if "file" in moment else "sendMessage", Slow(0.0 if "waits" in moment else 60)
    )
    gateway = await station.gateway()
    await station.telegram.say("write it")
    await station.telegram.wait_for_calls("sendDocument" if "file" in moment else "sendMessage", 1)
    if moment == "it waits":
        async with open_store(station.home) as store, asyncio.timeout(PATIENCE_S):
            while not any(row.key.endswith(":0") for row in await store.outbox.list(["sent"])):
                await asyncio.sleep(0.01)
    gateway.kill()
    await ended(gateway)
    station.telegram.forget_faults()
    before = {data for one in station.telegram.list_messages() for _, data in one.buttons}

    await station.gateway()
    async with asyncio.timeout(PATIENCE_S):
        while not any(data not in before for one in station.telegram.list_messages() for _, data in one.buttons):
            await asyncio.sleep(0.01)
    (question,) = [one for one in station.telegram.list_messages() if one.buttons and one.buttons[0][1] not in before]
    assert "(Sent again" not in "".join(one.text for one in station.telegram.list_messages())
    files = [one.file for one in station.telegram.list_messages() if one.file]
    assert len(files) == 2
    assert len(set(files)) == 1
    if moment == "it waits":
        assert "no longer open" in next(one.text for one in station.telegram.list_messages() if not one.file)
    await station.telegram.press(question.id, question.buttons[0][1])
    async with asyncio.timeout(PATIENCE_S):
        while station.telegram.list_messages()[-1].text != "Done.":
            await asyncio.sleep(0.01)
    assert target.read_text() == content


async def test_a_platform_that_is_refused_is_not_well(station: Station) -> None:
    station.config["gateway"]["platforms"]["telegram"]["token"] = "123456:wrong"
    station.config["gateway"]["metrics_port"] = 0
    station.write()
    started = await station.talaria("gateway", "start")
    assert started.code == 0
    assert "talaria: telegram is refused: " in started.err
    seen = await station.talaria("gateway", "status")
    assert (seen.code, seen.out.count("! telegram is refused: ")) == (2, 1)
    status = read_status(station.home)
    assert status is not None
    code, body = await asyncio.to_thread(fetched, f"http://127.0.0.1:{status.metrics_port}/health")
    assert (code, json.loads(body)["ok"]) == (503, False)
    doctor = await station.talaria("doctor")
    assert "\nwarn  gateway: telegram is refused: " in doctor.out
    assert "\n  ok  platform telegram: 1 may talk to it, others by pairing\n" in doctor.out
    assert (await station.talaria("gateway", "stop")).code == 0


async def test_it_is_started_and_stopped_in_the_background(station: Station) -> None:
    station.write()
    started = await station.talaria("gateway", "start")
    pid = find_holder(gateway_file(station.home))
    assert pid is not None
    assert (started.code, started.err.splitlines()[0].partition(",")[0]) == (
        0,
        f"The gateway is running: process {pid}",
    )
    assert os.getsid(pid) == pid
    restarted = await station.talaria("gateway", "restart")
    assert (restarted.code, find_holder(gateway_file(station.home)) not in (None, pid)) == (0, True)
    station.model.say("Good morning.")
    await station.telegram.say("hi")
    assert await station.wait_for_messages(1) == ["Good morning."]
    stopped = await station.talaria("gateway", "stop")
    assert (stopped.code, stopped.err) == (0, "The gateway has stopped.\n")
    assert find_holder(gateway_file(station.home)) is None
    logs = (await station.talaria("gateway", "logs", "-n", "1")).out
    assert logs.endswith(" INFO talaria.cli.gateway.serving: gateway has ended\n")
    assert (await station.talaria("gateway", "stop")).err == "No gateway is running here.\n"


async def test_what_keeps_it_from_starting_is_told(station: Station) -> None:
    station.config["gateway"]["platforms"] = {}
    station.write()
    started = await station.talaria("gateway", "start")
    assert started.code == 2
    assert started.err.startswith("talaria: No platform is set up")
    station.config["gateway"]["platforms"] = {"telegramm": {}, "telegram": {}}
    station.write()
    ran = await station.talaria("gateway", "run")
    assert ran.code == 2
    assert "talaria: telegram is left out: gateway.platforms.telegram.token is not set" in ran.err
    assert "talaria: telegramm is left out: There is no platform telegramm" in ran.err


async def test_numbers_can_be_scraped(station: Station) -> None:
    station.config["gateway"]["metrics_port"] = 0
    station.telegram.fault("sendMessage", Refusal(429, retry_after_s=0))
    await station.gateway()
    station.model.say("Hello.")
    await station.telegram.say("hi")
    await station.wait_for_messages(1)
    async with asyncio.timeout(PATIENCE_S):
        while not (status := read_status(station.home)) or status.metrics_port is None:
            await asyncio.sleep(0.01)
    code, body = await asyncio.to_thread(fetched, f"http://127.0.0.1:{status.metrics_port}/metrics")
    numbers = dict(line.rsplit(" ", 1) for line in body.splitlines() if not line.startswith("#"))
    assert code == 200
    assert numbers['talaria_platform_up{platform="telegram"}'] == "1.0"
    assert numbers['talaria_messages_accepted_total{platform="telegram"}'] == "1.0"
    assert numbers['talaria_turns_total{outcome="completed"}'] == "1.0"
    assert numbers['talaria_deliveries_total{result="deferred"}'] == "1.0"
    assert numbers['talaria_deliveries_total{result="failed"}'] == "0.0"
    assert numbers["talaria_sessions_live"] == "1.0"
    assert float(numbers["talaria_event_loop_lag_seconds"]) >= 0
    assert "# TYPE talaria_turns_total counter" in body
    assert (await asyncio.to_thread(fetched, f"http://127.0.0.1:{status.metrics_port}/health"))[0] == 200
    assert (await asyncio.to_thread(fetched, f"http://127.0.0.1:{status.metrics_port}/"))[0] == 404


async def test_a_reply_that_failed_is_kept_and_can_be_tried_again(station: Station) -> None:
    station.telegram.fault("sendMessage", Refusal(403, words="Forbidden: bot was blocked by the user"))
    await station.gateway()
    station.model.say("A long \x1b[31mred answer. " * 5)
    await station.telegram.say("hi")
    await station.logged("not delivered")
    listed = (await station.talaria("gateway", "outbox")).out
    assert re.fullmatch(r" +\d+  \d{4}-.*  failed   1 tries  telegram:1001  '?.{0,70}…'?  \(.*blocked.*\)\n", listed), (
        listed
    )
    assert "\x1b" not in listed
    (row,) = json.loads((await station.talaria("gateway", "outbox", "--json")).out)
    assert (row["state"], row["target"], row["text"].count("answer")) == ("failed", "telegram:1001", 5)
    assert (await station.talaria("gateway", "outbox", "retry", str(row["id"]))).code == 0
    assert len(await station.wait_for_messages(1)) == 1
    again = await station.talaria("gateway", "outbox", "retry", str(row["id"]))
    assert (again.code, "There is no failed reply" in again.err) == (2, True)


async def test_the_log_has_ids_and_neither_words_nor_secrets(station: Station) -> None:
    await station.gateway()
    station.model.say("The answer is fortytwo.")
    await station.telegram.say("what about the swordfish?")
    await station.wait_for_messages(1)
    lines = await station.logged("message for session")
    file = station.home / "logs" / "gateway.log"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert any(line.get("session") for line in lines)
    text = file.read_text()
    assert not any(word in text for word in ("swordfish", "fortytwo", station.telegram.token))


def fetched(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as fault:
        with fault:
            return fault.code, fault.read().decode()
