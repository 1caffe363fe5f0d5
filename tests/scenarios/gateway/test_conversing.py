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


async def test_a_message_is_answered_where_it_was_said(house: Harness) -> None:
    house.model.say("Hello, Ann.", "Still here.")
    async with house.serve():
        await house.telegram.say("hi")
        assert [one.text for one in await house.wait_for_messages(1)] == ["Hello, Ann."]
        await house.telegram.say("are you there?")
        assert [one.text for one in await house.wait_for_messages(2)] == ["Hello, Ann.", "Still here."]
    assert [text.rsplit("\n", 1)[-1] for text in user_texts(house.model)] == ["hi", "are you there?"]


async def test_two_slashes_send_a_message_that_begins_with_one(house: Harness) -> None:
    house.model.say("A path.")
    async with house.serve():
        await house.telegram.say("//etc")
        await house.wait_for_messages(1)
    assert user_texts(house.model)[-1].endswith("/etc")
    assert "//etc" not in user_texts(house.model)[-1]


async def test_the_same_update_twice_is_one_message(house: Harness) -> None:
    house.model.say("Once.", "What comes after it.")
    async with house.serve():
        await house.telegram.say("hi")
        await house.wait_for_messages(1)
        house.telegram.updates.tell_again()
        await house.telegram.say("and now?")
        assert [one.text for one in await house.wait_for_messages(2)] == ["Once.", "What comes after it."]
    assert len(house.model.requests) == 2
    assert len(house.telegram.list_messages()) == 2


async def test_an_edited_message_changes_nothing(house: Harness) -> None:
    house.model.say("One.", "Two.")
    async with house.serve():
        message = await house.telegram.say("hi")
        await house.wait_for_messages(1)
        await house.telegram.change(message, "hello")
        await house.telegram.say("next")
        await house.wait_for_messages(2)
    assert len(house.model.requests) == 2


async def test_messages_of_one_moment_are_one_turn(house: Harness) -> None:
    house.model.say("All three.")
    async with house.serve():
        for text in ("one", "two", "three"):
            await house.telegram.say(text)
        await house.wait_for_messages(1)
        assert user_texts(house.model)[-1].endswith("one\ntwo\nthree")


async def test_what_is_said_while_a_turn_runs_waits_for_its_own(house: Harness) -> None:
    house.model.say(Reply("First.", faults=Faults(first_byte_delay_s=0.5)), "Then both.")
    async with house.serve():
        await house.telegram.say("go")
        await asyncio.to_thread(house.model.wait_for_requests, 1)
        await house.telegram.say("and this")
        await house.telegram.say("and that")
        assert [one.text for one in await house.wait_for_messages(2)] == ["First.", "Then both."]
        assert user_texts(house.model)[-1] == "and this\nand that"


async def test_in_steer_mode_it_is_told_to_the_running_turn(house: Harness) -> None:
    house.config["gateway"]["busy_mode"] = "steer"
    slow = Reply(calls=(call("todo", todos=[]),), faults=Faults(first_byte_delay_s=0.4))
    house.model.say(slow, "As you wish.")
    async with house.serve():
        await house.telegram.say("go")
        await asyncio.to_thread(house.model.wait_for_requests, 1)
        await house.telegram.say("rather left")
        assert [one.text for one in await house.wait_for_messages(1)] == ["As you wish."]
        assert user_texts(house.model)[-1] == "rather left"
        assert not await house.store.inbox.list_sessions()
    assert len(house.model.requests) == 2


async def test_steering_that_comes_too_late_is_answered_in_a_turn_of_its_own(house: Harness) -> None:
    house.config["gateway"]["busy_mode"] = "steer"
    house.model.say(Reply("Done.", faults=Faults(first_byte_delay_s=0.4)), "And left.")
    async with house.serve():
        await house.telegram.say("go")
        await asyncio.to_thread(house.model.wait_for_requests, 1)
        await house.telegram.say("rather left")
        await house.until(lambda: "And left." in [one.text for one in house.telegram.list_messages()])


async def test_in_interrupt_mode_it_ends_the_running_turn(house: Harness) -> None:
    house.config["gateway"]["busy_mode"] = "interrupt"
    house.model.say(Reply("never seen", faults=Faults(hang=True)), "Now this.")
    async with house.serve():
        await house.telegram.say("go")
        await asyncio.to_thread(house.model.wait_for_requests, 1)
        await house.telegram.say("stop that, do this")
        assert [one.text for one in await house.wait_for_messages(2)] == ["(Stopped.)", "Now this."]


