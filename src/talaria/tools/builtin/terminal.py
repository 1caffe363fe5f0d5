"""Shell commands in the session's workspace."""

import os
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Annotated, Any

import msgspec

from talaria.core.aio import in_thread
from talaria.core.errors import BadArguments, ToolFailed
from talaria.core.messages import Outcome
from talaria.tools.base import EXCLUSIVE, INDEPENDENT, Claim, Effect, Run, Scope, Shown, Tool
from talaria.tools.blocked import describe_blocked
from talaria.tools.builtin.held import ask_about_held
from talaria.tools.builtin.located import is_outside
from talaria.tools.function import FunctionTool, tool
from talaria.tools.live import shown_live
from talaria.tools.output import Output
from talaria.tools.person import Proposal
from talaria.tools.processes import with_output
from talaria.tools.sandbox.host.shell import MAX_COMMAND_BYTES
from talaria.tools.sandbox.running_command import SandboxCommand
from talaria.tools.sandbox.sandbox_settings import TerminalSettings
from talaria.tools.sandbox_grants import told_reason
from talaria.tools.sandbox_permissions import FORMS, Permission, needed
from talaria.tools.workspace import Workspace
from talaria.tools.workspaces import Workspaces

MAX_TIMEOUT_S = 600
MAX_NEEDS = 8
"""Of one command: more questions nobody reads."""
SIZE = (40, 120)
"""Of a terminal, in rows and columns."""


def terminal_tools(workspaces: Workspaces) -> tuple[Tool, ...]:
    usual_s = workspaces.settings.timeout_s

    def claim(arguments: Any, scope: Scope) -> Claim:
        leaving = _leaves_sandbox(_needs(arguments.needs, arguments.command, scope, workspaces))
        return Claim(
            command=arguments.command,
            place=_place(arguments.workdir, scope, workspaces),
            is_confined=workspaces.is_confined and leaving is None,
            reveals=workspaces.can_send(scope) or leaving is not None,
            is_untrusted=workspaces.brings_strange_words(scope) or leaving is not None,
            permission=leaving,
            runs_beside_others=leaving is not None and workspaces.has_running(scope.session),
        )

    @tool(effect=_effect, question=_question, timeout_s=None, claim=claim)
    async def terminal(
        command: Annotated[str, "The command, run by bash."],
        run: Run,
        timeout_s: Annotated[
            int | None, f"Seconds until it is stopped, at most {MAX_TIMEOUT_S}; {usual_s} if left out."
        ] = None,
        workdir: Annotated[str | None, "Where to run this one; left out, where the last command ended."] = None,
        independent: Annotated[
            bool, "True if it may run at the same time as its neighbours; it then leaves no state."
        ] = False,
        background: Annotated[
            bool, "True for servers and long work: it goes on, and `process` looks after it."
        ] = False,
        pty: Annotated[bool, "True for programs that need a terminal."] = False,
        needs: Annotated[
            list[str] | None,
            f"What it needs outside the sandbox, each one {FORMS}; the person is asked. `port` is a service of this "
            "machine that it uses, `publish` a port on which it serves something that the person may look at. Leave it "
            "out unless a command was blocked, or surely would be.",
        ] = None,
        reason: Annotated[str | None, "Why it needs that, in one short sentence for the person."] = None,
    ) -> str | Shown:
        """Run a shell command and wait for its end; answers its output and exit code.

        The folder, environment variables and functions it leaves are there for the next command. Other processes that
        it leaves behind are ended: start those with `background`.
        """
        workspace = await workspaces.open(run.scope)
        opening = await in_thread(lambda: _needs(needs, command, run.scope, workspaces))
        leaving = _leaves_sandbox(opening)
        is_outside = leaving is not None
        if is_outside and background:
            raise BadArguments("A command outside the sandbox cannot run in the background.")
        wanted = SandboxCommand(
            command=_checked(command),
            cwd=await in_thread(lambda: _place(workdir, run.scope, workspaces)) if workdir or is_outside else None,
            is_kept=not (independent or background or is_outside),
            has_input=background,
            size=SIZE if pty else None,
        )
        output = Output(run.spill("output"), run.scope.redactor, run.scope.spill_limits)
        if background:
            return await _begun(workspace, wanted, output, run, opening, reason or "")
        limit_s = max(1, min(timeout_s or usual_s, MAX_TIMEOUT_S))
        try:
            async with AsyncExitStack() as around:
                asking = around.enter_context(workspace.consent.attend(run, wanted.command, workspace.cwd))
                if leaving is None:
                    await asking.open(workspace, opening, reason or "")
                sink = await around.enter_async_context(shown_live(output, output, run.live))
                if leaving is not None:
                    is_by_grant = await asking.is_by_grant(leaving, wanted.cwd or workspace.cwd)
                    outside = workspace.leave_sandbox(os.environ, is_by_grant=is_by_grant)
                    start = await around.enter_async_context(outside)
                else:
                    start = workspace.start
                asking.started = await start(wanted, sink)
                end = await asking.started.awaited(limit_s)
                await asking.end()
        finally:
            output.close()
            if not is_outside:
                await workspace.tidy()
        held = await ask_about_held(workspace, run)
        text = output.text()
        blocked = "" if is_outside else describe_blocked(workspace, text, end.code if end else None)
        return with_output(text, end, limit_s, f"{blocked}{await _published(workspace, opening)}{held}")

    return (_about_network(terminal, workspaces.settings),)


