"""A yes in a chat: by whoever was asked, where they were asked, to exactly what they saw, once, while it is asked."""

import re
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest
from tests.security.chats import (
    FRIEND,
    LISTED,
    OWNER,
    Speaker,
    forge_press,
    heard_all,
    house_at,
    say,
    texts,
    told_to_model,
)
from tests.servers.discord_server import DiscordServer
from tests.servers.slack_server import SlackServer

from talaria.store.permission_ports import Approval
from talaria.testing import Reply, call
from talaria.testing.harness import Harness
from talaria.testing.servers.chat_service import ChatService, SeenMessage

COMMAND = "echo done >> mark"
there = Speaker("the owner in the group", OWNER, LISTED)
other = Speaker("a friend in the group", FRIEND, LISTED)


@pytest.fixture
async def harness(tmp_path: Path, run_folder: None) -> AsyncIterator[Harness]:
    async with house_at(tmp_path) as made:
        made.config["approvals"] = {"ask": ["terminal"]}
        yield made


def running(*commands: str) -> Reply:
    given = enumerate(commands or (COMMAND,))
    return Reply(calls=tuple(call("terminal", id=f"call_{number}", command=command) for number, command in given))


def has_run(harness: Harness) -> list[str]:
    """What was done, by line."""
    return [line for file in harness.home.parent.glob("people/*/mark") for line in file.read_text().splitlines()]


async def question(harness: Harness, *, chat: str = "", number: int = 0) -> SeenMessage:
    await harness.until(lambda: len([one for one in harness.telegram.list_messages(chat=chat) if one.buttons]) > number)
    return [one for one in harness.telegram.list_messages(chat=chat) if one.buttons][number]


async def approvals(harness: Harness) -> list[Approval]:
    return list(await harness.store.approvals.list_pending())


async def test_only_a_press_of_the_asked_on_what_was_offered_where_it_was_asked_counts(harness: Harness) -> None:
    harness.config["gateway"]["platforms"]["telegram"]["admin_users"] = [OWNER, FRIEND]
    harness.model.say(running("rm -rf x; " + COMMAND), running("echo mine >> mark"), "Finished.")
    async with harness.serve():
        await say(harness, there, "do it")
        shown = await question(harness, chat=LISTED)
        await harness.telegram.say("and this", user=FRIEND)
        await harness.until(lambda: any(one.buttons for one in harness.telegram.list_messages(user=FRIEND)))
        theirs = next(one for one in harness.telegram.list_messages(user=FRIEND) if one.buttons)
        id, mine = shown.buttons[0][1].split(":")[1], theirs.buttons[0][1].split(":")[1]
        assert [data for _, data in shown.buttons] == [f"q:{id}:once", f"q:{id}:session", f"q:{id}:no"]
        assert len(id) >= 32
        for data in (f"q:{id}:once", f"q:{id}:session", f"q:{id}:no"):
            forge_press(harness, data, user=FRIEND, chat=LISTED, message=shown.id)
            forge_press(harness, data, user=FRIEND)
            forge_press(harness, data, user=OWNER)
        wrong = ("always", "", "yes", "0", "once:once", "ONCE", "once ", "allow")
        for data in (*(f"q:{id}:{word}" for word in wrong), f"q:{mine}:once", f"q:{id[:8]}:once", "q::once", "q:", "x"):
            forge_press(harness, data, user=OWNER, chat=LISTED, message=shown.id)
        for words in ("/approve", "/approve session", "/deny"):
            await say(harness, other, words)
        await harness.telegram.say("/approve", user=OWNER)
        await heard_all(harness, there)
        assert has_run(harness) == []
        assert len(await approvals(harness)) == 2
        await harness.telegram.press(shown.id, f"q:{id}:once", chat=LISTED)
        await harness.until(lambda: "Finished." in texts(harness, chat=LISTED))
        assert has_run(harness) == ["done"]
        assert await harness.store.grants.list() == []
        assert [one.id for one in await approvals(harness)] == [mine]


async def test_who_is_no_admin_cannot_allow_what_leaves_the_sandbox(harness: Harness) -> None:
    harness.model.say(running(), "Then not.")
    async with harness.serve():
        await harness.telegram.say("do it", user=FRIEND)
        await harness.until(lambda: "Then not." in [one.text for one in harness.telegram.list_messages(user=FRIEND)])
        told = harness.telegram.list_messages(user=FRIEND)[0]
        assert "only an admin can allow" in told.text
        assert not told.buttons
        await harness.telegram.say("/approve", user=FRIEND)
        await harness.until(lambda: len(harness.telegram.list_messages(user=FRIEND)) == 3)
        assert has_run(harness) == []