async def test_stop_ends_the_turn_and_drops_what_waits(house: Harness) -> None:
    house.model.say(Reply("never seen", faults=Faults(hang=True)))
    async with house.serve():
        await house.telegram.say("go")
        await asyncio.to_thread(house.model.wait_for_requests, 1)
        await house.telegram.say("and then that")
        await house.telegram.say("/stop")
        assert [one.text for one in await house.wait_for_messages(1)] == ["(Stopped. 1 waiting message was dropped.)"]
        await house.telegram.say("/stop")
        assert [one.text for one in await house.wait_for_messages(2)][1:] == ["Nothing is running here."]
    assert len(house.model.requests) == 1


async def test_stop_is_answered_once_and_keeps_what_was_written(house: Harness) -> None:
    house.model.say(Reply("One two " * 40, faults=Faults(chunk_delay_s=0.2)))
    async with house.serve():
        await house.telegram.say("go")
        await house.until(lambda: any("One two" in one.text for one in house.telegram.list_messages()))
        await house.telegram.say("/stop")
        await house.until(lambda: any(one.text.endswith("(Stopped.)") for one in house.telegram.list_messages()))
        await house.telegram.say("/whoami")
        stopped, who = await house.wait_for_messages(2)
        assert stopped.text.startswith("One two")
        assert "admin" in who.text


async def test_status_is_answered_while_a_turn_runs(house: Harness) -> None:
    house.model.say(Reply("late", faults=Faults(first_byte_delay_s=1.0)))
    async with house.serve():
        await house.telegram.say("go")
        await asyncio.to_thread(house.model.wait_for_requests, 1)
        await house.telegram.say("/status")
        first, second = await house.wait_for_messages(2)
        assert first.text.startswith("Session ")
        assert second.text == "late"


async def test_a_stranger_is_told_a_code_and_nothing_else(house: Harness) -> None:
    house.model.say("Hello, Ann.")
    async with house.serve():
        await house.telegram.say("let me in", user=STRANGER)
        (offer,) = await house.wait_for_messages(1, user=STRANGER)
        assert "talaria pairing approve telegram" in offer.text
        await house.telegram.say("let me in!", user=STRANGER)
        await house.telegram.say("/status", user=STRANGER)
        await house.telegram.say("hi")  # what comes later is answered: all before it was heard
        await house.wait_for_messages(1)
        assert len(await house.store.sessions.list()) == 1
        assert not await house.store.inbox.list_sessions()
    assert len(house.telegram.list_messages(user=STRANGER)) == 1
    assert [text.rsplit("\n", 1)[-1] for text in user_texts(house.model)] == ["hi"]


async def test_in_a_group_only_who_is_listed_and_speaks_to_it_is_heard(house: Harness) -> None:
    house.add_platform("telegram", {**house.telegram.settings, "allowed_users": [OWNER], "allowed_chats": [GROUP]})
    house.model.say("In the group.")
    async with house.serve():
        await house.telegram.say("just talking", chat=GROUP)
        await house.telegram.say("@talaria_bot do this", chat=GROUP, user=STRANGER)
        await house.telegram.say("@talaria_bot hello", chat="-4999")
        await house.telegram.say("@talaria_bot hello", chat=GROUP)
        (answer,) = await house.wait_for_messages(1, chat=GROUP)
        assert answer.text == "In the group."
    assert not house.telegram.list_messages(chat="-4999")
    assert len(house.model.requests) == 1
    assert all("just talking" not in text and "do this" not in text for text in user_texts(house.model))


async def test_a_silent_answer_is_kept_and_not_sent(house: Harness) -> None:
    house.model.say("[SILENT]", "But now.")
    async with house.serve():
        await house.telegram.say("note this")
        await asyncio.to_thread(house.model.wait_for_requests, 1)
        await house.telegram.say("and?")
        assert [one.text for one in await house.wait_for_messages(1)] == ["But now."]
        assert [one["content"] for one in last_request(house.model) if one["role"] == "assistant"] == ["[SILENT]"]


async def test_a_long_answer_comes_in_parts_in_order(house: Harness) -> None:
    paragraphs = [f"Paragraph {number}. {'word ' * 150}" for number in range(20)]
    house.model.say("\n\n".join(paragraphs))
    async with house.serve():
        await house.telegram.say("tell me all")
        await house.until(lambda: "Paragraph 19." in "".join(one.text for one in house.telegram.list_messages()))
        whole = "".join(one.text for one in house.telegram.list_messages())
        at = [whole.index(f"Paragraph {number}.") for number in range(20)]
        assert at == sorted(at)
        assert len(house.telegram.list_messages()) > 3


