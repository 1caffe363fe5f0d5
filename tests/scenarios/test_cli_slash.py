"""Slash commands at the terminal: what they do to the conversation in use."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.scenarios.conftest import ROOT_WARNING
from tests.scenarios.typescript import Terminal

from talaria.app.build import open_store
from talaria.core.ids import SessionId
from talaria.store.base import NewSession
from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.model_server import ModelServer, RecordedRequest
from talaria.testing.servers.scripted_replies import Failure, Faults, Reply, ReplyUsage, call

Talaria = Callable[..., subprocess.CompletedProcess[str]]


def texts(request: RecordedRequest) -> list[str]:
    """What the model was shown, without the system prompt and the date."""
    messages = request.json["messages"][1:]
    return [re.sub(r"^\[Today is .*\]\n\n", "", message["content"] or "") for message in messages]


def listed(talaria: Talaria) -> list[dict[str, str]]:
    return json.loads(talaria("sessions", "list", "--json").stdout)


def kept(talaria: Talaria, question: str, title: str) -> str:
    """The id of a conversation with this question."""
    id: str = json.loads(talaria("-q", question, "--output-format", "json").stdout)["session"]
    talaria("sessions", "rename", id, title)
    return id


@pytest.mark.parametrize("by", ["title", "id"])
def test_resume_goes_on_with_another_conversation_and_recalls_it(
    talaria: Talaria, server: ModelServer, by: str
) -> None:
    server.say("one", "two", "three")
    id = kept(talaria, "first", "my talk")
    ended = talaria(input=f"elsewhere\n/resume {'my talk' if by == 'title' else id}\nthird\n/status\n")
    assert (ended.returncode, ended.stdout) == (0, "two\nthree\n")
    assert texts(server.requests[2]) == ["first", "one", "third"]
    assert "my talk · 2 messages · in ~/work\n› first\n  one\n" in ended.stderr
    assert ended.stderr.endswith(f"Session {id} · model custom:test-model · sandbox strict\n")


def test_resume_does_not_recall_what_was_taken_back(talaria: Talaria, server: ModelServer) -> None:
    server.say("one", "two")
    id = kept(talaria, "first", "my talk")
    talaria("-r", id, input="second\n/undo\n")
    ended = talaria(input=f"/resume {id}\n")
    assert ended.stderr.endswith("› first\n  one\n")


async def test_resume_without_a_name_lists_the_latest_ten(talaria: Talaria, home: Path) -> None:
    home.mkdir(mode=0o700)
    async with open_store(home) as store:
        for number in range(12):
            await store.sessions.create(NewSession(SessionId(f"talk-{number:02}"), "library", title=f"about {number}"))
    ended = await asyncio.to_thread(talaria, "-m", "demo", input="/resume\n/sessions\n")
    resume, _, sessions = ended.stderr.partition("/resume ID or /resume TITLE continues one of them.\n")
    assert [line.split()[0] for line in resume.splitlines()] == [f"talk-{number:02}" for number in range(11, 1, -1)]
    assert resume.splitlines()[0].endswith("     0  about 11")
    assert [line.split()[0] for line in sessions.splitlines()] == [f"talk-{number:02}" for number in range(11, -1, -1)]


def test_reasoning_is_chosen_for_this_conversation_and_kept_with_it(talaria: Talaria, server: ModelServer) -> None:
    server.say("one", "two", "three", "four")
    ended = talaria(input="first\n/reasoning\n/reasoning high\nsecond\n")
    assert ended.stderr.splitlines() == [
        "The model decides by itself how hard it thinks in this conversation, as the settings say.",
        "From the next message on, reasoning effort is high in this conversation.",
    ]
    ended = talaria("-c", input="/think\nthird\n/new\nfourth\n")
    assert "Reasoning effort is high in this conversation.\n" in ended.stderr
    assert [request.json.get("reasoning_effort") for request in server.requests] == [None, "high", "high", None]


def test_list_marks_the_conversation_in_use(talaria: Talaria, server: ModelServer) -> None:
    server.say("one", "two")
    kept(talaria, "first", "my talk")
    ended = talaria(input="/sessions\nsecond\n/sessions\n")
    lines = ended.stderr.splitlines()
    assert [line.split("  ")[-1] for line in lines] == ["my talk", "second (this one)", "my talk"]


def test_list_of_nothing_is_told(talaria: Talaria) -> None:
    assert "There are no conversations yet.\n" in talaria("-m", "demo", input="/sessions\n").stderr


def test_resume_that_finds_nothing_stays_where_it_was(talaria: Talaria, server: ModelServer) -> None:
    server.say("one", "two")
    ended = talaria(input="first\n/resume nowhere\nsecond\n")
    assert "talaria: There is no session called 'nowhere'" in ended.stderr
    assert texts(server.requests[1]) == ["first", "one", "second"]
    id = listed(talaria)[0]["id"]
    assert "talaria: You are already in that conversation.\n" in talaria("-r", id, input=f"/resume {id}\n").stderr


def test_resume_finishes_a_turn_that_was_killed(
    environment: dict[str, str], talaria: Talaria, server: ModelServer
) -> None:
    server.say(Reply(faults=Faults(hang=True)), "finished", "more")
    command = [sys.executable, "-m", "talaria.cli.main", "-q", "wait"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL) as process:
        server.wait_for_requests(1)
        process.kill()
    id = listed(talaria)[0]["id"]
    ended = talaria(input=f"/resume {id}\nand now?\n")
    assert (ended.returncode, ended.stdout) == (0, "finished\nmore\n")
    assert "The last turn was interrupted; finishing it.\n" in ended.stderr
    assert texts(server.requests[2]) == ["wait", "finished", "and now?"]


def test_branch_goes_on_from_here_and_the_old_conversation_stays_as_it_was(
    talaria: Talaria, server: ModelServer
) -> None:
    server.say("one", "two", "three")
    ended = talaria(input="first\n/branch other way\nsecond\n")
    branch, old = listed(talaria)
    assert (branch["title"], branch["parent"], branch["message_count"]) == ("other way", old["id"], 4)
    assert (old["title"], old["message_count"]) == (None, 2)
    copied = f"This is now a copy, {branch['id']}. The original is unchanged: /resume {old['id']}\n"
    assert ended.stderr == copied
    assert texts(server.requests[1]) == ["first", "one", "second"]

    talaria("-r", branch["id"], input=f"/resume {old['id']}\nthird\n")
    assert texts(server.requests[2]) == ["first", "one", "third"]


def test_branch_needs_a_message_and_a_title_of_its_own(talaria: Talaria, server: ModelServer) -> None:
    server.say("one", "two", "three")
    kept(talaria, "elsewhere", "my talk")
    ended = talaria(input="/branch\nfirst\n/branch my talk\nsecond\n")
    assert "talaria: Say something first: a conversation without a message is not saved.\n" in ended.stderr
    assert "talaria: " in ended.stderr.splitlines()[-1]
    assert len(listed(talaria)) == 2
    assert texts(server.requests[2]) == ["first", "two", "second"]


@pytest.mark.parametrize("word", ["/new", "/reset", "/CLEAR", "/ne"])
def test_new_conversation_knows_nothing_of_the_old_one(talaria: Talaria, server: ModelServer, word: str) -> None:
    server.say("one", "two")
    ended = talaria(input=f"first\n{word}\nsecond\n")
    assert ended.stderr == "A new conversation.\n"
    assert texts(server.requests[1]) == ["second"]
    assert len(listed(talaria)) == 2


@pytest.mark.parametrize("word", ["/quit", "/exit", "/Q"])
def test_nothing_is_read_after_leaving(talaria: Talaria, server: ModelServer, word: str) -> None:
    ended = talaria(input=f"{word}\nnever\n")
    assert (ended.returncode, ended.stderr, len(server.requests)) == (0, "", 0)


def test_paths_and_doubled_slashes_are_messages(talaria: Talaria, server: ModelServer) -> None:
    server.say("one", "two")
    talaria(input="/etc/hosts is broken\n//help is a command\n")
    assert texts(server.requests[1]) == ["/etc/hosts is broken", "one", "/help is a command"]


def test_unclear_word_is_told_and_never_sent(talaria: Talaria, server: ModelServer) -> None:
    ended = talaria(input="/statsu\n/re\n")
    assert (ended.returncode, len(server.requests)) == (0, 0)
    assert ended.stderr == (
        "There is no command /statsu; did you mean /status? /help lists them.\n"
        "/re fits more than one command: /reset, /retry, /rewind, /resume, /reasoning.\n"
    )


def test_model_and_help_are_told(talaria: Talaria, server: ModelServer) -> None:
    ended = talaria(input="/model\n/commands\n")
    assert ended.stderr.startswith("The model in use is custom:test-model.\nConversation:\n/new ")
    assert "//text sends /text as one." in ended.stderr


def compressed(talaria: Talaria, server: ModelServer, argument: str) -> tuple[str, str]:
    """What the model was asked to sum up, and what it was shown after that."""
    before = len(server.requests)
    server.say(*(f"answer {number}" for number in range(8)), "The summary.", "last")
    turns = "".join(f"question {number} {'words ' * 400}\n" for number in range(8))
    talaria(input=f"{turns}/compact {argument}\nand now?\n")
    asked, shown = server.requests[before + 8 :]
    return " ".join(texts(asked)), " ".join(texts(shown))


def test_compress_says_what_it_did(talaria: Talaria, server: ModelServer) -> None:
    server.say(*(Reply(f"answer {number}", usage=ReplyUsage(input=9_000)) for number in range(8)), "The summary.")
    turns = "".join(f"question {number} {'words ' * 400}\n" for number in range(8))
    ended = talaria(input=f"{turns}/compress\n")
    told = r"The conversation was made shorter: 16 → \d+ messages, about [\d,]+ → [\d,]+ tokens\. Nothing is lost\.\n"
    assert len(re.findall(told, ended.stderr)) == 1


def test_compress_understands_what_it_is_about(talaria: Talaria, server: ModelServer) -> None:
    asked, shown = compressed(talaria, server, "about the colour")
    assert "the colour" in asked
    assert "question 3 words" not in shown
    assert compressed(talaria, server, "the colour")[0] == asked


def test_compress_keeps_as_many_exchanges_as_it_is_told(talaria: Talaria, server: ModelServer) -> None:
    asked, shown = compressed(talaria, server, "here 1")
    assert "here 1" not in asked
    assert ("answer 6" in shown, "answer 7" in shown) == (False, True)
    _, shown = compressed(talaria, server, "here  4")
    assert ("answer 3" in shown, "answer 4" in shown, "answer 7" in shown) == (False, True, True)


def test_retry_asks_again_and_its_failure_is_told_by_the_exit_code(talaria: Talaria, server: ModelServer) -> None:
    server.say("one", Failure(401))
    ended = talaria(input="first\n/retry\n")
    assert (ended.returncode, ended.stdout) == (3, "one\n")
    assert texts(server.requests[1]) == ["first"]


def test_ctrl_c_stops_a_command_and_not_the_chat(environment: dict[str, str], server: ModelServer) -> None:
    server.say("one", Reply(faults=Faults(hang=True)), "two")
    command = [sys.executable, "-m", "talaria.cli.main"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write("first\n/title\n")
        process.stdin.flush()
        server.wait_for_requests(2)
        process.send_signal(signal.SIGINT)
        said = process.stderr.readline()
        assert (process.stderr.readline() if said == ROOT_WARNING else said) == "Interrupted.\n"
        process.stdin.write("second\n")
        process.stdin.close()
        assert (process.wait(timeout=PATIENCE_S), process.stdout.read()) == (130, "one\ntwo\n")
    assert texts(server.requests[2]) == ["first", "one", "second"]


@pytest.mark.parametrize("switch", ["/branch", "/resume my talk", "/new"])
def test_what_was_allowed_for_all_is_asked_again_in_another_conversation(
    environment: dict[str, str], talaria: Talaria, server: ModelServer, switch: str
) -> None:
    with Path(environment["TALARIA_HOME"], "config.yaml").open("a") as config:
        config.write("terminal: {backend: local}\n")
    server.say("one")
    kept(talaria, "first", "my talk")
    for number in range(2):
        server.say(Reply(calls=(call("terminal", id=f"c{number}", command="true"),)), f"Told {number}.")
    with Terminal(environment) as terminal:
        for awaited, typed in [
            ("› ", "go"),
            ("Run this command?", "a"),
            ("Told 0.", switch),
            ("› ", "go"),
            ("Run this command?", "n"),
            ("Told 1.", "/quit"),
        ]:
            terminal.answer(awaited, f"{typed}\n")
        assert terminal.end() == 0


def test_an_image_goes_with_the_next_message_only(
    talaria: Talaria, server: ModelServer, environment: dict[str, str]
) -> None:
    pixel = bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360606060000000"
        "0500018dd0a2d60000000049454e44ae426082"
    )
    Path(environment["PWD"], "dot.png").write_bytes(pixel)
    server.say("I see it", "and now not")
    ended = talaria(input="/image dot.png\nwhat is it?\nand now?\n/image nowhere.png\n/image\n")
    assert "dot.png will be sent with your next message." in ended.stderr
    assert "Cannot read the image nowhere.png" in ended.stderr
    assert "/image needs the path" in ended.stderr
    first, second = (request.json["messages"][-1]["content"] for request in server.requests)
    assert [part["type"] for part in first if part["type"] == "image_url"] == ["image_url"]
    assert isinstance(second, str)


def test_tools_are_listed_by_toolset(talaria: Talaria) -> None:
    listed = talaria(input="/tools\n").stderr
    assert "terminal: terminal, process\n" in listed
    assert "planning: todo, clarify\n" in listed


def test_a_model_of_an_unknown_provider_is_told_with_those_that_are_known(talaria: Talaria) -> None:
    ended = talaria("-m", "demo", input="/model foo:bar\n/model opnai:gpt-5\n/model\n")
    assert "There is no provider 'foo' (in 'foo:bar'); known providers: openrouter, anthropic," in ended.stderr
    assert "There is no provider 'opnai' (in 'opnai:gpt-5'); did you mean 'openai'" in ended.stderr
    assert ended.stderr.endswith("The model in use is demo:demo.\n")
