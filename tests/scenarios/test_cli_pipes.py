"""What is handed to the command from outside: standard input, images, and words in odd places."""

import base64
import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from tests.scenarios.conftest import ROOT_WARNING

from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Faults, Reply, call

Talaria = Callable[..., subprocess.CompletedProcess[str]]

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
MEBIBYTE = 1 << 20


def asked(server: ModelServer) -> Any:
    """What the person said last, as the model was told."""
    return server.requests[-1].json["messages"][-1]["content"]


@pytest.fixture
def folder(environment: dict[str, str]) -> Path:
    return Path(environment["PWD"])


def fed(environment: dict[str, str], content: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "talaria.cli.main", *arguments],
        input=content,
        env=environment,
        cwd=environment["PWD"],
        capture_output=True,
        timeout=60,
        check=False,
    )


def test_a_question_is_put_before_what_is_piped(talaria: Talaria, server: ModelServer) -> None:
    server.say("Looks good.")
    ended = talaria("chat", "-q", "review this", input="+ a line\n- another\n")
    assert (ended.returncode, ended.stdout) == (0, "Looks good.\n")
    assert "review this\n\n+ a line\n- another" in json.dumps(asked(server)).encode().decode("unicode_escape")


def test_a_dash_asks_what_is_piped(talaria: Talaria, server: ModelServer) -> None:
    server.say("Four.")
    assert talaria("-q", "-", input="two and two?\r\nsay it\r\n").stdout == "Four.\n"
    assert "two and two?\\nsay it" in json.dumps(asked(server))
    assert "-\\n" not in json.dumps(asked(server))


def test_each_line_is_a_turn_without_a_question(talaria: Talaria, server: ModelServer) -> None:
    server.say("One.", "Two.")
    assert talaria(input="first\nsecond\n").stdout == "One.\nTwo.\n"


def test_input_without_end_is_refused_before_the_model_is_asked(
    environment: dict[str, str], server: ModelServer
) -> None:
    ended = fed(environment, b"word " * MEBIBYTE, "-q", "sum this up")
    assert ended.returncode == 2
    assert b"Standard input is larger than 4 MB" in ended.stderr
    assert not server.requests


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x7fELF\x02\x01\x00\x00", b"Standard input is not text (UTF-8)."),
        (PIXEL, b"(image/png): add it with --image"),
    ],
)
@pytest.mark.parametrize("arguments", [["-q", "what is this?"], ["-q", "-"], []])
def test_input_that_is_no_text_is_refused(
    environment: dict[str, str], server: ModelServer, arguments: list[str], content: bytes, says: bytes
) -> None:
    ended = fed(environment, content, *arguments)
    assert (ended.returncode, says in ended.stderr) == (2, True)
    assert not server.requests


def test_text_in_another_encoding_comes_as_well_as_it_can(environment: dict[str, str], server: ModelServer) -> None:
    server.say("Yes.")
    assert fed(environment, "Tür".encode("latin-1"), "-q", "?").returncode == 0
    assert "T\ufffdr" in json.loads(json.dumps(asked(server)))


