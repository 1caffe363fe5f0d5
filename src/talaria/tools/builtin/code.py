"""Runs Python scripts that the model writes. They run in its workspace and can call those tools that only read."""

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import msgspec

from talaria.core.aio import complete, in_thread
from talaria.core.errors import BadArguments
from talaria.core.ids import CallId
from talaria.core.messages import ToolCall
from talaria.tools.base import EXCLUSIVE, Claim, RichResult, Run, Scope, Tool
from talaria.tools.function import tool
from talaria.tools.output import CapturedOutput
from talaria.tools.person import Proposal
from talaria.tools.processes import make_result
from talaria.tools.sandbox.host import script
from talaria.tools.sandbox.running_command import RunningCommand, SandboxCommand
from talaria.tools.sandbox_consent import ask_about_held
from talaria.tools.workspaces import Workspaces

MAX_TIMEOUT_S = 600
MAX_CALLS = 100
MAX_CALL_BYTES = 1 << 20
MAX_REFUSED_CALLS = 20
"""Calls over the limit get a refusal this many times; then the script is killed."""
MAX_CODE_BYTES = 400_000
CALLABLE_TOOLS = ("read_file", "search_files", "web_fetch", "web_search", "recall", "session_search")

_BOOT = "import sys, json; exec(json.loads(sys.stdin.readline()))"
_PROGRAM = Path(script.__file__)

_encode = msgspec.json.Encoder().encode


class ScriptCall(msgspec.Struct):
    name: str
    arguments: dict[str, Any] = {}


_decode = msgspec.json.Decoder(ScriptCall).decode


def code_tools(workspaces: Workspaces) -> tuple[Tool, ...]:
    def claim(arguments: Any, scope: Scope) -> Claim:
        return Claim(
            command=arguments.code,
            language="python",
            workdir=workspaces.find_workdir(scope),
            is_confined=workspaces.is_confined,
            reveals=workspaces.can_send(scope),
            is_untrusted=workspaces.reads_untrusted(scope),
        )

    def question(arguments: Any) -> Proposal:
        return Proposal("Run this script?", arguments.code, "script")

    @tool(effect=EXCLUSIVE, question=question, timeout_s=None, claim=claim)
    async def execute_code(
        code: Annotated[str, "The script."],
        run: Run,
        timeout_s: Annotated[int, f"Time limit in seconds, at most {MAX_TIMEOUT_S}."] = 300,
    ) -> RichResult:
        """Run a Python script in the same place as `terminal` commands, and return what it prints.

        For work with many steps. The script can call these tools as functions, with the tools' parameters as keyword
        arguments: read_file, search_files, web_fetch, web_search, recall, session_search. They return text and raise
        ToolError on failure.
        """
        if len(code.encode("utf-8", "replace")) > MAX_CODE_BYTES:
            raise BadArguments(f"A script can have at most {MAX_CODE_BYTES:,} bytes.")
        from talaria.tools.command_results import describe_blocked, show_live  # noqa: PLC0415  (not loaded at start)

        workspace = await workspaces.open(run.scope)
        captured = CapturedOutput(run.spill_file("output"), run.scope.redactor, run.scope.spill_limits)
        reading = _ScriptOutput(captured, os.urandom(16).hex())
        command = SandboxCommand(command=f"exec python3 -c '{_BOOT}'", is_kept=False, has_input=True)
        limit_s = max(1, min(timeout_s, MAX_TIMEOUT_S))
        async with AsyncExitStack() as around:
            asking = around.enter_context(workspace.consent.register(run, code, workspace.cwd))
            await asking.open_sandbox(workspace, ())
            sink = await around.enter_async_context(show_live(reading, reading.output, run.live))
            asking.started = started = await workspace.start(command, sink)
            answering = asyncio.create_task(_serve_calls(started, reading, run), name="calls of a script")
            try:
                program = await in_thread(_PROGRAM.read_text)
                start = f"main({reading.mark!r}, {list(CALLABLE_TOOLS)!r}, {code!r})"
                started.write(_encode(f"{program}\n{start}") + b"\n")
                end = await started.wait_within(limit_s)
                await asking.end()
            finally:
                answering.cancel()
                await complete(started.kill())
                reading.finish()
                await workspace.quarantine_changes()
        held = await ask_about_held(workspace, run)
        text = captured.text()
        blocked = describe_blocked(workspace, text, end)
        return make_result(text, end, limit_s, f"{blocked}{held}")

    return (execute_code,)


class _ScriptOutput:
    """The output of a script, without the lines that are calls; an `OutputSink`."""

    def __init__(self, output: CapturedOutput, mark: str) -> None:
        self.output = output
        self.mark = mark
        self.calls: asyncio.Queue[bytes] = asyncio.Queue()
        self._prefix = f"\n{mark}".encode()
        self._pending = bytearray()

    def add(self, chunk: bytes) -> None:
        self._pending += chunk
        while (start := self._pending.find(self._prefix)) >= 0:
            end = self._pending.find(b"\n", start + 1)
            if end < 0 and len(self._pending) - start < MAX_CALL_BYTES:
                break
            if end < 0 or end - start > MAX_CALL_BYTES:  # too long to be a call
                self.output.add(bytes(self._pending[: start + len(self._prefix)]))
                del self._pending[: start + len(self._prefix)]
                continue
            self.output.add(bytes(self._pending[:start]))
            self.calls.put_nowait(bytes(self._pending[start + len(self._prefix) : end]))
            del self._pending[: end + 1]
        if start < 0:
            # Hold back what may be the start of a call.
            sizes = range(len(self._prefix) - 1, 0, -1)
            kept = next((size for size in sizes if self._pending.endswith(self._prefix[:size])), 0)
            cut = len(self._pending) - kept
            self.output.add(bytes(self._pending[:cut]))
            del self._pending[:cut]

    def skip(self, size_bytes: int) -> None:
        self.output.skip(size_bytes)

    def finish(self) -> None:
        self.output.add(bytes(self._pending))
        self.output.close()


async def _serve_calls(started: RunningCommand, reading: _ScriptOutput, run: Run) -> None:
    """Calls pass the same gate as the model's own."""
    count = 0
    while True:
        line = await reading.calls.get()
        count += 1
        if count > MAX_CALLS + MAX_REFUSED_CALLS:  # it ignores the refusals
            await started.kill()
            return
        try:
            wanted = _decode(line)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            answer = {"error": "a call could not be read"}
        else:
            if wanted.name not in CALLABLE_TOOLS or run.tools is None:
                answer = {"error": f"{wanted.name} cannot be called from a script"}
            elif count > MAX_CALLS:
                answer = {"error": f"a script can make at most {MAX_CALLS} calls"}
            else:
                call = ToolCall(CallId(f"{run.call}-{count}"), wanted.name, _encode(wanted.arguments).decode())
                result = await run.tools.call(call)
                text = result.text.removeprefix("Error: ") if result.is_error else result.text
                answer = {"error" if result.is_error else "text": text}
        started.write(_encode(answer) + b"\n")
