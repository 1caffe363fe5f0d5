"""`talaria chat`: questions, answers, and going on with a conversation."""

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


def test_answer_alone_goes_to_stdout(talaria: Talaria, server: ModelServer) -> None:
    server.say(Reply(calls=(call("terminal", command="echo hidden"),)), "The *answer*.")

    ended = talaria("-q", "question")

    assert (ended.returncode, ended.stdout) == (0, "The *answer*.\n")
    assert ended.stderr.startswith('● terminal {"command": "echo hidden"}\n  done in ')


def test_question_without_the_word_chat_is_the_same_as_with_it(talaria: Talaria, server: ModelServer) -> None:
    server.say("one", "two")
    assert talaria("chat", "-q", "question").stdout == "one\n"
    assert talaria("-z", "question").stdout == "two\n"


def test_answer_as_json_is_one_document(talaria: Talaria, server: ModelServer) -> None:
    server.say("Yes.")
    ended = talaria("-q", "question", "--output-format", "json")

    told = json.loads(ended.stdout)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (told["ok"], told["outcome"], told["text"], told["model"]) == (
        True,
        "completed",
        "Yes.",
        "custom:test-model",
    )
    assert told["usage"] == {"input": 10, "output": 5, "cache_read": 0, "cache_write": 0, "reasoning": 0, "total": 15}
    assert told["session"] in talaria("sessions", "list").stdout


def test_answer_as_a_stream_is_one_event_per_line(talaria: Talaria, server: ModelServer) -> None:
    server.say(Reply(calls=(call("terminal", command="true"),)), "Done now.")
    ended = talaria("-q", "question", "--output-format", "stream-json")

    events = [json.loads(line) for line in ended.stdout.splitlines()]
    kinds = [event["type"] for event in events]
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (kinds[0], kinds[-1]) == ("turn_began", "turn_done")
    assert {"tool_began", "tool_ended", "round", "text"} <= set(kinds)
    assert "".join(event["text"] for event in events if event["type"] == "text") == "Done now."
    assert events[-1]["outcome"] == "completed"


def test_standard_input_is_added_to_the_question(talaria: Talaria, server: ModelServer) -> None:
    server.say("ok")
    talaria("-q", "Sum this up:", input="line one\nline two\n")
    assert texts(server.requests[0])[-1] == "Sum this up:\n\nline one\nline two"


def test_standard_input_that_is_no_text_does_not_break_anything(
    environment: dict[str, str], server: ModelServer
) -> None:
    server.say("ok")
    command = [sys.executable, "-m", "talaria.cli.main", "-q", b"caf\xe9"]
    ended = subprocess.run(command, input=b"\xff\xfe", env=environment, capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, b"ok\n")
    assert texts(server.requests[0])[-1] == "caf?\n\n\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"


def test_answer_that_the_terminals_encoding_cannot_hold_is_shown_as_far_as_possible(
    talaria: Talaria, server: ModelServer
) -> None:
    server.say("naïve ☃")
    ended = talaria("-q", "x", env={"PYTHONIOENCODING": "ascii"})
    assert (ended.returncode, ended.stdout) == (0, "na?ve ?\n")


def test_lines_of_standard_input_are_turns_of_one_conversation(talaria: Talaria, server: ModelServer) -> None:
    server.say("one", "two")
    ended = talaria(input="first\n\n/status\nsecond\n")

    assert (ended.returncode, ended.stdout) == (0, "one\ntwo\n")
    assert "Session 20" in ended.stderr
    assert texts(server.requests[1]) == ["first", "one", "second"]


def test_failed_turn_among_lines_is_told_by_the_exit_code(talaria: Talaria, server: ModelServer) -> None:
    server.say(Failure(401), "fine")
    ended = talaria(input="first\nsecond\n")
    assert (ended.returncode, ended.stdout) == (3, "fine\n")


def test_continue_goes_on_with_the_latest_conversation(talaria: Talaria, server: ModelServer) -> None:
    server.say("one", "two", "three")
    talaria("-q", "first")
    talaria("-q", "second")
    assert talaria("-c", "-q", "third").stdout == "three\n"
    assert texts(server.requests[2]) == ["second", "two", "third"]


