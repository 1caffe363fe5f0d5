"""People talk to the agent in a chat."""

import asyncio
import json
import re
from typing import Any

from talaria.gateway.chat_commands import GREETING
from talaria.testing import ModelServer, Reply, call
from talaria.testing.harness import OWNER, Harness
from talaria.testing.servers.scripted_replies import Faults, ReplyUsage

GROUP = "-4002"
STRANGER = "666"


def last_request(model: ModelServer) -> list[dict[str, Any]]:
    return json.loads(model.requests[-1].body)["messages"]


def user_texts(model: ModelServer) -> list[str]:
    return [_text(one["content"]) for one in last_request(model) if one["role"] == "user"]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


async def test_a_message_is_answered_where_it_was_said(harness: Harness) -> None:
    harness.model.say("Hello, Ann.", "Still here.")
    async with harness.serve():
        await harness.telegram.say("hi")
        assert [one.text for one in await harness.wait_for_messages(1)] == ["Hello, Ann."]
        await harness.telegram.say("are you there?")
        assert [one.text for one in await harness.wait_for_messages(2)] == ["Hello, Ann.", "Still here."]
    assert [text.rsplit("\n", 1)[-1] for text in user_texts(harness.model)] == ["hi", "are you there?"]


async def test_two_slashes_send_a_message_that_begins_with_one(harness: Harness) -> None:
    harness.model.say("A path.")
    async with harness.serve():
        await harness.telegram.say("//etc")
        await harness.wait_for_messages(1)
    assert user_texts(harness.model)[-1].endswith("/etc")
    assert "//etc" not in user_texts(harness.model)[-1]


async def test_the_same_update_twice_is_one_message(harness: Harness) -> None:
    harness.model.say("Once.", "What comes after it.")
    async with harness.serve():
        await harness.telegram.say("hi")
        await harness.wait_for_messages(1)
        harness.telegram.updates.tell_again()
        await harness.telegram.say("and now?")
        assert [one.text for one in await harness.wait_for_messages(2)] == ["Once.", "What comes after it."]
    assert len(harness.model.requests) == 2
    assert len(harness.telegram.list_messages()) == 2


async def test_an_edited_message_changes_nothing(harness: Harness) -> None:
    harness.model.say("One.", "Two.")
    async with harness.serve():
        message = await harness.telegram.say("hi")
        await harness.wait_for_messages(1)
        await harness.telegram.change(message, "hello")
        await harness.telegram.say("next")
        await harness.wait_for_messages(2)
    assert len(harness.model.requests) == 2


async def test_messages_of_one_moment_are_one_turn(harness: Harness) -> None:
    harness.model.say("All three.")
    async with harness.serve():
        for text in ("one", "two", "three"):
            await harness.telegram.say(text)
        await harness.wait_for_messages(1)
        assert user_texts(harness.model)[-1].endswith("one\ntwo\nthree")


async def test_what_is_said_while_a_turn_runs_waits_for_its_own(harness: Harness) -> None:
    harness.model.say(Reply("First.", faults=Faults(first_byte_delay_s=0.5)), "Then both.")
    async with harness.serve():
        await harness.telegram.say("go")
        await asyncio.to_thread(harness.model.wait_for_requests, 1)
        await harness.telegram.say("and this")
        await harness.telegram.say("and that")
        assert [one.text for one in await harness.wait_for_messages(2)] == ["First.", "Then both."]
        assert user_texts(harness.model)[-1] == "and this\nand that"


async def test_in_steer_mode_it_is_told_to_the_running_turn(harness: Harness) -> None:
    harness.config["gateway"]["busy_mode"] = "steer"
    slow = Reply(calls=(call("todo", todos=[]),), faults=Faults(first_byte_delay_s=0.4))
    harness.model.say(slow, "As you wish.")
    async with harness.serve():
        await harness.telegram.say("go")
        await asyncio.to_thread(harness.model.wait_for_requests, 1)
        await harness.telegram.say("rather left")
        assert [one.text for one in await harness.wait_for_messages(1)] == ["As you wish."]
        assert user_texts(harness.model)[-1] == "rather left"
        assert not await harness.store.inbox.list_sessions()
    assert len(harness.model.requests) == 2


async def test_steering_that_comes_too_late_is_answered_in_a_turn_of_its_own(harness: Harness) -> None:
    harness.config["gateway"]["busy_mode"] = "steer"
    harness.model.say(Reply("Done.", faults=Faults(first_byte_delay_s=0.4)), "And left.")
    async with harness.serve():
        await harness.telegram.say("go")
        await asyncio.to_thread(harness.model.wait_for_requests, 1)
        await harness.telegram.say("rather left")
        await harness.until(lambda: "And left." in [one.text for one in harness.telegram.list_messages()])


