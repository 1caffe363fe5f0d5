"""`talaria send` beside a gateway that runs, that does not, and on platforms that nobody has set up."""

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from talaria.gateway.gateway_status import read_status
from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.chat_service import Refusal
from talaria.testing.servers.telegram_server import TelegramServer

OWNER = "1001"


class Ended(msgspec.Struct, frozen=True):
    code: int
    out: str
    err: str


class Office:
    """A home with a bot of its own, and the command."""

    def __init__(self, home: Path, environment: dict[str, str], telegram: TelegramServer) -> None:
        self.home, self.telegram = home, telegram
        self.folder = Path(environment["PWD"])
        self._environment = environment
        self._gateway: Process | None = None
        self.configure(home_channel=OWNER)

    def configure(self, **settings: Any) -> None:
        telegram = {**self.telegram.settings, "allowed_users": [OWNER], **settings}
        config = {"gateway": {"workspace": str(self.home / "people"), "platforms": {"telegram": telegram}}}
        (self.home / "config.yaml").write_text(json.dumps(config))

    async def talaria(self, *arguments: str, text: str | None = None) -> Ended:
        process = await self._spawn(*arguments, stdin=DEVNULL if text is None else PIPE)
        async with asyncio.timeout(PATIENCE_S):
            out, err = await process.communicate(None if text is None else text.encode())
        return Ended(process.returncode or 0, out.decode(), err.decode())

    async def send(self, *arguments: str, text: str | None = None) -> Ended:
        return await self.talaria("send", *arguments, text=text)

    async def run(self) -> None:
        await self.telegram.post({})  # the service knows who has written before
        self._gateway = await self._spawn("gateway", "run", stdin=DEVNULL)

    async def open(self) -> None:
        await self.run()
        await self.telegram.wait_for_calls("getUpdates", 1)

    async def until_deferred(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while '"error":""' in (await self.talaria("gateway", "outbox", "--json")).out:
                pass

    async def close(self) -> None:
        if self._gateway is not None:
            self._gateway.kill()
            await self._gateway.communicate()

    async def _spawn(self, *arguments: str, stdin: int) -> Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "talaria.cli.main", *arguments),
            env=self._environment,
            cwd=self.folder,
            stdin=stdin,
            stdout=PIPE,
            stderr=PIPE,
        )


@pytest.fixture
async def office(home: Path, environment: dict[str, str]) -> AsyncIterator[Office]:
    async with AsyncExitStack() as stack:
        telegram = await stack.enter_async_context(TelegramServer())
        home.mkdir(mode=0o700)
        made = Office(home, environment, telegram)
        stack.push_async_callback(made.close)
        yield made


async def test_a_message_is_delivered_by_the_gateway_that_runs(office: Office) -> None:
    await office.open()
    sent = await office.send(f"telegram:{OWNER}", "The *build* is done.")
    assert sent == Ended(0, "", f"Delivered to telegram:{OWNER}.\n")
    assert [one.text for one in office.telegram.list_messages()] == ["The build is done."]


async def test_what_is_piped_is_sent_and_a_platform_means_its_home_channel(office: Office) -> None:
    await office.open()
    for arguments in (["telegram"], ["telegram", "-"]):
        sent = await office.send(*arguments, "--json", text="from\na pipe\n")
        assert json.loads(sent.out) == {
            "ok": True,
            "target": f"telegram:{OWNER}",
            "state": "delivered",
            "parts": 1,
            "error": "",
        }
    assert [one.text for one in office.telegram.list_messages()] == 2 * ["from\na pipe"]


async def test_the_chat_that_was_made_home_there_goes_before_the_settings(office: Office) -> None:
    office.configure(home_channel="1002", admin_users=[OWNER])
    await office.open()
    await office.telegram.say("/sethome")
    await office.telegram.wait_for(1)
    assert (await office.send("telegram", "here")).err == f"Delivered to telegram:{OWNER}.\n"


async def test_a_long_text_and_files_come_in_parts_in_their_order(office: Office) -> None:
    (office.folder / "report.txt").write_text("all of it")
    await office.open()
    text = "\n\n".join(f"Paragraph {number}: {'word ' * 60}" for number in range(24))
    sent = await office.send("telegram", text, "--file", "report.txt", "--json")
    seen = office.telegram.list_messages()
    assert (sent.code, json.loads(sent.out)["parts"]) == (0, len(seen))
    assert seen[-1].file == "report.txt"
    assert " ".join(" ".join(one.text for one in seen[:-1]).split()) == " ".join(text.split())


