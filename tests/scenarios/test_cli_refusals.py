"""Calls that go wrong where nobody can be asked: what people and programs are told, and the exit code."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from talaria.cli import exits
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Failure, Reply, call

Talaria = Callable[..., subprocess.CompletedProcess[str]]
OUTSIDE = "/etc/passwd-of-nobody"
WRITES = Reply(calls=(call("write_file", path=OUTSIDE, content="x"),))


def refusals(ended: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in ended.stderr.splitlines() if " refused: " in line]


def lines(ended: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_a_call_that_nobody_could_allow_is_told_and_has_an_exit_code_of_its_own(
    talaria: Talaria, server: ModelServer
) -> None:
    server.say(WRITES, "I could not.")
    ended = talaria("-q", "write it")
    (refused,) = refusals(ended)
    assert (ended.returncode, ended.stdout) == (6, "I could not.\n")
    assert refused.startswith("write_file refused: nobody is here to allow it: ")
    assert ended.stderr.startswith(f'● write_file {{"path": "{OUTSIDE}"')
    assert not Path(OUTSIDE).exists()


def test_the_document_lists_refusals(talaria: Talaria, server: ModelServer) -> None:
    server.say(WRITES, "I could not.")
    ended = talaria("-q", "write it", "--output-format", "json")
    (document,) = lines(ended)
    (refused,) = document["refused"]
    assert (ended.returncode, document["ok"], refused["name"], refused["by"]) == (6, True, "write_file", "nobody")
    assert refusals(ended) == [f"write_file refused: {refused['reason']}"]


def test_the_stream_tells_every_call_also_those_that_did_not_run(talaria: Talaria, server: ModelServer) -> None:
    server.say(WRITES, Reply(calls=(call("no_such_tool"),)), Reply(calls=(call("terminal", command="exit 3"),)), "So.")
    ended = talaria("-q", "go", "--output-format", "stream-json")
    events = lines(ended)
    began = [event["name"] for event in events if event["type"] == "tool_began"]
    outcomes = [event["result"]["outcome"] for event in events if event["type"] == "tool_ended"]
    assert began == ["write_file", "no_such_tool", "terminal"]
    assert [one["kind"] for one in outcomes] == ["refused", "invalid", "failed"]
    assert (outcomes[0]["refused_by"], outcomes[2]["words"]) == ("nobody", "exit 3")
    assert (ended.returncode, len(refusals(ended))) == (6, 1)


def test_a_refusal_by_the_settings_is_told_but_is_no_failure(talaria: Talaria, server: ModelServer, home: Path) -> None:
    with (home / "config.yaml").open("a") as config:
        config.write("tools: {disabled: [terminal]}\n")
    server.say(Reply(calls=(call("terminal", command="true"),)), "No.")
    ended = talaria("-q", "go")
    assert refusals(ended) == ["terminal refused: The person has turned off the tool terminal, so it did not run"]
    assert (ended.returncode, ended.stdout) == (0, "No.\n")


@pytest.mark.parametrize(
    ("replies", "code"),
    [
        ([WRITES, Failure(401)], 3),
        ([WRITES, "one", Failure(401)], 3),
        ([Failure(401), WRITES, "two"], 3),
        ([WRITES, "one", "two"], 6),
    ],
)
def test_what_failed_counts_more_than_what_was_refused(
    talaria: Talaria, server: ModelServer, replies: list[Reply | Failure | str], code: int
) -> None:
    server.say(*replies)
    turns = sum(not (isinstance(reply, Reply) and reply.calls) for reply in replies)
    assert talaria(input="go\n" * turns).returncode == code


def test_plain_lines_are_honest(talaria: Talaria, server: ModelServer) -> None:
    printed = "echo start; printf '10%%\\r99%%\\n'; printf '\\033[31merror\\033[0m: no\\n'; exit 3"
    server.say(
        Reply(calls=(call("terminal", command=printed),)),
        Reply(calls=(call("no_such_tool", a=1),)),
        Reply(calls=(call("terminal", command="true"),)),
        "So.",
    )
    ended = talaria("-q", "go")
    told = ended.stderr.splitlines()
    assert (ended.returncode, ended.stdout) == (0, "So.\n")
    assert told[1].startswith("  failed in ")
    assert told[1].endswith(" s: exit 3")
    assert told[2:5] == ["    start", "    99%", "    error: no"]
    assert told[5:7] == ['● no_such_tool {"a": 1}', "  invalid: There is no tool called 'no_such_tool'"]
    assert told[8].startswith("  done in ")
    assert len(told) == 9


def test_the_codes_are_told_by_help(talaria: Talaria) -> None:
    told = " ".join(talaria("chat", "--help").stdout.split())
    assert "6 answered, but a call was refused because nobody could be asked to approve it" in told


@pytest.mark.parametrize(
    ("before", "last", "code"), [(0, 6, 6), (6, 0, 6), (6, 3, 3), (3, 6, 3), (130, 6, 130), (3, 5, 5), (0, 0, 0)]
)
def test_the_code_of_several_turns(before: int, last: int, code: int) -> None:
    assert exits.of_all(before, last) == code