def test_continue_without_a_conversation_is_told(talaria: Talaria, server: ModelServer) -> None:
    ended = talaria("-c", "-q", "x")
    assert (ended.returncode, ended.stderr) == (2, "talaria: There is no conversation to continue yet.\n")


async def test_continue_finds_the_conversation_behind_many_of_programs(
    talaria: Talaria, server: ModelServer, home: Path
) -> None:
    server.say("one", "two")
    await asyncio.to_thread(talaria, "-q", "first")
    async with open_store(home) as store:
        for number in range(201):
            await store.sessions.create(NewSession(SessionId(f"program-{number}"), "library"))
    ended = await asyncio.to_thread(talaria, "-c", "-q", "second")
    assert (ended.returncode, ended.stdout) == (0, "two\n")
    assert texts(server.requests[1]) == ["first", "one", "second"]


@pytest.mark.parametrize("by", ["id", "prefix", "title"])
def test_resume_goes_on_with_the_named_conversation(talaria: Talaria, server: ModelServer, by: str) -> None:
    server.say("one", "two", "three")
    id = json.loads(talaria("-q", "first", "--output-format", "json").stdout)["session"]
    talaria("sessions", "rename", id, "my talk")
    talaria("-q", "elsewhere")

    ended = talaria("-r", {"id": id, "prefix": id[:-2], "title": "my talk"}[by], "-q", "third")

    assert (ended.returncode, ended.stdout) == (0, "three\n")
    assert texts(server.requests[2]) == ["first", "one", "third"]


def test_rounds_are_limited_and_the_model_sums_up(talaria: Talaria, server: ModelServer) -> None:
    one_round = Reply(calls=(call("terminal", command="true"),))
    server.say(one_round, one_round, "Summed up.")

    ended = talaria("-q", "go", "--max-turns", "2")

    assert (ended.returncode, ended.stdout) == (0, "Summed up.\n")
    assert "You have no tool calls left" in texts(server.requests[2])[-1]


def test_image_goes_along_with_the_question(talaria: Talaria, server: ModelServer, tmp_path: Path) -> None:
    image = tmp_path / "dot.png"
    image.write_bytes(b"\x89PNG\r\n\x1a\n and so on")
    server.say("A dot.")
    assert talaria("-q", "What is this?", "--image", str(image)).stdout == "A dot.\n"
    parts = server.requests[0].json["messages"][-1]["content"]
    assert any(str(part).find("data:image/png;base64,iVBORw0KGgo") > 0 for part in parts)


def test_without_a_model_the_demo_says_what_it_is(talaria: Talaria) -> None:
    ended = talaria("-q", "hello", "-m", "demo")
    assert ended.returncode == 0
    assert ended.stdout.startswith("I am the demo model: a script, not an AI.")
    assert ended.stderr == ""


def test_stand_in_is_told_as_such_and_says_where_a_key_goes(talaria: Talaria, home: Path) -> None:
    ended = talaria("-q", "hello")
    assert ended.stderr.startswith("No API key and no local model server found: using the demo model, a scripted")
    assert f"GEMINI_API_KEY, …) into {home}/.env\n" in ended.stdout


def test_demo_that_was_set_is_no_stand_in(talaria: Talaria) -> None:
    talaria("config", "set", "model.provider", "demo")
    assert talaria("-q", "hello").stderr == ""
    assert talaria("-q", "hello", "-m", "demo:demo").stderr == ""


@pytest.mark.parametrize("has_path", [True, False])
def test_local_server_elsewhere_is_found_by_its_variable(talaria: Talaria, has_path: bool) -> None:
    with ModelServer(models=("qwen3:8b",)) as server:
        server.say("Found me.")
        ended = talaria("-q", "x", env={"OLLAMA_BASE_URL": server.base_url if has_path else server.url})
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "Found me.\n", "")
    assert server.requests[-1].json["model"] == "qwen3:8b"


