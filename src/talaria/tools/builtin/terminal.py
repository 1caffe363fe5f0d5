"""Tools that run shell commands in the session's workspace and manage its background processes."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from talaria.core.aio import complete, in_thread
from talaria.core.errors import BadArguments, ToolFailed
from talaria.core.messages import Outcome
from talaria.tools.base import EXCLUSIVE, INDEPENDENT, READS, Claim, Effect, RichResult, Run, Scope, Tool
from talaria.tools.function import FunctionTool, is_outside, tool
from talaria.tools.output import CapturedOutput
from talaria.tools.person import Proposal
from talaria.tools.processes import BackgroundProcess, describe_end, make_outcome, make_result
from talaria.tools.sandbox.host.shell import MAX_COMMAND_BYTES
from talaria.tools.sandbox.running_command import SandboxCommand
from talaria.tools.sandbox.sandbox_settings import TerminalSettings
from talaria.tools.sandbox_consent import ask_about_held, shorten_reason
from talaria.tools.sandbox_permissions import FORMS, Permission, parse_need
from talaria.tools.workspaces import Workspaces

if TYPE_CHECKING:
    from talaria.tools.workspace import Workspace

MAX_TIMEOUT_S = 600
MAX_NEEDS = 8
"""Per command: nobody reads more questions."""
SIZE = (40, 120)
"""Rows and columns of a terminal."""


def terminal_tools(workspaces: Workspaces) -> tuple[Tool, ...]:
    usual_s = workspaces.settings.timeout_s

    def claim(arguments: Any, scope: Scope) -> Claim:
        leaving = _find_unsandboxed(_parse_needs(arguments.needs, arguments.command, scope, workspaces))
        return Claim(
            command=arguments.command,
            workdir=_find_workdir(arguments.workdir, scope, workspaces),
            is_confined=workspaces.is_confined and leaving is None,
            reveals=workspaces.can_send(scope) or leaving is not None,
            is_untrusted=workspaces.reads_untrusted(scope) or leaving is not None,
            permission=leaving,
            runs_beside_others=leaving is not None and workspaces.has_running(scope.session),
        )

    def effect(arguments: Any, _: Scope) -> Effect:
        return INDEPENDENT if arguments.independent or arguments.background else EXCLUSIVE

    def question(arguments: Any) -> Proposal:
        if any(need.strip() == "unsandboxed" for need in arguments.needs or ()):
            headline = "Run this command outside the sandbox, with your rights: your files, keys and network?"
            return Proposal(headline, arguments.command, "command", model_reason=shorten_reason(arguments.reason or ""))
        how = " in the background" if arguments.background else ""
        return Proposal(f"Run this command{how}?", arguments.command, "command")

    @tool(effect=effect, question=question, timeout_s=None, claim=claim)
    async def terminal(
        command: Annotated[str, "The command, run by bash."],
        run: Run,
        timeout_s: Annotated[
            int | None, f"Time limit in seconds, at most {MAX_TIMEOUT_S}; {usual_s} if omitted."
        ] = None,
        workdir: Annotated[
            str | None, "Folder to run this command in. If omitted, the one the last command ended in."
        ] = None,
        independent: Annotated[
            bool, "True if it may run in parallel with other calls; its shell state is then not kept."
        ] = False,
        background: Annotated[bool, "True for servers and long-running work; manage it with `process`."] = False,
        pty: Annotated[bool, "True for programs that need a terminal."] = False,
        needs: Annotated[
            list[str] | None,
            f"What it needs from outside the sandbox, each item one of {FORMS}; the person is asked. `port` and "
            "`socket` are services on this machine that it uses; `publish` is a port on which it serves something for "
            "the person to look at. Omit it unless a command was blocked or is certain to be.",
        ] = None,
        reason: Annotated[str | None, "Why it needs that, in one short sentence for the person."] = None,
    ) -> str | RichResult:
        """Run a shell command, wait for it to finish, and return its output and exit code.

        The working directory, environment variables and shell functions are kept for the next command. Processes that
        are still running when the command ends are killed; use `background` to keep one running.
        """
        from talaria.tools.command_results import describe_blocked, show_live  # noqa: PLC0415  (not loaded at start)

        workspace = await workspaces.open(run.scope)
        opening = await in_thread(lambda: _parse_needs(needs, command, run.scope, workspaces))
        leaving = _find_unsandboxed(opening)
        if leaving is not None and background:
            raise BadArguments("A command outside the sandbox cannot run in the background.")
        if "\0" in command:
            raise BadArguments("A command cannot contain a NUL character.")
        if len(command.encode("utf-8", "replace")) > MAX_COMMAND_BYTES:
            raise BadArguments(
                f"A command can have at most {MAX_COMMAND_BYTES:,} bytes; write it to a file and run that."
            )
        cwd = (
            await in_thread(lambda: _find_workdir(workdir, run.scope, workspaces))
            if workdir or leaving is not None
            else None
        )
        wanted = SandboxCommand(
            command=command,
            cwd=cwd,
            is_kept=not (independent or background) and leaving is None,
            has_input=background,
            size=SIZE if pty else None,
        )
        output = CapturedOutput(run.spill_file("output"), run.scope.redactor, run.scope.spill_limits)
        if background:
            return await _start_in_background(workspace, wanted, output, run, opening, reason or "")
        limit_s = max(1, min(timeout_s or usual_s, MAX_TIMEOUT_S))
        try:
            async with AsyncExitStack() as ending, AsyncExitStack() as around:
                asking = around.enter_context(workspace.consent.register(run, wanted.command, workspace.cwd))
                ending.push_async_callback(lambda: complete(asking.close_sandbox(workspace)))
                if leaving is None:
                    await asking.open_sandbox(workspace, opening, reason or "")
                sink = await around.enter_async_context(show_live(output, output, run.live))
                if leaving is not None:
                    is_by_grant = await asking.is_by_grant(leaving, wanted.cwd or workspace.cwd)
                    outside = workspace.leave_sandbox(os.environ, is_by_grant=is_by_grant)
                    start = await around.enter_async_context(outside)
                else:
                    start = workspace.start
                asking.started = await start(wanted, sink)
                end = await asking.started.wait_within(limit_s)
                await asking.end()
        finally:
            output.close()
            if leaving is None:
                await workspace.quarantine_changes()
        held = await ask_about_held(workspace, run)
        text = output.text()
        blocked = describe_blocked(workspace, text, end) if leaving is None else ""
        return make_result(text, end, limit_s, f"{blocked}{await _publish_ports(workspace, opening)}{held}")

    return (_describe_network(terminal, workspaces.settings),)


def _describe_network(terminal: FunctionTool, settings: TerminalSettings) -> FunctionTool:
    if settings.backend in ("local", "docker", "ssh"):
        return terminal
    hosts = ", ".join(settings.network)
    network = (
        f"It can reach {hosts} by HTTP; the person is asked when a command first tries to reach another host."
        if hosts
        else "It has no network access: the person is asked when a command first tries to reach a host."
    )
    reach = (
        f"It runs in a sandbox. {network} Only the working directory is shared with the other tools; /tmp is private "
        "and temporary, and ~ is read-only. `git push`, `git fetch`, signed commits and `gh` work without `needs`: the "
        "person is asked, and their credentials stay outside the sandbox."
    )
    spec = msgspec.structs.replace(terminal.spec, description=f"{terminal.spec.description}\n{reach}")
    return msgspec.structs.replace(terminal, spec=spec)


def _parse_needs(needs: list[str] | None, command: str, scope: Scope, workspaces: Workspaces) -> tuple[Permission, ...]:
    """Raises `BadArguments`, `ToolFailed`."""
    if not needs or workspaces.sandbox.level in ("none", "remote"):
        return ()  # at these levels the person is asked about each command as a whole
    if workspaces.sandbox.level == "container":
        raise ToolFailed("What a container can reach is set in config.yaml (terminal.docker): omit `needs`.")
    if len(needs) > MAX_NEEDS:
        raise BadArguments(f"A command can ask for at most {MAX_NEEDS} things; this one asks for {len(needs):,}.")
    project = scope.cwd.resolve()
    found = tuple(parse_need(need, command, project, workspaces.may_be_shared, workspaces.is_secret) for need in needs)
    closed = ("network", "port", "socket", "publish")
    if workspaces.sandbox.level == "landlock" and any(one.kind in closed for one in found):
        raise ToolFailed(
            "At the landlock level there is no network, and it cannot be allowed; the person can install bubblewrap."
        )
    if len(found) > 1 and _find_unsandboxed(found) is not None:
        raise BadArguments("A command outside the sandbox needs nothing else: use only `unsandboxed` in `needs`.")
    return found


def _find_unsandboxed(needs: Sequence[Permission]) -> Permission | None:
    return next((one for one in needs if one.kind == "unsandboxed"), None)


async def _publish_ports(workspace: "Workspace", needs: Sequence[Permission]) -> str:
    ports = [int(one.what[0]) for one in needs if one.kind == "publish"]
    links = [(port, await workspace.publish(port)) for port in ports]
    return "".join(f"\n[sandbox: port {port} is served at {link} (on this machine only)]" for port, link in links)


def _find_workdir(workdir: str | None, scope: Scope, workspaces: Workspaces) -> str:
    """Raises `ToolFailed`."""
    if workdir is None:
        return workspaces.find_workdir(scope)
    if workspaces.sandbox.level in ("container", "remote"):
        return workdir
    place = scope.resolve(workdir)
    if workspaces.sandbox.level == "strict" and is_outside(place, scope):
        return str(place)  # the sandbox says whether it exists: commands must not learn more from us
    if not place.is_dir():
        raise ToolFailed(f"Cannot start the command in {place}: it is not a folder.")
    return str(place)


async def _start_in_background(
    workspace: "Workspace",
    wanted: SandboxCommand,
    output: CapturedOutput,
    run: Run,
    needs: Sequence[Permission],
    reason: str,
) -> RichResult:
    workspace.processes.check_room()
    with workspace.consent.register(run, wanted.command, workspace.cwd) as asking:
        await asking.open_sandbox(workspace, needs, reason)
    attending = ExitStack()
    background = attending.enter_context(workspace.consent.register(run, wanted.command, workspace.cwd, may_ask=False))
    background.copy_answers(asking)
    started = await workspace.start(wanted, output)
    started.when_ended(lambda _: attending.close())
    process = workspace.processes.add(wanted, started, output)
    text = f"Started in the background as {process.id}; manage it with `process`. You will be told when it ends."
    text += await _publish_ports(workspace, needs)
    return RichResult(text, outcome=Outcome("done", f"started in the background as {process.id}"))


MAX_WAIT_S = 600
MAX_TEXT_CHARS = 500_000

Action = Literal["list", "poll", "log", "wait", "write", "close", "kill"]


def process_tools(workspaces: Workspaces) -> tuple[Tool, ...]:
    def claim(arguments: Any, scope: Scope) -> Claim:
        """What is written to a shell is a command, too."""
        is_untrusted = arguments.action in ("poll", "log", "wait") and workspaces.reads_untrusted(scope)
        if arguments.action != "write":
            return Claim(is_untrusted=is_untrusted)
        return Claim(command=arguments.text, is_confined=workspaces.is_confined, reveals=workspaces.can_send(scope))

    def effect(arguments: Any, _: Scope) -> Effect:
        """Writing, closing and killing keep their order within one answer."""
        match arguments.action:
            case "list" | "poll" | "log":
                return READS
            case "wait":
                return INDEPENDENT
            case _:
                return EXCLUSIVE

    def question(arguments: Any) -> Proposal | None:
        if arguments.action != "write":
            return None
        return Proposal(f"Write this to the background process {arguments.id}?", arguments.text, "input")

    @tool(effect=effect, question=question, timeout_s=None, claim=claim)
    async def process(
        action: Annotated[
            Action,
            "list: show all processes; poll: show new output; log: show all output; wait: wait for the process to end; "
            "write: write to its input; close: close its input; kill: kill it and everything it started.",
        ],
        run: Run,
        id: Annotated[str, "The process id that `terminal` returned; not for list."] = "",
        text: Annotated[str, "For write; end it with a newline to send a line."] = "",
        timeout_s: Annotated[int, f"For wait: time limit in seconds, at most {MAX_WAIT_S}."] = 60,
    ) -> str | RichResult:
        """Manage the background processes of this conversation. They are killed when it ends."""
        if len(text) > MAX_TEXT_CHARS:
            raise BadArguments(f"At most {MAX_TEXT_CHARS:,} characters can be written at once.")
        workspace = await workspaces.open(run.scope)
        processes = workspace.processes
        if action == "list":
            lines = [
                f"{one.id}  {one.state}  {one.command.command.partition(chr(10))[0][:100]}" for one in processes.all
            ]
            return "\n".join(lines) or "[no background processes]"
        try:
            done = await _act(action, processes.find(id), text, max(1, min(timeout_s, MAX_WAIT_S)))
        finally:
            await workspace.quarantine_changes()
        return msgspec.structs.replace(done, text=done.text + await ask_about_held(workspace, run))

    return (process,)


async def _act(action: Action, process: BackgroundProcess, text: str, limit_s: float) -> RichResult:
    if action in ("write", "close") and not process.is_running:
        raise ToolFailed(f"{process.id} has ended: {process.state}.")
    state = ""
    match action:
        case "write":
            process.started.write(text.encode("utf-8", "replace"))
            return RichResult(f"Wrote {len(text):,} characters to {process.id}.")
        case "close":
            process.close_input()
            return RichResult(f"Closed the input of {process.id}.")
        case "kill":
            process.is_ended_on_purpose = True
            return RichResult(f"[{process.id} has ended: {describe_end(await complete(process.started.kill()))}]")
        case "wait":
            try:
                async with asyncio.timeout(limit_s):
                    await process.started.wait()
            except TimeoutError:
                state = f"still running after {limit_s:.0f} seconds"
        case "poll" | "log" | "list":
            pass
    output = process.output.text() if action == "log" else process.read_new_output()
    how = f"\n[{state or process.state}]"
    text = f"{output}{how}".lstrip("\n")
    end = process.started.end
    outcome = Outcome("done", "still running") if end is None else make_outcome(end)
    outcome = msgspec.structs.replace(outcome, output_chars=max(0, len(text) - len(how)))
    return RichResult(text, outcome=outcome)