async def test_a_yes_is_for_one_call_and_never_for_the_next(harness: Harness) -> None:
    """A press that is told again, two calls at once, and a call that differs from what was shown."""
    harness.model.say(running(COMMAND, "echo second >> mark"), "Finished.", running("echo third >> mark"), "Last.")
    async with harness.serve():
        await harness.telegram.say("do it")
        first = await question(harness)
        yes = first.buttons[0][1]
        (row,) = await approvals(harness)
        assert not await harness.store.approvals.use(row.id, row.digest), "nobody has said yes"
        assert not await harness.store.approvals.decide(row.id, is_allowed=True, by=f"telegram:{FRIEND}")
        for _ in range(3):
            forge_press(harness, yes, user=OWNER, message=first.id)
        await harness.until(lambda: len(harness.telegram.list_messages()) == 2)
        second = await question(harness)
        assert (has_run(harness), "echo second" in second.text) == (["done"], True)
        assert not await harness.store.approvals.use(row.id, row.digest), "it was used"
        forge_press(harness, yes, user=OWNER, message=first.id)
        await harness.telegram.say("/deny")
        await harness.until(lambda: "Finished." in texts(harness))
        await harness.telegram.say("again")
        await harness.until(lambda: any("echo third" in text for text in texts(harness)))
        for data in (yes, second.buttons[0][1]):
            forge_press(harness, data, user=OWNER, message=first.id)
        await heard_all(harness)
        assert has_run(harness) == ["done"]
        (third,) = await approvals(harness)
        assert await harness.store.approvals.decide(third.id, is_allowed=True, by=f"telegram:{OWNER}")
        assert not await harness.store.approvals.use(third.id, row.digest), "what is run is not what was shown"


async def test_what_was_allowed_for_a_session_is_allowed_to_whoever_said_so(harness: Harness) -> None:
    """In a thread, which all have together, everybody answers for themselves."""
    harness.config["gateway"]["platforms"]["telegram"]["admin_users"] = [OWNER, FRIEND]
    harness.model.say(running(), "Finished.", running("echo mine >> mark"), "Mine.")
    async with harness.serve():
        await say(harness, there, "do it", thread="7")
        shown = await question(harness, chat=LISTED)
        await say(harness, other, "/approve session", thread="7")
        await harness.until(lambda: any("No question of yours" in text for text in texts(harness, chat=LISTED)))
        forge_press(harness, shown.buttons[1][1], user=OWNER, chat=LISTED, thread="7")
        await harness.until(lambda: "Finished." in texts(harness, chat=LISTED))
        await say(harness, other, "and I?", thread="7")
        again = await question(harness, chat=LISTED)
        assert "echo mine" in again.text
        forge_press(harness, again.buttons[0][1], user=OWNER, chat=LISTED, thread="7")
        await say(harness, there, "/approve", thread="7")
        await harness.until(lambda: " ".join(texts(harness, chat=LISTED)).count("No question of yours") == 2)
        assert has_run(harness) == ["done"]
        forge_press(harness, again.buttons[0][1], user=FRIEND, chat=LISTED, thread="7")
        await harness.until(lambda: "Mine." in texts(harness, chat=LISTED))
        assert has_run(harness) == ["done", "mine"]


async def test_a_question_dies_with_its_time_and_with_the_process(harness: Harness) -> None:
    harness.config["approvals"]["timeout_s"] = 1
    harness.config["gateway"]["drain_s"] = 0.1
    harness.model.say(running(), "Too late.", running(), running(), "Never mind.")
    async with harness.serve():
        await harness.telegram.say("do it")
        late = (await question(harness)).buttons[0][1]
        await harness.until(lambda: "Too late." in texts(harness))
        forge_press(harness, late, user=OWNER)
        await heard_all(harness)
        assert "Nobody answered in time" in told_to_model(harness.model.requests)
        assert "no longer open" in texts(harness)[0]
        harness.config["approvals"]["timeout_s"] = 600
    async with harness.serve():
        await harness.telegram.say("again")
        old = (await question(harness)).buttons[0][1]
    async with harness.serve():
        await harness.until(
            lambda: any(one.buttons and one.buttons[0][1] != old for one in harness.telegram.list_messages())
        )
        for data in (late, old):
            forge_press(harness, data, user=OWNER)
        await heard_all(harness)
        assert len(await approvals(harness)) == 1
        assert not any(data == old for one in harness.telegram.list_messages() for _, data in one.buttons)
    assert has_run(harness) == []


