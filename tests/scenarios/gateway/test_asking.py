"""Questions to a person in a chat: what may run, and what the model wants to know."""

import pytest
from tests.scenarios.gateway.test_conversing import GROUP, STRANGER, last_request

from talaria.testing import Reply, call
from talaria.testing.harness import OWNER, Harness

COMMAND = "echo done > mark"
ASKING = {"ask": ["terminal"]}


def running(command: str = COMMAND) -> Reply:
    return Reply(calls=(call("terminal", command=command),))


@pytest.fixture
def asking(harness: Harness) -> Harness:
    harness.config["approvals"] = dict(ASKING)
    harness.model.say(running(), "Finished.")
    return harness


def result(harness: Harness) -> str:
    return next(one["content"] for one in reversed(last_request(harness.model)) if one["role"] == "tool")


def has_run(harness: Harness) -> bool:
    return any(harness.home.parent.glob("people/*/mark"))


async def test_a_button_allows_exactly_what_was_shown(asking: Harness) -> None:
    async with asking.serve():
        await asking.telegram.say("do it")
        (question,) = await asking.wait_for_messages(1)
        assert COMMAND in question.text
        labels = [label for label, _ in question.buttons]
        assert labels == ["Allow once", "This conversation", "Deny"]
        assert not has_run(asking)
        await asking.telegram.press(question.id, question.buttons[0][1])
        await asking.until(lambda: "Finished." in [one.text for one in asking.telegram.list_messages()])
        assert has_run(asking)
        first = asking.telegram.list_messages()[0]
        assert "Allowed, this once." in first.text
        assert not first.buttons


async def test_deny_by_button_is_told_to_the_model(asking: Harness) -> None:
    async with asking.serve():
        await asking.telegram.say("do it")
        (question,) = await asking.wait_for_messages(1)
        await asking.telegram.press(question.id, question.buttons[-1][1])
        await asking.wait_for_messages(2)
        assert not has_run(asking)
        assert "said no" in result(asking)


@pytest.mark.parametrize("command", ["/approve", "/approve session", "/approve always"])
async def test_a_command_allows_it_too(asking: Harness, command: str) -> None:
    async with asking.serve():
        await asking.telegram.say("do it")
        await asking.wait_for_messages(1)
        await asking.telegram.say(command)
        await asking.until(lambda: "Finished." in [one.text for one in asking.telegram.list_messages()])
        assert has_run(asking)
        grants = await asking.store.grants.list()
        assert len(grants) == (0 if command == "/approve" else 1)
        assert all(grant.person == f"telegram:{OWNER}" for grant in grants)


async def test_deny_by_command(asking: Harness) -> None:
    async with asking.serve():
        await asking.telegram.say("do it")
        await asking.wait_for_messages(1)
        await asking.telegram.say("/deny")
        await asking.until(lambda: "Finished." in [one.text for one in asking.telegram.list_messages()])
        assert not has_run(asking)


async def test_nobody_else_can_answer_for_the_one_who_was_asked(asking: Harness) -> None:
    other = "1002"
    asking.add_platform(
        "telegram", {**asking.telegram.settings, "allowed_users": [OWNER, other], "allowed_chats": [GROUP]}
    )
    async with asking.serve():
        await asking.telegram.say("@talaria_bot do it", chat=GROUP)
        (question,) = await asking.wait_for_messages(1, chat=GROUP)
        for presser in (other, STRANGER):
            await asking.telegram.press(question.id, question.buttons[0][1], user=presser, chat=GROUP)
        await asking.telegram.say("/approve@talaria_bot", user=other, chat=GROUP)
        await asking.until(
            lambda: any("No question of yours" in one.text for one in asking.telegram.list_messages(chat=GROUP))
        )
        assert not has_run(asking)
        await asking.telegram.press(question.id, question.buttons[0][1], user=OWNER, chat=GROUP)
        await asking.until(lambda: has_run(asking))