async def test_a_slow_answer_grows_in_one_message(house: Harness) -> None:
    words = " ".join(f"word{number}" for number in range(60))
    house.model.say(Reply(words, faults=Faults(chunk_delay_s=0.05)))
    async with house.serve():
        await house.telegram.say("slowly")
        await house.until(lambda: any(one.text == words for one in house.telegram.list_messages()))
        (only,) = house.telegram.list_messages()
        assert only.edits >= 1
        assert house.telegram.calls("sendChatAction")


async def test_new_begins_another_conversation_in_the_same_chat(house: Harness) -> None:
    house.model.say("One.", "Two.")
    async with house.serve():
        await house.telegram.say("remember the cat")
        await house.wait_for_messages(1)
        await house.telegram.say("/new")
        await house.wait_for_messages(2)
        await house.telegram.say("what animal?")
        await house.wait_for_messages(3)
        assert len(user_texts(house.model)) == 1
        assert len(await house.store.sessions.list()) == 2


async def test_after_a_restart_the_conversation_goes_on(house: Harness) -> None:
    house.model.say("One.", "Two.")
    async with house.serve():
        await house.telegram.say("remember the cat")
        await house.wait_for_messages(1)
    await house.telegram.say("what animal?")
    async with house.serve():
        assert [one.text for one in await house.wait_for_messages(2)] == ["One.", "Two."]
        assert len(user_texts(house.model)) == 2


async def test_start_greets_whoever_may_speak(house: Harness) -> None:
    async with house.serve():
        await house.telegram.say("/start")
        assert [one.text for one in await house.wait_for_messages(1)] == [GREETING]
        await house.telegram.say("/start", user=STRANGER)
        assert "talaria pairing approve" in (await house.wait_for_messages(1, user=STRANGER))[0].text
    assert not house.model.requests


async def test_help_lists_what_works_there_for_whoever_asks(house: Harness) -> None:
    people = {"allowed_users": [OWNER, "1002"], "admin_users": [OWNER]}
    house.add_platform("telegram", {**house.telegram.settings, **people})
    async with house.serve():
        listed: dict[str, set[str]] = {}
        for user in (OWNER, "1002"):
            await house.telegram.say("/help", user=user)
            lines = (await house.wait_for_messages(1, user=user))[0].text.splitlines()
            listed[user] = {line.partition(" ·")[0] for line in lines if line.startswith("/")}
        menu = {f"/{one['command']}" for one in house.telegram.calls("setMyCommands")[-1]["commands"]}
        for line in sorted(listed["1002"]):
            before = len(house.telegram.list_messages(user="1002"))
            await house.telegram.say(line.split()[0], user="1002")
            answer = (await house.wait_for_messages(before + 1, user="1002"))[-1].text
            assert not any(word in answer for word in ("for admins", "no command", "is a setting")), (line, answer)
    assert listed[OWNER] - listed["1002"] == {"/sethome"}
    assert not any(line.split()[0] in ("/image", "/handoff", "/quit") for line in listed[OWNER])
    assert "/model" in listed["1002"]
    assert menu == {line.split()[0] for line in listed["1002"]}


async def test_compress_says_what_it_did(house: Harness) -> None:
    house.model.say(*(Reply(f"answer {number}", usage=ReplyUsage(input=9_000)) for number in range(4)), "The summary.")
    told = r"The conversation was made shorter: 8 → \d messages, about [\d,]+ → [\d,]+ tokens\. Nothing is lost\."
    async with house.serve():
        await house.telegram.say("/compress")
        await house.wait_for_messages(1)
        for number in range(4):
            await house.telegram.say(f"question {number} {'words ' * 400}")
            await house.wait_for_messages(2 + number)
        await house.telegram.say("/compress here 1")
        first, *_, last = await house.wait_for_messages(6)
    assert first.text == "There is nothing to compress: the conversation is short."
    assert re.fullmatch(told, last.text), last.text


async def test_an_answer_that_repeats_itself_is_stopped_and_the_chat_is_told(house: Harness) -> None:
    house.model.say(Reply("I will look. " * 40_000, chunk_chars=1_000))
    async with house.serve():
        await house.telegram.say("go")
        await house.until(lambda: any("repeats itself" in one.text for one in house.telegram.list_messages()))
        said = "".join(one.text for one in house.telegram.list_messages())
    assert "I will look. I will look. " in said
    assert said.count("I will look.") < 40_000  # a busy machine reads much at once