def test_answer_can_be_asked_for_whole(talaria: Talaria, server: ModelServer) -> None:
    server.say("All at once.")
    talaria("config", "set", "model.streaming", "false")
    ended = talaria("-q", "x")
    assert (ended.returncode, ended.stdout) == (0, "All at once.\n")
    assert server.requests[0].json["stream"] is False


def test_limit_that_is_reached_has_an_exit_code_of_its_own(talaria: Talaria, server: ModelServer) -> None:
    talaria("config", "set", "limits.turn.tokens", "5000")
    usage = ReplyUsage(input=4_000, output=900)
    server.say(Reply(calls=(call("terminal", command="true"),), usage=usage), "never asked for")
    ended = talaria("-q", "x")
    assert ended.returncode == 5
    assert "talaria: Stopped: this turn has used 4,900 of 5,000 tokens, and the next call needs" in ended.stderr


def test_demo_makes_real_tool_calls(talaria: Talaria, environment: dict[str, str]) -> None:
    ended = talaria(
        "-m", "demo", input="write hello to notes.txt\nreplace hello with bye in notes.txt\nread notes.txt\n"
    )
    assert ended.returncode == 0
    assert Path(environment["PWD"], "notes.txt").read_text() == "bye\n"
    assert "read_file says:\n```\n1|bye\n" in ended.stdout


def test_ctrl_c_stops_the_turn_which_is_recorded_and_the_next_one_works(
    environment: dict[str, str], talaria: Talaria, server: ModelServer
) -> None:
    server.say(Reply("never seen", faults=Faults(first_byte_delay_s=60)), "Here I am.")
    command = [sys.executable, "-m", "talaria.cli.main", "-q", "wait"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin is not None
        process.stdin.close()
        server.wait_for_requests(1)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stderr is not None
        assert (process.wait(timeout=PATIENCE_S), process.stdout.read(), process.stderr.read()) == (
            130,
            "",
            f"{ROOT_WARNING}Interrupted.\n",
        )

    shown = talaria("sessions", "show", talaria("sessions", "list").stdout.split()[0])
    assert "› wait" in shown.stdout
    assert "[interrupted]" in shown.stdout
    assert "interrupted" not in talaria("sessions", "list").stdout
    assert talaria("-c", "-q", "and now?").stdout == "Here I am.\n"
    assert texts(server.requests[1]) == ["wait", "[This turn was interrupted.]", "and now?"]


def test_killed_turn_is_mentioned_and_finished_when_asked_for(
    environment: dict[str, str], talaria: Talaria, server: ModelServer
) -> None:
    server.say(Reply(faults=Faults(hang=True)), "other", "finished")
    command = [sys.executable, "-m", "talaria.cli.main", "-q", "wait"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL) as process:
        server.wait_for_requests(1)
        process.kill()

    ended = talaria("-q", "something else")
    assert ended.stdout == "other\n"
    assert "1 conversation was interrupted: finish one with `talaria -r " in ended.stderr
    id = ended.stderr.rpartition("-r ")[2].split("`")[0]
    assert "(interrupted)" in talaria("sessions", "list").stdout
    assert talaria("-r", id).stdout == "finished\n"


def test_reader_that_leaves_early_is_no_failure(environment: dict[str, str], server: ModelServer) -> None:
    server.say(Reply("".join(f"x{number}" for number in range(200_000)), chunk_chars=100_000))
    command = [sys.executable, "-m", "talaria.cli.main", "-q", "much"]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1) == "x"
        process.stdout.close()
        assert (process.wait(timeout=PATIENCE_S), process.stderr.read()) == (0, ROOT_WARNING)


def test_slow_writer_on_standard_input_is_waited_for_and_that_is_told(
    environment: dict[str, str], server: ModelServer
) -> None:
    server.say("Here I am.")
    command = [sys.executable, "-m", "talaria.cli.main", "-q", "hello"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert "add `< /dev/null`" in process.stderr.readline()
        process.stdin.write("late words")
        process.stdin.close()
        assert process.stdout.read() == "Here I am.\n"
    assert "late words" in texts(server.requests[0])[0]