async def test_in_interrupt_mode_it_ends_the_running_turn(harness: Harness) -> None:
    harness.config["gateway"]["busy_mode"] = "interrupt"
    harness.model.say(Reply("never seen", faults=Faults(hang=True)), "Now this.")
    async with harness.serve():
        await harness.telegram.say("go")
        await asyncio.to_thread(harness.model.wait_for_requests, 1)
        await harness.telegram.say("stop that, do this")
        assert [one.text for one in await harness.wait_for_messages(2)] == ["(Stopped.)", "Now this."]


async def test_stop_ends_the_turn_and_drops_what_waits(harness: Harness) -> None:
    harness.model.say(Reply("never seen", faults=Faults(hang=True)))
    async with harness.serve():
        await harness.telegram.say("go")
        await asyncio.to_thread(harness.model.wait_for_requests, 1)
        await harness.telegram.say("and then that")
        await harness.telegram.say("/stop")
        assert [one.text for one in await harness.wait_for_messages(1)] == ["(Stopped. 1 waiting message was dropped.)"]
        await harness.telegram.say("/stop")
        assert [one.text for one in await harness.wait_for_messages(2)][1:] == ["Nothing is running here."]
    assert len(harness.model.requests) == 1


async def test_stop_is_answered_once_and_keeps_what_was_written(harness: Harness) -> None:
    harness.model.say(Reply("One two " * 40, faults=Faults(chunk_delay_s=0.2)))
    async with harness.serve():
        await harness.telegram.say("go")
        await harness.until(lambda: any("One two" in one.text for one in harness.telegram.list_messages()))
        await harness.telegram.say("/stop")
        await harness.until(lambda: any(one.text.endswith("(Stopped.)") for one in harness.telegram.list_messages()))
        await harness.telegram.say("/whoami")
        stopped, who = await harness.wait_for_messages(2)
        assert stopped.text.startswith("One two")
        assert "admin" in who.text


async def test_status_is_answered_while_a_turn_runs(harness: Harness) -> None:
    harness.model.say(Reply("late", faults=Faults(first_byte_delay_s=1.0)))
    async with harness.serve():
        await harness.telegram.say("go")
        await asyncio.to_thread(harness.model.wait_for_requests, 1)
        await harness.telegram.say("/status")
        first, second = await harness.wait_for_messages(2)
        assert first.text.startswith("Session ")
        assert second.text == "late"


async def test_a_stranger_is_told_a_code_and_nothing_else(harness: Harness) -> None:
    harness.model.say("Hello, Ann.")
    async with harness.serve():
        await harness.telegram.say("let me in", user=STRANGER)
        (offer,) = await harness.wait_for_messages(1, user=STRANGER)
        assert "talaria pairing approve telegram" in offer.text
        await harness.telegram.say("let me in!", user=STRANGER)
        await harness.telegram.say("/status", user=STRANGER)
        await harness.telegram.say("hi")  # what comes later is answered: all before it was heard
        await harness.wait_for_messages(1)
        assert len(await harness.store.sessions.list()) == 1
        assert not await harness.store.inbox.list_sessions()
    assert len(harness.telegram.list_messages(user=STRANGER)) == 1
    assert [text.rsplit("\n", 1)[-1] for text in user_texts(harness.model)] == ["hi"]


async def test_in_a_group_only_who_is_listed_and_speaks_to_it_is_heard(harness: Harness) -> None:
    harness.add_platform("telegram", {**harness.telegram.settings, "allowed_users": [OWNER], "allowed_chats": [GROUP]})
    harness.model.say("In the group.")
    async with harness.serve():
        await harness.telegram.say("just talking", chat=GROUP)
        await harness.telegram.say("@talaria_bot do this", chat=GROUP, user=STRANGER)
        await harness.telegram.say("@talaria_bot hello", chat="-4999")
        await harness.telegram.say("@talaria_bot hello", chat=GROUP)
        (answer,) = await harness.wait_for_messages(1, chat=GROUP)
        assert answer.text == "In the group."
    assert not harness.telegram.list_messages(chat="-4999")
    assert len(harness.model.requests) == 1
    assert all("just talking" not in text and "do this" not in text for text in user_texts(harness.model))


async def test_a_silent_answer_is_kept_and_not_sent(harness: Harness) -> None:
    harness.model.say("[SILENT]", "But now.")
    async with harness.serve():
        await harness.telegram.say("note this")
        await asyncio.to_thread(harness.model.wait_for_requests, 1)
        await harness.telegram.say("and?")
        assert [one.text for one in await harness.wait_for_messages(1)] == ["But now."]
        assert [one["content"] for one in last_request(harness.model) if one["role"] == "assistant"] == ["[SILENT]"]


async def test_a_long_answer_comes_in_parts_in_order(harness: Harness) -> None:
    paragraphs = [f"Paragraph {number}. {'word ' * 150}" for number in range(20)]
    harness.model.say("\n\n".join(paragraphs))
    async with harness.serve():
        await harness.telegram.say("tell me all")
        await harness.until(lambda: "Paragraph 19." in "".join(one.text for one in harness.telegram.list_messages()))
        whole = "".join(one.text for one in harness.telegram.list_messages())
        at = [whole.index(f"Paragraph {number}.") for number in range(20)]
        assert at == sorted(at)
        assert len(harness.telegram.list_messages()) > 3