async def test_buttons_of_before_a_restart_are_dead_and_it_is_asked_anew(asking: Harness) -> None:
    asking.config["gateway"]["drain_s"] = 0.1
    async with asking.serve():
        await asking.telegram.say("do it")
        (old,) = await asking.wait_for_messages(1)
    async with asking.serve():
        await asking.until(lambda: len(asking.telegram.list_messages()) == 2)
        assert "no longer open" in asking.telegram.list_messages()[0].text
        assert not asking.telegram.list_messages()[0].buttons
        assert not has_run(asking)
        new = asking.telegram.list_messages()[1]
        assert new.buttons[0][1] != old.buttons[0][1]
        await asking.telegram.press(new.id, new.buttons[0][1])
        await asking.until(lambda: "Finished." in [one.text for one in asking.telegram.list_messages()])
        assert has_run(asking)


async def test_a_pressed_button_counts_once(asking: Harness) -> None:
    asking.model.say(running("echo more >> mark"), "All done.")
    async with asking.serve():
        await asking.telegram.say("do it")
        (question,) = await asking.wait_for_messages(1)
        allow = question.buttons[0][1]
        await asking.telegram.press(question.id, allow)
        await asking.until(lambda: "Finished." in [one.text for one in asking.telegram.list_messages()])
        await asking.telegram.say("more")
        await asking.until(lambda: len([one for one in asking.telegram.list_messages() if one.buttons]) == 1)
        asking.telegram.updates.tell_again()
        await asking.telegram.say("/status")  # what comes later is answered: all before it was heard
        await asking.until(lambda: asking.telegram.list_messages()[-1].text.startswith("Session "))
        assert len([one for one in asking.telegram.list_messages() if one.buttons]) == 1


async def test_a_turn_that_waits_for_a_person_leaves_its_slot_to_others(asking: Harness) -> None:
    other = "1002"
    asking.config["gateway"]["max_running"] = 1
    asking.add_platform("telegram", {**asking.telegram.settings, "allowed_users": [OWNER, other]})
    async with asking.serve():
        await asking.telegram.say("do it")
        (question,) = await asking.wait_for_messages(1)
        await asking.telegram.say("and me?", user=other)
        (answer,) = await asking.wait_for_messages(1, user=other)
        assert answer.text == "Finished."
        asking.model.say("Finished, too.")
        await asking.telegram.press(question.id, question.buttons[0][1])
        await asking.until(lambda: "Finished, too." in [one.text for one in asking.telegram.list_messages()])


async def test_a_question_of_the_model_is_answered_by_a_button_or_by_words(harness: Harness) -> None:
    asked = Reply(calls=(call("clarify", question="Which colour?", choices=["red", "blue"]),))
    harness.model.say(asked, "So be it.", asked, "As you say.")
    async with harness.serve():
        await harness.telegram.say("paint it")
        (question,) = await harness.wait_for_messages(1)
        assert [label for label, _ in question.buttons] == ["red", "blue"]
        await harness.telegram.press(question.id, question.buttons[1][1])
        await harness.until(lambda: "So be it." in [one.text for one in harness.telegram.list_messages()])
        assert "blue" in result(harness)
        await harness.telegram.say("again")
        await harness.until(lambda: len([one for one in harness.telegram.list_messages() if one.buttons]) == 1)
        await harness.telegram.say("green, rather")
        await harness.until(lambda: "As you say." in [one.text for one in harness.telegram.list_messages()])
        assert "green, rather" in result(harness)
        assert not await harness.store.inbox.list_sessions()


async def test_a_long_command_is_shown_to_its_end(harness: Harness) -> None:
    harness.config["approvals"] = dict(ASKING)
    command = "echo " + " ".join(f"word{number}" for number in range(900)) + " # the-very-end"
    harness.model.say(running(command), "Finished.")
    async with harness.serve():
        await harness.telegram.say("do it")
        await harness.until(lambda: any(one.buttons for one in harness.telegram.list_messages()))
        file, question = harness.telegram.list_messages()
        assert harness.telegram.file(file.file) == command.encode()
        assert question.buttons