def test_images_and_a_pipe_go_with_one_question(talaria: Talaria, server: ModelServer, folder: Path) -> None:
    (folder / "a.png").write_bytes(PIXEL)
    (folder / "b.gif").write_bytes(b"GIF89a\x01\x00\x01\x00\x00\x00\x00;")
    server.say("Two pictures.")
    ended = talaria("-q", "compare", "--image", "a.png", "--image", "b.gif", input="with this text\n")
    assert (ended.returncode, ended.stderr) == (0, "")
    parts = asked(server)
    assert [part["image_url"]["url"][:15] for part in parts if "image_url" in part] == [
        "data:image/png;",
        "data:image/gif;",
    ]
    assert any("compare\n\nwith this text" in part.get("text", "") for part in parts)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing.png", "Cannot read the image missing.png: No such file or directory."),
        ("folder", "Cannot read the image folder: it is a folder, device or pipe."),
        ("words.png", "words.png is not a PNG, JPEG, GIF or WebP image"),
        ("empty.png", "empty.png is not a PNG, JPEG, GIF or WebP image"),
        ("large.png", "The image large.png is larger than 20 MB."),
        ("/dev/zero", "Cannot read the image /dev/zero: it is a folder, device or pipe."),
    ],
)
def test_an_image_that_is_none_is_told(
    talaria: Talaria, server: ModelServer, folder: Path, name: str, says: str
) -> None:
    (folder / "folder").mkdir()
    (folder / "words.png").write_text("words")
    (folder / "empty.png").touch()
    with (folder / "large.png").open("wb") as large:
        large.write(PIXEL)
        large.truncate(20 * MEBIBYTE + 1)
    ended = talaria("-q", "x", "--image", name)
    assert (ended.returncode, says in ended.stderr) == (2, True), ended.stderr
    assert not server.requests