async def test_a_thread_is_addressed_behind_its_chat(office: Office) -> None:
    office.configure(allowed_chats=["-100200"])
    await office.open()
    await office.telegram.say("a topic", chat="-100200", thread="7")
    await office.send("telegram:-100200:7", "to the topic")
    assert [one.thread for one in office.telegram.list_messages(chat="-100200")] == ["7"]


async def test_what_the_service_refuses_is_told_with_its_reason(office: Office) -> None:
    office.telegram.fault("sendMessage", Refusal(403, words="Forbidden: bot was blocked by the user"))
    await office.open()
    sent = await office.send("telegram", "hello?", "--json")
    told = json.loads(sent.out)
    assert (sent.code, told["ok"], told["state"]) == (3, False, "failed")
    assert "blocked" in told["error"]["message"]
    assert sent.err == f"talaria: Not delivered to telegram:{OWNER}: {told['error']['message']}\n"


async def test_without_a_gateway_it_waits_and_is_delivered_by_the_next(office: Office) -> None:
    sent = await office.send("telegram", "for later")
    assert sent.code == 5
    assert sent.err == (
        f"Stored for telegram:{OWNER}, and not delivered yet: no gateway is running. "
        "The message waits for 24 hours; `talaria gateway start` starts one.\n"
    )
    assert (await office.send("telegram", "and this", "--wait", "0")).code == 0
    await office.open()
    assert [one.text for one in await office.telegram.wait_for(2)] == ["for later", "and this"]


async def test_a_service_that_asks_for_patience_is_told(office: Office) -> None:
    office.telegram.fault("sendMessage", Refusal(429, retry_after_s=60))
    await office.open()
    await office.send("telegram", "first", "--wait", "0")
    await office.until_deferred()
    sent = await office.send("telegram", "second", "--wait", "0.1")
    assert sent.code == 5
    assert "429" in sent.err
    assert "see `talaria gateway outbox`" in sent.err


async def test_a_platform_that_is_not_connected_is_told(office: Office) -> None:
    office.configure(home_channel=OWNER, token="123456:wrong")
    await office.run()
    async with asyncio.timeout(PATIENCE_S):
        while (status := read_status(office.home)) is None or status.platforms[0].state != "refused":
            await asyncio.sleep(0.01)
    sent = await office.send("telegram", "hello?", "--wait", "0.1")
    assert (sent.code, "not delivered yet: telegram is refused: " in sent.err) == (5, True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["telegrm:1", "x"], "There is no platform 'telegrm'; did you mean telegram?"),
        (["pigeon:1", "x"], "no platform 'pigeon'; known platforms: discord, matrix, slack, telegram, webhook."),
        (["discord:1", "x"], "Discord is not set up."),
        (["telegram:1"], "There is nothing to send: give the text, or pipe it in."),
        (["telegram:1", "x", "--file", "nowhere.txt"], "Cannot send nowhere.txt: it does not exist."),
        (["telegram:1", "x", "--file", "."], "Cannot send .: it is not a file."),
        (["telegram:1", "x" * 100_001], "too long for a chat: send it with --file."),
    ],
)
async def test_what_cannot_be_sent_is_told_and_not_kept(office: Office, arguments: list[str], says: str) -> None:
    sent = await office.send(*arguments, "--json")
    assert (sent.code, json.loads(sent.out)["ok"]) == (2, False)
    assert says in sent.err
    assert not (office.home / "state.db").exists()


async def test_a_platform_without_a_home_channel_says_how_to_choose_one(office: Office) -> None:
    office.configure()
    sent = await office.send("telegram", "x")
    assert (sent.code, "telegram has no home channel" in sent.err, "/sethome" in sent.err) == (2, True, True)


async def test_a_key_in_the_text_is_not_sent(office: Office) -> None:
    (office.home / ".env").write_text("GROQ_API_KEY=gsk-hush-hush-hush\n")
    (office.home / ".env").chmod(0o600)
    await office.open()
    await office.send("telegram", "look: gsk-hush-hush-hush")
    assert "gsk-hush" not in office.telegram.list_messages()[0].text