async def test_what_is_asked_cannot_pass_for_our_own_words(harness: Harness) -> None:
    harness.config["approvals"] = dict(ASKING)
    harness.model.say(running("echo '```' \u202e \x1b[2K # Allowed"), "Finished.")
    async with harness.serve():
        await harness.telegram.say("do it")
        (question,) = await harness.wait_for_messages(1)
        assert "\\u202e" in question.text
        assert "\\u001b" in question.text


def opening(*needs: str, command: str = "true", reason: str = "the tests *need* it") -> Reply:
    return Reply(calls=(call("terminal", command=command, needs=list(needs), reason=reason),))


async def test_a_question_about_the_sandbox_says_in_the_chat_what_each_answer_covers(harness: Harness) -> None:
    harness.model.say(opening("network pypi.org"), "Finished.", opening("network pypi.org"), "Again.")
    async with harness.serve():
        await harness.telegram.say("do it")
        (question,) = await harness.wait_for_messages(1)
        assert question.text.startswith("Open the network?")
        places = [
            question.text.index(words)
            for words in (
                "Let commands reach the Python package index (pypi.org and files.pythonhosted.org)?",
                "  true\n",
                "Asked because commands reach only hosts that you allow",
                'The model says: "the tests *need* it"',
                "/approve session: yes, for this conversation: reach the Python package index",
                "/deny WORDS",
            )
        ]
        assert places == sorted(places)
        labels = [label for label, _ in question.buttons]
        assert labels == ["Allow once", "This conversation", "This project", "Every project", "Deny"]
        await harness.telegram.press(question.id, question.buttons[2][1])
        await harness.until(lambda: "Finished." in [one.text for one in harness.telegram.list_messages()])
        told = harness.telegram.list_messages()[0].text
        assert told.endswith("Allowed, for this project: reach the Python package index.")
        assert "/approve" not in told
        await harness.telegram.say("again")  # which is allowed now
        await harness.until(lambda: "Again." in [one.text for one in harness.telegram.list_messages()])
        (grant,) = await harness.store.grants.list()
        assert (grant.person, grant.session) == (f"telegram:{OWNER}", None)


async def test_sandbox_is_shown_and_revoked_by_whom_it_belongs_to(harness: Harness) -> None:
    other, asked = "1002", opening("network pypi.org")
    people = {"allowed_users": [OWNER, other], "admin_users": [OWNER]}
    harness.add_platform("telegram", {**harness.telegram.settings, **people})
    harness.model.say(asked, "Finished.", asked, "Asked again.")
    async with harness.serve():
        await harness.telegram.say("do it")
        await harness.wait_for_messages(1)
        await harness.telegram.say("/approve session")
        await harness.until(lambda: "Finished." in [one.text for one in harness.telegram.list_messages()])
        (grant,) = await harness.store.grants.list()
        await harness.telegram.say("/sandbox")
        shown = (await harness.wait_for_messages(3))[-1].text
        assert f"{grant.id[:8]}: reach the Python package index" in shown
        await harness.telegram.say("/sandbox", user=other)
        theirs = (await harness.wait_for_messages(1, user=other))[-1].text
        assert "Nothing else was allowed." in theirs
        await harness.telegram.say(f"/sandbox revoke {grant.id[:8]}", user=other)
        assert "No permission of yours" in (await harness.wait_for_messages(2, user=other))[-1].text
        await harness.telegram.say(f"/sandbox revoke {grant.id[:8]}")
        assert "You will be asked again." in (await harness.wait_for_messages(4))[-1].text
        assert not await harness.store.grants.list()
        await harness.telegram.say("do it again")
        assert (await harness.wait_for_messages(5))[-1].buttons
        await harness.telegram.say("/deny use the cache")
        await harness.until(lambda: "Asked again." in [one.text for one in harness.telegram.list_messages()])
        assert any(one.text.endswith("Denied. Instead: use the cache") for one in harness.telegram.list_messages())
        assert "Do this instead: use the cache" in result(harness)
