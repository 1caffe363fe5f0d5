"""Who may approve is decided when it matters, by the settings of that moment: not by those of the message that opened
the conversation, nor of the moment in which somebody was asked."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.security.chats import FRIEND, LISTED, OWNER, Speaker, forge_press, heard_all, house_at, say, texts
from tests.security.test_gateway_approvals import has_run, question, running

from talaria.testing.harness import Harness

owner, friend = Speaker("the owner", OWNER), Speaker("a friend", FRIEND)
there = Speaker("the owner in the group", OWNER, LISTED)
other = Speaker("a friend in the group", FRIEND, LISTED)


@pytest.fixture
async def harness(tmp_path: Path, run_folder: None) -> AsyncIterator[Harness]:
    async with house_at(tmp_path) as made:
        made.config["approvals"] = {"ask": ["terminal"]}
        yield made


async def reload(harness: Harness, **changed: Any) -> None:
    """As after a change of the settings and SIGHUP; and the service is connected again."""
    assert harness.gateway is not None
    harness.add_platform("telegram", {**harness.config["gateway"]["platforms"]["telegram"], **changed})
    await harness.gateway.reload(harness.settings())


async def demote(harness: Harness) -> None:
    await reload(harness, admin_users=[FRIEND])


async def test_who_is_no_admin_any_more_is_refused_in_a_conversation_that_goes_on(harness: Harness) -> None:
    harness.model.say(running(), "Finished.", running("echo again >> mark"), "Then not.")
    async with harness.serve():
        await say(harness, owner, "do it")
        await harness.telegram.press((await question(harness)).id, (await question(harness)).buttons[0][1])
        await harness.until(lambda: "Finished." in texts(harness))
        await demote(harness)
        await say(harness, owner, "again")
        await harness.until(lambda: "Then not." in texts(harness))
        assert any("only an admin can allow" in text for text in texts(harness))
        assert has_run(harness) == ["done"]


async def test_who_has_become_an_admin_is_asked_in_a_conversation_that_goes_on(harness: Harness) -> None:
    harness.model.say(running(), "Then not.", running("echo again >> mark"), "Finished.")
    async with harness.serve():
        await say(harness, friend, "do it")
        await harness.until(lambda: "Then not." in texts(harness, user=FRIEND))
        await demote(harness)
        await say(harness, friend, "again")
        await harness.until(lambda: any(one.buttons for one in harness.telegram.list_messages(user=FRIEND)))
        asked = next(one for one in harness.telegram.list_messages(user=FRIEND) if one.buttons)
        await harness.telegram.press(asked.id, asked.buttons[0][1], user=FRIEND)
        await harness.until(lambda: "Finished." in texts(harness, user=FRIEND))
        assert has_run(harness) == ["again"]


@pytest.mark.parametrize("way", ["a button", "/approve", "/approve session"])
async def test_a_yes_of_somebody_who_was_asked_as_an_admin_and_is_none_any_more_does_not_count(
    harness: Harness, way: str
) -> None:
    harness.model.say(running(), "Then not.")
    async with harness.serve():
        await say(harness, owner, "do it")
        shown = await question(harness)
        await demote(harness)
        if way == "a button":
            forge_press(harness, shown.buttons[0][1], user=OWNER, message=shown.id)
        else:
            await say(harness, owner, way)
        await harness.until(lambda: "Then not." in texts(harness))
        assert has_run(harness) == []
        assert "no longer open" in texts(harness)[0]
        assert await harness.store.grants.list() == []


async def test_a_question_to_somebody_who_is_sent_away_is_closed_and_they_are_not_answered(harness: Harness) -> None:
    harness.model.say(running(), "Then not.")
    async with harness.serve():
        await say(harness, owner, "do it")
        shown = await question(harness)
        await reload(harness, admin_users=[FRIEND], allowed_users=[FRIEND])
        forge_press(harness, shown.buttons[0][1], user=OWNER, message=shown.id)
        await say(harness, owner, "/approve")
        await heard_all(harness)
        await harness.until(lambda: len(harness.model.requests) == 2)
        assert has_run(harness) == []


async def test_what_an_admin_has_allowed_for_the_session_does_not_outlive_their_being_one(harness: Harness) -> None:
    harness.model.say(running(), "Finished.", running("echo again >> mark"), "Then not.")
    async with harness.serve():
        await say(harness, owner, "do it")
        await question(harness)
        await say(harness, owner, "/approve session")
        await harness.until(lambda: "Finished." in texts(harness))
        await demote(harness)
        await say(harness, owner, "again")
        await harness.until(lambda: "Then not." in texts(harness))
        assert has_run(harness) == ["done"]


async def test_in_a_thread_of_several_the_one_whose_turn_it_is_is_asked_and_nobody_else(harness: Harness) -> None:
    harness.config["gateway"]["platforms"]["telegram"]["admin_users"] = [OWNER, FRIEND]
    harness.model.say("Hello.", running(), "Finished.")
    async with harness.serve():
        await say(harness, there, "let us begin", thread="7")
        await harness.until(lambda: "Hello." in texts(harness, chat=LISTED))
        message = await say(harness, other, "do it", thread="7")
        shown = await question(harness, chat=LISTED)
        assert shown.reply_to == message
        forge_press(harness, shown.buttons[0][1], user=OWNER, chat=LISTED, message=shown.id, thread="7")
        await say(harness, there, "/approve", thread="7")
        await harness.until(lambda: any("No question of yours" in text for text in texts(harness, chat=LISTED)))
        assert has_run(harness) == []
        await harness.telegram.press(shown.id, shown.buttons[0][1], user=FRIEND, chat=LISTED)
        await harness.until(lambda: "Finished." in texts(harness, chat=LISTED))
        assert has_run(harness) == ["done"]
