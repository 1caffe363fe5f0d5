"""`talaria doctor`: check everything that Talaria needs, and say how to fix what is wrong."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import click

from talaria.app.settings import Settings, read_settings_leniently
from talaria.cli import context, exits
from talaria.cli.command_name import runnable
from talaria.cli.command_output import json_option, print_json
from talaria.cli.context import BUBBLEWRAP, WITHOUT_BUBBLEWRAP
from talaria.cli.health import checks
from talaria.cli.health.checks import Finding
from talaria.cli.notices import show
from talaria.config.project_settings import find_gone_projects, project_file, read_project_settings
from talaria.core.errors import BadInput, TalariaError
from talaria.tools.mcp.server_entries import ServerEntry


@click.command("doctor", help="Check that everything works.")
@click.option(
    "--fix",
    "is_fixing",
    is_flag=True,
    help="Fix what is safe to fix: permissions, leftover files, plugin settings among yours, the search index.",
)
@click.option("--security", is_flag=True, help="Try to break out of the sandbox, and check what else keeps you safe.")
@json_option
@click.pass_context
def command(ctx: click.Context, is_fixing: bool, security: bool, as_json: bool) -> int:
    home = context.home(ctx)
    if security and is_fixing:
        raise BadInput("--security changes nothing; run `talaria doctor --fix` separately.")
    if security:
        from talaria.cli.health.security import check_security  # noqa: PLC0415  (loads the sandbox and the tools)

        coming, words = check_security(home), {"ok": "PASS", "warn": "WARN", "fail": "FAIL", "skip": "SKIP"}
    else:
        coming, words = _examine(home, is_fixing=is_fixing), {}
    findings: list[Finding] = []
    for finding in coming:
        findings.append(finding)
        if not as_json:  # one by one: some checks take a while
            show(runnable(f"{words.get(finding.verdict, finding.verdict):>4}  {finding.subject}: {finding.text}"))
            if finding.remedy:
                show(runnable(f"      → {finding.remedy}"))
    if as_json:
        print_json(findings)
    elif is_fixing:
        fixed = ", ".join(finding.subject for finding in findings if finding.fixed)
        show(f"Fixed: {fixed}." if fixed else "There was nothing to fix.")
    return exits.BAD_INPUT if any(finding.verdict == "fail" for finding in findings) else exits.DONE


def _examine(home: Path, *, is_fixing: bool) -> Iterator[Finding]:
    yield from checks.check_versions()
    yield from checks.check_home(home, is_fixing=is_fixing)
    if os.geteuid() == 0:
        yield Finding("user", "warn", checks.ROOT, "run it as a normal user")
    yield from checks.check_settings(home, is_fixing=is_fixing)
    yield from checks.check_store(home, is_fixing=is_fixing)
    settings = read_settings_leniently(home)
    if any(problem.is_unreadable for problem in settings.problems):
        return
    from talaria.cli.health import check_models  # noqa: PLC0415  (loads the http client)

    yield from asyncio.run(check_models.check_models(settings))
    yield from _check_sandbox(settings)
    for root in find_gone_projects(home):
        yield Finding(
            "projects",
            "warn",
            f"{root} has its own settings (talaria config set --project) but no longer exists",
            "if it moved, run `talaria config get --project` in its new folder to see how to bring them along; "
            f"if it was deleted: rm -r {project_file(home, root).parent}",
        )
    if settings.config.wants_plugins:
        from talaria.cli.plugin_view import inspect_plugins  # noqa: PLC0415  (loads the plugin host)

        try:  # as a conversation would load them
            loaded, problems = inspect_plugins(
                settings, lambda some: ([one.key for one in some.host.loaded], some.problems())
            )
        except TalariaError as error:
            yield Finding("plugins", "fail", str(error), "see `talaria plugins list`")
        else:
            yield Finding("plugins", "ok", f"loaded: {', '.join(loaded) or 'none'}")
            for key, problem in problems:
                remedy = f"see `talaria plugins info {key}`" if key else "see `talaria plugins list`"
                yield Finding(f"plugin {key}" if key else "plugins", "warn", problem, remedy)
    yield from _check_servers(settings)
    yield from check_models.check_platforms(settings)


def _check_sandbox(settings: Settings) -> Iterator[Finding]:
    from talaria.tools.sandbox.chooser import SandboxChooser  # noqa: PLC0415

    terminal = settings.config.terminal
    sandbox = SandboxChooser(terminal).sandbox
    text = f"{sandbox.level}: {sandbox.about}; `talaria doctor --security` tests it"
    if sandbox.level == "none":
        remedy = "set terminal.backend to auto" if terminal.backend == "local" else BUBBLEWRAP
        yield Finding("sandbox", "warn", text, remedy)
        return
    if sandbox.level != "landlock":
        yield Finding("sandbox", "ok", text)
        return
    text = f"landlock: {sandbox.about}; commands {WITHOUT_BUBBLEWRAP}"
    yield Finding("sandbox", "warn" if terminal.backend == "auto" else "ok", text, BUBBLEWRAP)
    try:
        here = read_project_settings(settings.home, settings.environment, terminal, Path.cwd())
    except TalariaError as error:
        yield Finding("terminal", "fail", str(error))
        return
    for name in ("network", "ports"):  # with these, no command runs at this level
        general, own = getattr(terminal, name), getattr(here, name)
        for hosts, where, option in ((general, "", ""), (own if own != general else (), " here", " --project")):
            if hosts:
                yield Finding(
                    "terminal",
                    "fail",
                    f"commands cannot run{where}: terminal.{name} lists {', '.join(map(str, hosts))}, but level "
                    "landlock has no network",
                    f"{BUBBLEWRAP}, or `talaria config unset{option} terminal.{name}`",
                )


def _check_servers(settings: Settings) -> Iterator[Finding]:
    """Each MCP server is started; those that an earlier version left outside the sandbox are named."""
    servers = settings.config.all_mcp_servers
    if not servers:
        return
    from talaria.tools.mcp.project_servers import find_earlier  # noqa: PLC0415  (only needed if there are any)

    outside = find_earlier(servers, settings.home)
    for name, entry in servers.items():
        if entry.enabled:
            yield _check_server(settings, name, entry)
        if name in outside:
            yield Finding(
                f"mcp {name}",
                "warn",
                "runs outside the sandbox, with all your permissions, because an earlier version started it that way",
                f"`talaria mcp sandbox {name}` moves it inside (--network HOST, --write FOLDER grant what it needs); "
                f"`talaria mcp sandbox {name} --off` keeps it outside",
            )


def _check_server(settings: Settings, name: str, entry: ServerEntry) -> Finding:
    from talaria.cli.mcp import try_server  # noqa: PLC0415  (only needed if there are any)

    subject, remedy = f"mcp {name}", f"fix it, then run `talaria mcp test {name}`"
    try:
        trial = asyncio.run(try_server(settings, name, entry))
    except TalariaError as error:
        return Finding(subject, "fail", str(error), remedy)
    if trial.problem:
        return Finding(subject, "fail", trial.problem, remedy)
    if trial.refused:
        allow = f"`talaria mcp sandbox {name} {' '.join(f'--network {host}' for host in trial.refused)}` allows it"
        return Finding(subject, "warn", f"the sandbox blocked its access to {', '.join(trial.refused)}", allow)
    if trial.notices:
        return Finding(subject, "warn", " ".join(trial.notices), remedy)
    return Finding(subject, "ok", f"answers; {len(trial.tools)} tools")