async def test_a_slow_answer_grows_in_one_message(harness: Harness) -> None:
    words = " ".join(f"word{number}" for number in range(60))
    harness.model.say(Reply(words, faults=Faults(chunk_delay_s=0.05)))
    async with harness.serve():
        await harness.telegram.say("slowly")
        await harness.until(lambda: any(one.text == words for one in harness.telegram.list_messages()))
        (only,) = harness.telegram.list_messages()
        assert only.edits >= 1
        assert harness.telegram.calls("sendChatAction")


async def test_new_begins_another_conversation_in_the_same_chat(harness: Harness) -> None:
    harness.model.say("One.", "Two.")
    async with harness.serve():
        await harness.telegram.say("remember the cat")
        await harness.wait_for_messages(1)
        await harness.telegram.say("/new")
        await harness.wait_for_messages(2)
        await harness.telegram.say("what animal?")
        await harness.wait_for_messages(3)
        assert len(user_texts(harness.model)) == 1
        assert len(await harness.store.sessions.list()) == 2


async def test_after_a_restart_the_conversation_goes_on(harness: Harness) -> None:
    harness.model.say("One.", "Two.")
    async with harness.serve():
        await harness.telegram.say("remember the cat")
        await harness.wait_for_messages(1)
    await harness.telegram.say("what animal?")
    async with harness.serve():
        assert [one.text for one in await harness.wait_for_messages(2)] == ["One.", "Two."]
        assert len(user_texts(harness.model)) == 2


async def test_start_greets_whoever_may_speak(harness: Harness) -> None:
    async with harness.serve():
        await harness.telegram.say("/start")
        assert [one.text for one in await harness.wait_for_messages(1)] == [GREETING]
        await harness.telegram.say("/start", user=STRANGER)
        assert "talaria pairing approve" in (await harness.wait_for_messages(1, user=STRANGER))[0].text
    assert not harness.model.requests


async def test_help_lists_what_works_there_for_whoever_asks(harness: Harness) -> None:
    people = {"allowed_users": [OWNER, "1002"], "admin_users": [OWNER]}
    harness.add_platform("telegram", {**harness.telegram.settings, **people})
    async with harness.serve():
        listed: dict[str, set[str]] = {}
        for user in (OWNER, "1002"):
            await harness.telegram.say("/help", user=user)
            lines = (await harness.wait_for_messages(1, user=user))[0].text.splitlines()
            listed[user] = {line.partition(" ·")[0] for line in lines if line.startswith("/")}
        menu = {f"/{one['command']}" for one in harness.telegram.calls("setMyCommands")[-1]["commands"]}
        for line in sorted(listed["1002"]):
            before = len(harness.telegram.list_messages(user="1002"))
            await harness.telegram.say(line.split()[0], user="1002")
            answer = (await harness.wait_for_messages(before + 1, user="1002"))[-1].text
            assert not any(word in answer for word in ("for admins", "no command", "is a setting")), (line, answer)
    assert listed[OWNER] - listed["1002"] == {"/sethome"}
    assert not any(line.split()[0] in ("/image", "/handoff", "/quit") for line in listed[OWNER])
    assert "/model" in listed["1002"]
    assert menu == {line.split()[0] for line in listed["1002"]}


async def test_compress_says_what_it_did(harness: Harness) -> None:
    harness.model.say(
        *(Reply(f"answer {number}", usage=ReplyUsage(input=9_000)) for number in range(4)), "The summary."
    )
    told = r"The conversation was made shorter: 8 → \d messages, about [\d,]+ → [\d,]+ tokens\. Nothing is lost\."
    async with harness.serve():
        await harness.telegram.say("/compress")
        await harness.wait_for_messages(1)
        for number in range(4):
            await harness.telegram.say(f"question {number} {'words ' * 400}")
            await harness.wait_for_messages(2 + number)
        await harness.telegram.say("/compress here 1")
        first, *_, last = await harness.wait_for_messages(6)
    assert first.text == "There is nothing to compress: the conversation is short."
    assert re.fullmatch(told, last.text), last.text


async def test_an_answer_that_repeats_itself_is_stopped_and_the_chat_is_told(harness: Harness) -> None:
    harness.model.say(Reply("I will look. " * 40_000, chunk_chars=1_000))
    async with harness.serve():
        await harness.telegram.say("go")
        await harness.until(lambda: any("repeats itself" in one.text for one in harness.telegram.list_messages()))
        said = "".join(one.text for one in harness.telegram.list_messages())
    assert "I will look. I will look. " in said
    assert said.count("I will look.") < 40_000  # a busy machine reads much at once
