"""Background processes of the session's workspace."""

import asyncio
from typing import Annotated, Any, Literal

from talaria.tools.base import INDEPENDENT, READS, Effect, Run, Scope, Tool
from talaria.tools.function import tool
from talaria.tools.processes import Process, ended
from talaria.tools.workspace import Workspaces

MAX_WAIT_S = 600
NAMES = ("process",)

Action = Literal["list", "poll", "log", "wait", "write", "close", "kill"]


def process_tools(workspaces: Workspaces) -> tuple[Tool, ...]:
    @tool(effect=_effect, timeout_s=None)
    async def process(
        action: Annotated[
            Action,
            "list: all of them; poll: what is new; log: all output; wait: for its end; write: to its input; "
            "close: its input; kill: it and all it has started.",
        ],
        run: Run,
        id: Annotated[str, "Of the process, as `terminal` told it; not for list."] = "",
        text: Annotated[str, "For write; end it with a newline to send a line."] = "",
        timeout_s: Annotated[int, f"For wait: seconds, at most {MAX_WAIT_S}."] = 60,
    ) -> str:
        """Look after the background processes of this conversation. They end with it."""
        processes = (await workspaces.open(run.scope)).processes
        if action == "list":
            return "\n".join(_line(one) for one in processes.all) or "[no background processes]"
        return await _done(action, processes.find(id), text, max(1, min(timeout_s, MAX_WAIT_S)))

    return (process,)


def _effect(arguments: Any, _: Scope) -> Effect:
    return READS if arguments.action in ("list", "poll", "log") else INDEPENDENT


async def _done(action: Action, process: Process, text: str, limit_s: float) -> str:
    match action:
        case "list" | "poll":
            return _told(process.news(), process.state)
        case "log":
            return _told(process.output.text(), process.state)
        case "wait":
            return await _waited(process, limit_s)
        case "write":
            process.started.write(text.encode("utf-8", "replace"))
            return f"Wrote {len(text):,} characters to {process.id}."
        case "close":
            process.started.close_input()
            return f"Closed the input of {process.id}."
        case "kill":
            process.started.kill()
            return f"[{process.id} has ended: {ended(await process.started.ended())}]"


async def _waited(process: Process, limit_s: float) -> str:
    try:
        async with asyncio.timeout(limit_s):
            await process.started.ended()
    except TimeoutError:
        return _told(process.news(), f"still running after {limit_s:.0f} seconds")
    return _told(process.news(), process.state)


def _told(output: str, state: str) -> str:
    return f"{output}\n[{state}]".lstrip("\n")


def _line(process: Process) -> str:
    return f"{process.id}  {process.state}  {process.command.partition(chr(10))[0][:100]}"
