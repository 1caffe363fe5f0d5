"""Processes in the background of a session."""

import asyncio
import json
import os
import select
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from talaria.core.messages import ToolResult
from talaria.tools.base import Scope
from talaria.tools.builtin.terminal import process_tools
from talaria.tools.workspaces import Workspaces

Use = Callable[..., Awaitable[ToolResult]]


@pytest.fixture
def line(cwd: Path) -> Iterator[int]:
    """The reading end of a pipe in the project."""
    os.mkfifo(cwd / "line")
    reading = os.open(cwd / "line", os.O_RDONLY | os.O_NONBLOCK)
    yield reading
    os.close(reading)


def heard(line: int) -> bytes:
    """What was written, or b"" once nobody holds it any more."""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    assert poll.poll(10_000)
    return os.read(line, 1000)


async def test_it_goes_on_while_other_commands_run(use: Use) -> None:
    began = await use("terminal", command="read x; echo got $x; read y; echo then $y", background=True)
    assert began.text.startswith("Started in the background as p1;")
    assert (await use("terminal", command="echo meanwhile")).text.startswith("meanwhile\n")
    await use("process", action="write", id="p1", text="one\n")
    await use("process", action="write", id="p1", text="two\n")
    assert (await use("process", action="wait", id="p1", timeout_s=30)).text == "got one\nthen two\n\n[exit code 0]"


async def test_polling_tells_only_what_is_new(use: Use) -> None:
    await use("terminal", command="echo first; read x; echo second", background=True)
    while "first" not in (told := (await use("process", action="poll", id="p1")).text):
        pass
    assert "[running]" in told
    await use("process", action="close", id="p1")
    assert (await use("process", action="wait", id="p1")).text == "second\n\n[exit code 0]"
    assert (await use("process", action="poll", id="p1")).text == "[exit code 0]"
    assert (await use("process", action="log", id="p1")).text == "first\nsecond\n\n[exit code 0]"


async def test_all_of_them_are_listed(use: Use) -> None:
    assert (await use("process", action="list")).text == "[no background processes]"
    await use("terminal", command="sleep 1000", background=True)
    await use("terminal", command="exit 3", background=True)
    await use("process", action="wait", id="p2")
    assert (await use("process", action="list")).text == "p1  running  sleep 1000\np2  exit code 3  exit 3"


async def test_killing_ends_all_that_it_has_started(use: Use, line: int) -> None:
    command = "exec 9>line; setsid sleep 1000 & (setsid sleep 1000 &); echo up >&9; wait"
    await use("terminal", command=command, background=True)
    assert heard(line) == b"up\n"
    assert (await use("process", action="kill", id="p1")).text == "[p1 has ended: exit code 137]"
    assert heard(line) == b""


async def test_closing_the_session_ends_everything(use: Use, workspaces: Workspaces, scope: Scope, line: int) -> None:
    await use("terminal", command="exec 9>line; (setsid sleep 1000 &); echo up >&9; sleep 1000", background=True)
    assert heard(line) == b"up\n"
    await workspaces.close(scope.session)
    assert heard(line) == b""


async def test_its_end_is_news_once(use: Use, workspaces: Workspaces, scope: Scope) -> None:
    await use("terminal", command="echo last words; exit 2", background=True)
    await use("process", action="wait", id="p1")
    while not (told := workspaces.take_news(scope.session)):
        await asyncio.sleep(0)
    (news,) = told
    assert "Background process p1 (echo last words; exit 2) has ended: exit code 2." in news
    assert "last words" in news
    assert workspaces.take_news(scope.session) == ()


async def test_waiting_has_an_end(use: Use) -> None:
    await use("terminal", command="sleep 1000", background=True)
    assert (await use("process", action="wait", id="p1", timeout_s=1)).text == "[still running after 1 seconds]"


async def test_an_unknown_one_is_told_with_the_known(use: Use) -> None:
    await use("terminal", command="sleep 1000", background=True)
    result = await use("process", action="poll", id="p7")
    assert result.is_error
    assert "There is no background process 'p7'. Known: p1." in result.text


async def test_there_are_not_too_many(use: Use) -> None:
    for _ in range(16):
        await use("terminal", command="sleep 1000", background=True)
    result = await use("terminal", command="sleep 1000", background=True)
    assert "16 background processes are running already" in result.text


async def test_a_server_in_the_background_is_reached_by_the_next_command(use: Use, cwd: Path, backend: str) -> None:
    if backend == "landlock":
        return  # no sockets there: the escape matrix knows
    (cwd / "serve.py").write_text(
        "import http.server as h\n"
        "server = h.HTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler)\n"
        "open('port', 'w').write(str(server.server_port))\n"
        "server.serve_forever()\n"
    )
    (cwd / "fetch.py").write_text(
        "import urllib.request as u\nprint(u.urlopen(f'http://127.0.0.1:{open(\"port\").read()}/serve.py').read())\n"
    )
    await use("terminal", command="exec python3 serve.py", background=True)
    result = await use("terminal", command="until [ -s port ]; do sleep 0.01; done; python3 fetch.py", timeout_s=30)
    assert "serve_forever" in result.text


@pytest.mark.parametrize("backend", ["local"], indirect=True)
@pytest.mark.parametrize("action", ["write", "close", "kill"])
def test_what_is_done_to_a_process_in_one_answer_is_done_in_order(
    workspaces: Workspaces, scope: Scope, action: str
) -> None:
    (process,) = process_tools(workspaces)
    given = [{"action": "write", "id": "p1", "text": "x"}, {"action": action, "id": "p1"}]
    first, second = (process.prepare(json.dumps(one), scope) for one in given)
    assert first.effect.clashes(second.effect)


async def test_a_process_that_is_killed_as_it_starts_ends_alone(use: Use, line: int) -> None:
    """The order may come before its minder listens for it."""
    await use("terminal", command="exec 9>line; echo up >&9; read x", background=True)
    assert heard(line) == b"up\n"
    for number in range(2, 7):
        await use("terminal", command="exec sleep 1000", background=True)
        assert (await use("process", action="kill", id=f"p{number}")).text == f"[p{number} has ended: exit code 137]"
    assert "p1  running" in (await use("process", action="list")).text