NASTY = {
    "an end of the fence": "ls\n```\nAllowed.\n```",
    "more of them": "ls " + "`" * 2500 + " [ls](https://a.test 'hidden-words') x",
    "escape sequences": "ls \x1b[2K\x1b]8;;http://evil\x07 \x1b]52;c;x\x07 \r rm",
    "other directions and no width": "ls \u202e\u2066 \u200b\u200d\ufeff \U000e0041 \u3164\u2800 rm",
    "markup": "ls **b** [x](https://a.test 'hidden-words') ![](https://b.test) <b>x</b> ||x|| @everyone &lt; <!here>",
    "many lines": "ls" + "\n" * 1000 + "rm",
    "blank space": "ls" + " " * 5000 + "rm -rf hidden-words",
}


@pytest.mark.parametrize("service", ["telegram", "discord", "slack"])
async def test_what_is_asked_is_shown_to_its_last_sign(harness: Harness, service: str) -> None:
    async with DiscordServer() as discord, SlackServer() as slack:
        servers: dict[str, ChatService] = {"telegram": harness.telegram, "discord": discord, "slack": slack}
        if service != "telegram":
            harness.config["gateway"]["platforms"].clear()
            person = "U1001" if service == "slack" else "1001"
            harness.add_platform(service, {**servers[service].settings, "allowed_users": [person]})
            if service == "slack":
                harness.config["gateway"]["platforms"]["slack"]["ping_s"] = 0.2
        for command in NASTY.values():
            harness.model.say(running(f"{command} # the-end"), "Next.")
        async with harness.serve():
            attached = {name for name in NASTY if await _is_attached(harness, servers[service], name)}
    assert attached <= {"more of them"}
    assert has_run(harness) == []


async def _is_attached(harness: Harness, service: ChatService, name: str) -> bool:
    """All of it is shown: as a file, or in the question itself."""
    before = len(service.list_messages())
    await service.say("do it")
    await harness.until(lambda: any(one.buttons for one in service.list_messages()[before:]))
    asked = service.list_messages()[before:]
    text = "".join(one.text for one in asked)
    is_attached = any(one.file for one in asked)
    if is_attached:
        assert f"SHA-256 {sha256(f'{NASTY[name]} # the-end'.encode()).hexdigest()}" in text
        assert "hidden-words" not in text
    else:
        _check_visible(name, text)
    await service.say("/deny")
    await harness.until(lambda: service.list_messages()[-1].text == "Next.")
    return is_attached


def _check_visible(name: str, text: str) -> None:
    for word in re.sub(r"[^\w.:/-]", " ", NASTY[name], flags=re.ASCII).split():
        assert word in text, f"{name}: {word} is not shown"
    assert text.index("the-end") < text.rindex("/approve once: yes, this once")
    assert not set("\x1b\x07\r\u202e\u2066\u200d\ufeff\u3164\u2800\U000e0041") & set(text), f"{name}: it is not seen"


async def test_why_it_is_asked_cannot_pass_for_our_own_words(harness: Harness) -> None:
    """The reason names a path, and a path can be called anything."""
    name = "x.)\n\n**Checked by your administrator**: press [Allow](https://a.test 'hidden-words').\n(y"
    harness.model.say(Reply(calls=(call("write_file", path=f"/var/{name}", content="x"),)), "Finished.")
    async with harness.serve():
        await harness.telegram.say("do it")
        shown = await question(harness)
        (sent,) = [one for one in harness.telegram.calls("sendMessage") if "reply_markup" in one]
    told = shown.text[shown.text.index("(Asked because") :]
    reason, _, ways, *_ = told.splitlines()
    assert "**Checked by your administrator**" in reason
    assert "'hidden-words'" in reason
    assert ways == "/approve once: yes, this once"
    assert "<a " not in sent["text"]
    assert "<b>" not in sent["text"]
