import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from talaria import tool
from talaria.core.errors import BadArguments, BadConfig, Denied, ToolFailed
from talaria.core.ids import CallId
from talaria.core.messages import ToolCall, ToolResult
from talaria.testing.patience import PATIENCE_S
from talaria.tools.base import Effect, Invocation, OpenGate, Run, Scope, Tool
from talaria.tools.executor import Executor
from talaria.tools.output import HEAD_BYTES, TAIL_BYTES
from talaria.tools.registry import Toolbox


def executor(scope: Scope, *tools: Tool) -> Executor:
    return Executor(Toolbox(tools), OpenGate(), scope)


def call(name: str, arguments: str = "{}") -> ToolCall:
    return ToolCall(CallId("call_1"), name, arguments)


async def run(scope: Scope, made: Tool) -> ToolResult:
    return await executor(scope, made).call(call(made.spec.name))


def test_unknown_tool_is_told_with_the_known_ones(scope: Scope) -> None:
    @tool
    def known() -> None: ...

    with pytest.raises(BadArguments, match=r"no tool called 'knwon'\. The tools are: known\."):
        executor(scope, known).prepare(call("knwon"))


def test_two_tools_of_one_name_are_refused() -> None:
    @tool
    def same() -> None: ...

    with pytest.raises(BadConfig, match="Two tools are called 'same'"):
        Toolbox([same, same])


def test_bad_arguments_are_refused_before_the_gate(scope: Scope) -> None:
    @tool
    def one(a: int) -> None: ...

    with pytest.raises(BadArguments, match="one are invalid"):
        executor(scope, one).prepare(call("one", '{"a": "x"}'))


def test_tool_that_breaks_while_it_looks_at_its_arguments_is_told_to_the_model(scope: Scope) -> None:
    def effect(_: Any, __: Scope) -> Effect:
        raise KeyError("oops")

    @tool(effect=effect)
    def broken() -> None: ...

    with pytest.raises(ToolFailed, match="broken failed: KeyError: 'oops'"):
        executor(scope, broken).prepare(call("broken"))


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (ToolFailed("The thing is away."), "Error: The thing is away."),
        (ValueError("bad value"), "Error: bad failed: ValueError: bad value"),
        (StopIteration(), "Error: bad failed: RuntimeError: coroutine raised StopIteration"),
        (TimeoutError("its own"), "Error: bad failed: TimeoutError: its own"),
        (SystemExit(3), "Error: bad failed: SystemExit: 3"),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
async def test_tool_that_raises_ends_in_an_error_result(
    scope: Scope, fault: BaseException, sentence: str, is_async: bool
) -> None:
    def bad() -> None:
        raise fault

    async def woven() -> None:
        raise fault

    result = await run(scope, tool(woven, name="bad") if is_async else tool(bad))

    assert (result.text, result.is_error) == (sentence, True)


@pytest.mark.parametrize("is_async", [False, True])
async def test_tool_that_hangs_is_stopped_with_a_sentence(scope: Scope, is_async: bool) -> None:
    released = threading.Event()

    @tool(timeout_s=0.01)
    def hang() -> None:
        released.wait()

    @tool(timeout_s=0.01, name="hang")
    async def wait() -> None:
        await asyncio.Event().wait()

    result = await run(scope, wait if is_async else hang)
    released.set()

    assert result.text == "Error: It took longer than 0 seconds and was abandoned. It may still be running, so check."


def test_tool_that_hangs_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    script = (
        "import asyncio, threading\n"
        "from talaria.core.aio import in_thread\n"
        "async def main():\n"
        "    async with asyncio.timeout(0.01):\n"
        "        await in_thread(threading.Event().wait)\n"
        "try:\n"
        "    asyncio.run(main())\n"
        "except TimeoutError:\n"
        "    print('given up')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert (ended.stdout, ended.stderr) == ("given up\n", "")


async def test_cancellation_passes_through(scope: Scope) -> None:
    began = asyncio.Event()

    @tool
    async def wait() -> None:
        began.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(run(scope, wait))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_long_text_is_capped_and_kept_whole_in_a_file(scope: Scope) -> None:
    text = "head" + "é" * 100_000 + "tail"

    @tool
    def long() -> str:
        return text

    result = await run(scope, long)

    assert result.text.startswith("head")
    assert result.text.endswith("tail")
    assert len(result.text.encode()) < HEAD_BYTES + TAIL_BYTES + 1_000
    assert (scope.spill / "call_1-result.txt").read_text() == text


async def test_text_that_no_encoding_can_hold_is_made_valid(scope: Scope) -> None:
    @tool
    def odd() -> str:
        return "a\udce9b"

    assert (await run(scope, odd)).text == "a?b"


@pytest.mark.parametrize("id", ["../../etc/passwd", "/abs", "..", "a\0b", "x" * 1000])
def test_file_for_long_output_stays_in_its_folder_whatever_the_id(scope: Scope, id: str) -> None:
    file = Run(CallId(id), scope).spill_file("output")
    assert file.resolve().parent == scope.spill.resolve()
    assert len(file.name) < 255


async def test_gate_is_asked_with_the_call(scope: Scope) -> None:
    class Refusing(OpenGate):
        async def admit(self, call: ToolCall, invocation: Invocation, scope: Scope) -> None:
            raise Denied(f"no to {call.name}: {invocation.question}")

    @tool(question=lambda _: "May I?")
    def act() -> None: ...

    chosen = Executor(Toolbox([act]), Refusing(), scope)
    with pytest.raises(Denied, match=r"no to act: May I\?"):
        await chosen.admit(chosen.prepare(call("act")))


async def test_what_the_gate_has_not_let_through_does_not_run(scope: Scope) -> None:
    ran: list[str] = []

    @tool
    def act(what: str) -> None:
        """Act."""
        ran.append(what)

    chosen = executor(scope, act)
    allowed, other = (chosen.prepare(call("act", f'{{"what": "{what}"}}')) for what in ("this", "that"))
    assert (await chosen.run(allowed)).is_error
    await chosen.admit(allowed)
    assert "not the one that was allowed" in (await chosen.run(other)).text
    await chosen.admit(allowed)
    assert not (await chosen.run(allowed)).is_error
    assert (await chosen.run(allowed)).is_error  # a yes is for one run
    assert ran == ["this"]


async def test_tool_that_cancels_itself_has_failed_and_interrupts_nothing(scope: Scope) -> None:
    @tool
    async def odd() -> str:
        """Cancel."""
        raise asyncio.CancelledError

    result = await run(scope, odd)
    assert (result.is_error, result.text) == (True, "Error: odd cancelled itself.")


async def test_error_of_any_size_and_sign_is_short_and_clean(scope: Scope) -> None:
    @tool
    async def loud() -> str:
        """Fail at length."""
        raise ToolFailed("\udcff" + "x" * 1_000_000)

    result = await run(scope, loud)
    assert len(result.text) < 10_000
    result.text.encode("utf-8")
