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
async def house(tmp_path: Path, run_folder: None) -> AsyncIterator[Harness]:
    async with house_at(tmp_path) as made:
        made.config["approvals"] = {"ask": ["terminal"]}
        yield made


async def reload(house: Harness, **changed: Any) -> None:
    """As after a change of the settings and SIGHUP; and the service is connected again."""
    assert house.gateway is not None
    house.add_platform("telegram", {**house.config["gateway"]["platforms"]["telegram"], **changed})
    await house.gateway.reload(house.settings())


async def demote(house: Harness) -> None:
    await reload(house, admin_users=[FRIEND])


async def test_who_is_no_admin_any_more_is_refused_in_a_conversation_that_goes_on(house: Harness) -> None:
    house.model.say(running(), "Finished.", running("echo again >> mark"), "Then not.")
    async with house.serve():
        await say(house, owner, "do it")
        await house.telegram.press((await question(house)).id, (await question(house)).buttons[0][1])
        await house.until(lambda: "Finished." in texts(house))
        await demote(house)
        await say(house, owner, "again")
        await house.until(lambda: "Then not." in texts(house))
        assert any("only an admin can allow" in text for text in texts(house))
        assert has_run(house) == ["done"]


async def test_who_has_become_an_admin_is_asked_in_a_conversation_that_goes_on(house: Harness) -> None:
    house.model.say(running(), "Then not.", running("echo again >> mark"), "Finished.")
    async with house.serve():
        await say(house, friend, "do it")
        await house.until(lambda: "Then not." in texts(house, user=FRIEND))
        await demote(house)
        await say(house, friend, "again")
        await house.until(lambda: any(one.buttons for one in house.telegram.list_messages(user=FRIEND)))
        asked = next(one for one in house.telegram.list_messages(user=FRIEND) if one.buttons)
        await house.telegram.press(asked.id, asked.buttons[0][1], user=FRIEND)
        await house.until(lambda: "Finished." in texts(house, user=FRIEND))
        assert has_run(house) == ["again"]


@pytest.mark.parametrize("way", ["a button", "/approve", "/approve session"])
async def test_a_yes_of_somebody_who_was_asked_as_an_admin_and_is_none_any_more_does_not_count(
    house: Harness, way: str
) -> None:
    house.model.say(running(), "Then not.")
    async with house.serve():
        await say(house, owner, "do it")
        shown = await question(house)
        await demote(house)
        if way == "a button":
            forge_press(house, shown.buttons[0][1], user=OWNER, message=shown.id)
        else:
            await say(house, owner, way)
        await house.until(lambda: "Then not." in texts(house))
        assert has_run(house) == []
        assert "no longer open" in texts(house)[0]
        assert await house.store.grants.list() == []


async def test_a_question_to_somebody_who_is_sent_away_is_closed_and_they_are_not_answered(house: Harness) -> None:
    house.model.say(running(), "Then not.")
    async with house.serve():
        await say(house, owner, "do it")
        shown = await question(house)
        await reload(house, admin_users=[FRIEND], allowed_users=[FRIEND])
        forge_press(house, shown.buttons[0][1], user=OWNER, message=shown.id)
        await say(house, owner, "/approve")
        await heard_all(house)
        await house.until(lambda: len(house.model.requests) == 2)
        assert has_run(house) == []


async def test_what_an_admin_has_allowed_for_the_session_does_not_outlive_their_being_one(house: Harness) -> None:
    house.model.say(running(), "Finished.", running("echo again >> mark"), "Then not.")
    async with house.serve():
        await say(house, owner, "do it")
        await question(house)
        await say(house, owner, "/approve session")
        await house.until(lambda: "Finished." in texts(house))
        await demote(house)
        await say(house, owner, "again")
        await house.until(lambda: "Then not." in texts(house))
        assert has_run(house) == ["done"]


async def test_in_a_thread_of_several_the_one_whose_turn_it_is_is_asked_and_nobody_else(house: Harness) -> None:
    house.config["gateway"]["platforms"]["telegram"]["admin_users"] = [OWNER, FRIEND]
    house.model.say("Hello.", running(), "Finished.")
    async with house.serve():
        await say(house, there, "let us begin", thread="7")
        await house.until(lambda: "Hello." in texts(house, chat=LISTED))
        message = await say(house, other, "do it", thread="7")
        shown = await question(house, chat=LISTED)
        assert shown.reply_to == message
        forge_press(house, shown.buttons[0][1], user=OWNER, chat=LISTED, message=shown.id, thread="7")
        await say(house, there, "/approve", thread="7")
        await house.until(lambda: any("No question of yours" in text for text in texts(house, chat=LISTED)))
        assert has_run(house) == []
        await house.telegram.press(shown.id, shown.buttons[0][1], user=FRIEND, chat=LISTED)
        await house.until(lambda: "Finished." in texts(house, chat=LISTED))
        assert has_run(house) == ["done"]
