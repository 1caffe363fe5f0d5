"""Python that the model writes, with the reading tools at hand."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from talaria.core.ids import CallId
from talaria.core.messages import ToolCall, ToolResult
from talaria.tools.base import OpenGate, Scope
from talaria.tools.builtin.code import MAX_CALLS, code_tools
from talaria.tools.builtin.file_tools import file_tools
from talaria.tools.executor import Executor
from talaria.tools.file_content import ReadFiles
from talaria.tools.registry import Toolbox
from talaria.tools.workspaces import Workspaces

Script = Callable[..., Awaitable[ToolResult]]


@pytest.fixture
def script(scope: Scope, workspaces: Workspaces) -> Script:
    executor = Executor(Toolbox((*code_tools(workspaces), *file_tools(ReadFiles()))), OpenGate(), scope)

    async def run(code: str, **more: object) -> ToolResult:
        return await executor.call(ToolCall(CallId("c"), "execute_code", json.dumps({"code": code, **more})))

    return run


async def test_what_it_prints_is_answered(script: Script) -> None:
    assert (await script("print(1 + 1)\nprint('héllo')")).text == "2\nhéllo\n\n[exit code 0]"


async def test_a_mistake_is_shown_with_its_place(script: Script) -> None:
    result = await script("x = 1\nraise ValueError('so')")
    assert 'File "script.py", line 2' in result.text
    assert result.text.endswith("ValueError: so\n\n[exit code 1]")


async def test_it_calls_tools_that_read(script: Script, cwd: Path) -> None:
    for name in "abc":
        (cwd / name).write_text(f"{name} one\n{name} two\n")
    code = (
        "from talaria_tools import read_file as read\n"
        "print('begin', end='')\n"
        "for name in 'abc':\n"
        "    print(read(path=name, limit=1).splitlines()[0], '.')"
    )
    assert (await script(code)).text == "begin1|a one .\n1|b one .\n1|c one .\n\n[exit code 0]"


async def test_it_does_not_call_tools_that_act(script: Script, cwd: Path) -> None:
    forged = (
        "import gc\n"
        "print('write_file' in globals())\n"
        "calls = next(one for one in gc.get_objects() if type(one).__name__ == 'ScriptCalls')\n"
        "try:\n"
        "    calls.call('write_file', {'path': 'x', 'content': 'x'})\n"
        "except ToolError as refusal:\n"
        "    print(refusal)"
    )
    assert (await script(forged)).text.startswith("False\nwrite_file cannot be called from a script\n")
    assert not (cwd / "x").exists()


async def test_a_tool_that_fails_raises(script: Script) -> None:
    result = await script("try:\n    read_file(path='nowhere')\nexcept ToolError as e:\n    print('told:', e)")
    assert result.text.startswith("told: Cannot read ")


async def test_calls_are_counted(script: Script, cwd: Path) -> None:
    (cwd / "a").write_text("a")
    code = (
        f"for number in range({MAX_CALLS} + 1):\n"
        "    try:\n"
        "        read_file(path='a')\n"
        "    except ToolError as refusal:\n"
        "        print(number, refusal)"
    )
    assert (await script(code)).text.startswith(f"{MAX_CALLS} a script can make at most {MAX_CALLS} calls\n")


async def test_it_is_stopped_in_time(script: Script) -> None:
    result = await script("print('on', flush=True)\nwhile True: pass", timeout_s=1)
    assert result.text == "on\n\n[stopped after 1 seconds; it did not end by itself]"


async def test_it_reads_nothing_from_us_but_answers(script: Script) -> None:
    assert (await script("import sys; print(repr(sys.stdin.read()))")).text.startswith("''\n")


async def test_threads_take_turns(script: Script, cwd: Path) -> None:
    for number in range(8):
        (cwd / f"file{number}").write_text(f"content {number}\n")
    code = (
        "from concurrent.futures import ThreadPoolExecutor as Pool\n"
        "names = [f'file{number}' for number in range(8)]\n"
        "with Pool(8) as pool:\n"
        "    print(list(pool.map(lambda name: read_file(path=name).split()[-1], names)))"
    )
    assert (await script(code, timeout_s=60)).text.startswith(f"{[str(number) for number in range(8)]}\n")


async def test_a_call_that_is_no_text_is_told(script: Script) -> None:
    code = (
        "import gc, os\n"
        "calls = next(one for one in gc.get_objects() if type(one).__name__ == 'ScriptCalls')\n"
        "mark = calls.call.__self__.__dict__['_mark']\n"
        "os.write(1, b'\\n' + mark.encode() + b'\\xff\\xfe\\n')\n"
        "print(calls.__dict__['_answers'].readline())"
    )
    assert "a call could not be read" in (await script(code, timeout_s=30)).text


async def test_a_script_that_never_stops_calling_is_ended(script: Script) -> None:
    code = "while True:\n    try:\n        read_file(path='x')\n    except ToolError:\n        pass"
    assert (await script(code, timeout_s=100)).text == "[exit code 137]"