def _about_network(terminal: FunctionTool, settings: TerminalSettings) -> FunctionTool:
    if settings.backend in ("local", "docker", "ssh"):
        return terminal
    hosts = ", ".join(settings.network)
    network = f"{hosts}, by HTTP" if hosts else "nothing"
    reach = (
        f"It runs in a sandbox: of the network it reaches {network}, and what the person allows: they are asked when "
        "a command first tries another host. Of the files only the working directory is shared "
        "with the other tools; /tmp is its own and thrown away, and ~ cannot be written. `git push`, `git fetch`, "
        "signed commits and `gh` need nothing else: the person is asked, and their login stays outside."
    )
    spec = msgspec.structs.replace(terminal.spec, description=f"{terminal.spec.description}\n{reach}")
    return msgspec.structs.replace(terminal, spec=spec)


def _needs(needs: list[str] | None, command: str, scope: Scope, workspaces: Workspaces) -> tuple[Permission, ...]:
    """Raises `BadArguments`, `ToolFailed`."""
    if not needs or workspaces.sandbox.level in ("none", "remote"):
        return ()  # there each command is asked about as a whole
    if workspaces.sandbox.level == "container":
        raise ToolFailed("What a container reaches is set in config.yaml (terminal.docker): leave `needs` out.")
    if len(needs) > MAX_NEEDS:
        raise BadArguments(f"A command can ask for at most {MAX_NEEDS} things; this one asks for {len(needs):,}.")
    found = tuple(needed(need, command, scope.cwd.resolve(), workspaces.may_be_shared) for need in needs)
    if workspaces.sandbox.level == "landlock" and any(one.kind in ("network", "port", "publish") for one in found):
        raise ToolFailed(
            "At the landlock level there is no network, and none can be allowed; the person can install bubblewrap."
        )
    if len(found) > 1 and _leaves_sandbox(found) is not None:
        raise BadArguments("A command outside the sandbox needs nothing else: leave only `unsandboxed` in `needs`.")
    return found


def _leaves_sandbox(needs: Sequence[Permission]) -> Permission | None:
    return next((one for one in needs if one.kind == "unsandboxed"), None)


async def _published(workspace: Workspace, needs: Sequence[Permission]) -> str:
    ports = [int(one.what[0]) for one in needs if one.kind == "publish"]
    links = [(port, await workspace.publish(port)) for port in ports]
    return "".join(f"\n[sandbox: port {port} is served at {link} (on this machine only)]" for port, link in links)


def _effect(arguments: Any, _: Scope) -> Effect:
    return INDEPENDENT if arguments.independent or arguments.background else EXCLUSIVE


def _question(arguments: Any) -> Proposal:
    how = " in the background" if arguments.background else ""
    if any(need.strip() == "unsandboxed" for need in arguments.needs or ()):
        headline = "Run this command outside the sandbox, with your rights: your files, keys and network?"
        return Proposal(headline, arguments.command, "command", model_reason=told_reason(arguments.reason or ""))
    return Proposal(f"Run this command{how}?", arguments.command, "command")


def _checked(command: str) -> str:
    if "\0" in command:
        raise BadArguments("A command cannot hold a NUL.")
    if len(command.encode("utf-8", "replace")) > MAX_COMMAND_BYTES:
        raise BadArguments(f"A command has at most {MAX_COMMAND_BYTES:,} bytes; write it into a file and run that.")
    return command


def _place(workdir: str | None, scope: Scope, workspaces: Workspaces) -> str:
    """Where it would run. Raises `ToolFailed`."""
    if workdir is None:
        return workspaces.place(scope)
    if workspaces.sandbox.level in ("container", "remote"):
        return workdir
    place = scope.resolve(workdir)
    if workspaces.sandbox.level == "strict" and is_outside(place, scope):
        return str(place)  # what is there is told by the sandbox: commands do not learn more from us than from it
    if not place.is_dir():
        raise ToolFailed(f"Cannot start the command in {place}: it is no folder.")
    return str(place)


async def _begun(
    workspace: Workspace, wanted: SandboxCommand, output: Output, run: Run, needs: Sequence[Permission], reason: str
) -> Shown:
    workspace.processes.check_room()
    with workspace.consent.attend(run, wanted.command, workspace.cwd) as asking:
        await asking.open(workspace, needs, reason)
    attending = ExitStack()
    background = attending.enter_context(workspace.consent.attend(run, wanted.command, workspace.cwd, may_ask=False))
    background.take_over(asking)
    started = await workspace.start(wanted, output)
    started.when_ended(lambda _: attending.close())
    process = workspace.processes.add(wanted, started, output)
    told = f"Started in the background as {process.id}; use `process` to look after it. You are told when it ends."
    told += await _published(workspace, needs)
    return Shown(told, outcome=Outcome("done", f"started in the background as {process.id}"))
