"""Background processes of the session's workspace."""

import asyncio
from typing import Annotated, Any, Literal

import msgspec

from talaria.core.aio import completed
from talaria.core.errors import BadArguments, ToolFailed
from talaria.core.messages import Outcome
from talaria.tools.base import EXCLUSIVE, INDEPENDENT, READS, Claim, Effect, Run, Scope, Shown, Tool
from talaria.tools.builtin.held import ask_about_held
from talaria.tools.function import tool
from talaria.tools.person import Proposal
from talaria.tools.processes import BackgroundProcess, ended, outcome_of
from talaria.tools.workspaces import Workspaces

MAX_WAIT_S = 600
MAX_TEXT_CHARS = 500_000

Action = Literal["list", "poll", "log", "wait", "write", "close", "kill"]


def process_tools(workspaces: Workspaces) -> tuple[Tool, ...]:
    def claim(arguments: Any, scope: Scope) -> Claim:
        """What is written to a shell is a command, too."""
        is_untrusted = arguments.action in ("poll", "log", "wait") and workspaces.brings_strange_words(scope)
        if arguments.action != "write":
            return Claim(is_untrusted=is_untrusted)
        return Claim(command=arguments.text, is_confined=workspaces.is_confined, reveals=workspaces.can_send(scope))

    @tool(effect=_effect, question=_question, timeout_s=None, claim=claim)
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
    ) -> str | Shown:
        """Look after the background processes of this conversation. They end with it."""
        if len(text) > MAX_TEXT_CHARS:
            raise BadArguments(f"At most {MAX_TEXT_CHARS:,} characters can be written at once.")
        workspace = await workspaces.open(run.scope)
        processes = workspace.processes
        if action == "list":
            return "\n".join(_line(one) for one in processes.all) or "[no background processes]"
        try:
            done = await _done(action, processes.find(id), text, max(1, min(timeout_s, MAX_WAIT_S)))
        finally:
            await workspace.tidy()
        return msgspec.structs.replace(done, text=done.text + await ask_about_held(workspace, run))

    return (process,)


def _question(arguments: Any) -> Proposal | None:
    if arguments.action != "write":
        return None
    return Proposal(f"Write this to the background process {arguments.id}?", arguments.text, "input")


def _effect(arguments: Any, _: Scope) -> Effect:
    """What is written, closed and killed in one answer is done in that order."""
    match arguments.action:
        case "list" | "poll" | "log":
            return READS
        case "wait":
            return INDEPENDENT
        case _:
            return EXCLUSIVE


async def _done(action: Action, process: BackgroundProcess, text: str, limit_s: float) -> Shown:
    match action:
        case "poll" | "list":
            return _told(process.news(), process, process.state)
        case "log":
            return _told(process.output.text(), process, process.state)
        case "wait":
            return await _waited(process, limit_s)
        case "write":
            _check_running(process)
            process.started.write(text.encode("utf-8", "replace"))
            return Shown(f"Wrote {len(text):,} characters to {process.id}.")
        case "close":
            _check_running(process)
            process.close_input()
            return Shown(f"Closed the input of {process.id}.")
        case "kill":
            process.is_ended_on_purpose = True
            return Shown(f"[{process.id} has ended: {ended(await completed(process.started.killed()))}]")


def _check_running(process: BackgroundProcess) -> None:
    if not process.is_running:
        raise ToolFailed(f"{process.id} has ended: {process.state}.")


async def _waited(process: BackgroundProcess, limit_s: float) -> Shown:
    try:
        async with asyncio.timeout(limit_s):
            await process.started.ended()
    except TimeoutError:
        return _told(process.news(), process, f"still running after {limit_s:.0f} seconds")
    return _told(process.news(), process, process.state)


def _told(output: str, process: BackgroundProcess, state: str) -> Shown:
    end = process.started.end
    text = f"{output}\n[{state}]".lstrip("\n")
    how = Outcome("done", "still running") if end is None else outcome_of(end)
    chars = max(0, len(text) - len(f"\n[{state}]"))
    return Shown(text, outcome=msgspec.structs.replace(how, output_chars=chars))


def _line(process: BackgroundProcess) -> str:
    return f"{process.id}  {process.state}  {process.command.command.partition(chr(10))[0][:100]}"