@pytest.mark.parametrize(
    "arguments",
    [
        ["-m", "demo", "chat", "-q", "hi"],
        ["--model=demo", "chat", "-q", "hi"],
        ["--yolo", "chat", "-q", "hi", "-m", "demo"],
        ["chat", "-q", "hi", "-m", "demo"],
        ["-mdemo", "-q", "hi"],
        ["-m", "demo", "-q", "chat"],
        ["--max-turns", "3", "-qhi", "-m", "demo"],
        ["-m", "demo", "--output-format", "text", "chat", "--query", "sessions"],
    ],
)
def test_options_may_stand_before_chat(talaria: Talaria, arguments: list[str]) -> None:
    ended = talaria(*arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout


def test_flags_may_share_a_dash_with_an_option(talaria: Talaria) -> None:
    talaria("-m", "demo", "-q", "hello")
    assert talaria("-cq", "again", "-m", "demo").returncode == 0
    assert talaria("sessions", "list").stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sesions", "list"], "No such command 'sesions'; did you mean 'sessions'? To ask a question: talaria -q "),
        (["what is new?"], "No such command 'what is new?'. To ask a question: talaria -q 'what is new?'"),
        (["what", "is", "new?"], "No such command 'what'. To ask a question: talaria -q 'what is new?'"),
        (
            ["-c", "a word"],
            "To send it as a question: talaria -c -q 'a word'; to resume that conversation: talaria -r 'a word'",
        ),
        (["chat", "hello"], "'hello' is not an option. To send it as a question: talaria -q hello"),
        (["-m", "demo", "hello"], "'hello' is not an option. To send it as a question: talaria -m demo -q hello"),
        (["-m", "demo", "sessions", "list"], "-m is an option of `talaria chat`; without it: talaria sessions list"),
        (["--json", "sessions", "list"], "Put options after the command: talaria sessions list --json"),
    ],
)
def test_words_in_nobodys_place_are_told_with_what_to_type(talaria: Talaria, arguments: list[str], says: str) -> None:
    ended = talaria(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert says in ended.stderr


def test_names_of_commands_elsewhere_are_known(talaria: Talaria) -> None:
    assert talaria("message", "--help").returncode == talaria("profile", "list").returncode == 0


@contextmanager
def piped(
    environment: dict[str, str], *arguments: str, stderr: int = subprocess.PIPE
) -> Generator[subprocess.Popen[str]]:
    """The command with a pipe for its answer; nothing is on its standard input."""
    with subprocess.Popen(
        [sys.executable, "-m", "talaria.cli.main", *arguments],
        env=environment,
        cwd=environment["PWD"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        encoding="utf-8",
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def first_line(stream: IO[str] | None) -> str:
    """Of what has come by then, or the end."""
    assert stream is not None
    assert select.select([stream], [], [], 20)[0], "nothing came"
    return stream.readline()


LINES = "".join(f"line {number}\n" for number in range(9_000))


def test_lines_arrive_while_the_model_still_writes(
    talaria: Talaria, environment: dict[str, str], server: ModelServer
) -> None:
    server.say(Reply(LINES, chunk_chars=11, faults=Faults(stall_at=4_000)))
    with piped(environment, "-q", "count") as process:
        assert first_line(process.stdout) == "line 0\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err.replace(ROOT_WARNING, "")) == (130, "Interrupted.\n")
    said = f"line 0\n{out}"
    assert said.endswith("\n")
    assert LINES.startswith(said.rstrip("\n"))
    assert json.dumps(said.rstrip("\n"))[:-1] in talaria("sessions", "export", session(talaria)).stdout


def test_nothing_but_the_answer_is_printed_where_tools_were_used(talaria: Talaria, server: ModelServer) -> None:
    server.say(Reply("I will look.", calls=(call("search_files", pattern="*", target="names"),)), "One.\n\nTwo.\n")
    assert talaria("-q", "look").stdout == "One.\n\nTwo.\n\n"


def test_an_answer_that_is_given_again_by_another_model_follows_what_was_printed(
    talaria: Talaria, server: ModelServer, home: Path
) -> None:
    with (home / "config.yaml").open("a") as config:
        config.write(f"providers: {{other: {{base_url: '{server.base_url}'}}}}\nfallback_providers: [other:m]\n")
    refused = Faults(error_in_stream={"type": "authentication_error", "message": "no"})
    server.say(Reply("one\ntwo\n", faults=refused), "one\ntwo\nthree", Reply("one\ntwo\n", faults=refused), "uno\ndue")
    assert talaria("-q", "count").stdout == "one\ntwo\nthree\n"
    ended = talaria("-q", "count")
    assert ended.stdout == "one\ntwo\nuno\ndue\n"
    assert "Ignore what was printed so far: the whole answer follows.\n" in ended.stderr


def test_while_the_model_works_only_a_terminal_on_stderr_shows_how_far_it_is(
    environment: dict[str, str], server: ModelServer
) -> None:
    server.say(
        Reply("I will look.", calls=(call("search_files", pattern="*", target="names"),)),
        Reply(faults=Faults(hang=True)),
    )
    watching, terminal = pty.openpty()
    with piped(environment, "-q", "look", stderr=terminal) as process:
        server.wait_for_requests(2)
        shown = b""
        while b"search_files" not in shown:
            assert select.select([watching], [], [], 20)[0], shown
            shown += os.read(watching, 1_000)
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 0)[0] == []
    os.close(watching)
    os.close(terminal)


@pytest.mark.parametrize("format", ["text", "stream-json"])
def test_a_reader_that_leaves_stops_the_turn_and_what_was_written_is_kept(
    talaria: Talaria, environment: dict[str, str], server: ModelServer, format: str
) -> None:
    server.say(Reply(LINES, chunk_chars=50, faults=Faults(chunk_delay_s=0.01)))
    with piped(environment, "-q", "much", "--output-format", format) as process:
        assert first_line(process.stdout)
        assert process.stdout is not None
        process.stdout.close()
        assert (process.wait(timeout=PATIENCE_S), first_line(process.stderr).replace(ROOT_WARNING, "")) == (0, "")
    kept = talaria("sessions", "export", session(talaria)).stdout
    assert "line 1\\n" in kept
    assert "line 8999" not in kept
    assert "(interrupted)" not in talaria("sessions", "list").stdout  # it needs no finishing


def test_a_reader_that_leaves_ends_a_chat(environment: dict[str, str], server: ModelServer) -> None:
    server.say(Reply(LINES, chunk_chars=50, faults=Faults(chunk_delay_s=0.01)), "never asked for")
    command = f"printf 'one\\ntwo\\n' | {shlex.join([sys.executable, '-m', 'talaria.cli.main'])} | head -1"
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], env=environment, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, b"line 0\n")
    assert len(server.requests) == 1


def session(talaria: Talaria) -> str:
    (row,) = json.loads(talaria("sessions", "list", "--json").stdout)
    return row["id"]
