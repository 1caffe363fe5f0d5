"""`talaria doctor`: looks at everything that must be right, and says what to do about what is not."""

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

FIXES = "Put right what is harmless: permissions, leftovers, settings that plugins wrote among yours, the index."


@click.command("doctor", help="Check that everything is in order.")
@click.option(
    "--fix",
    "is_fixing",
    is_flag=True,
    help="Put right what is harmless: permissions, leftovers, settings of plugins, the index.",
)
@click.option("--security", is_flag=True, help="Try to break out of the sandbox, and look at what else keeps you safe.")
@json_option
@click.pass_context
def command(ctx: click.Context, is_fixing: bool, security: bool, as_json: bool) -> int:
    home = context.home(ctx)
    if security and is_fixing:
        raise BadInput("--security changes nothing; `talaria doctor --fix` does.")
    findings: list[Finding] = []
    for finding in _security(home) if security else _examine(home, is_fixing=is_fixing):
        findings.append(finding)
        if not as_json:  # as they come: it may take a while
            _show(finding, is_loud=security)
    if as_json:
        print_json(findings)
    elif is_fixing:
        fixed = ", ".join(finding.subject for finding in findings if finding.fixed)
        show(f"Put right: {fixed}." if fixed else "There was nothing to put right.")
    return exits.BAD_INPUT if any(finding.verdict == "fail" for finding in findings) else exits.DONE


def _show(finding: Finding, *, is_loud: bool) -> None:
    words = {"ok": "PASS", "warn": "WARN", "fail": "FAIL", "skip": "SKIP"} if is_loud else {}
    word = words.get(finding.verdict, finding.verdict)
    show(runnable(f"{word:>4}  {finding.subject}: {finding.text}"))
    if finding.remedy:
        show(runnable(f"      → {finding.remedy}"))


def _security(home: Path) -> Iterator[Finding]:
    from talaria.cli.health.security import examine  # noqa: PLC0415  (only who asks for it pays for it)

    settings = read_settings_leniently(home)
    yield from checks.problems(settings)
    yield from examine(settings)


def _examine(home: Path, *, is_fixing: bool) -> Iterator[Finding]:
    yield from checks.check_versions()
    yield from checks.check_home(home, is_fixing=is_fixing)
    if os.geteuid() == 0:
        text = "running as root: what is not confined has every right on this machine"
        yield Finding("user", "warn", text, "run it as a person without such rights")
    yield from checks.check_settings(home, is_fixing=is_fixing)
    yield from asyncio.run(checks.check_store(home, is_fixing=is_fixing))
    settings = read_settings_leniently(home)
    if not any(problem.is_unreadable for problem in settings.problems):
        yield from _of(settings)


def _of(settings: Settings) -> Iterator[Finding]:
    """What only settings that can be read tell of; a wrong one counts as if it were not there."""
    from talaria.cli.health import check_models  # noqa: PLC0415  (loads the http client)

    yield from asyncio.run(check_models.check_models(settings))
    yield from _sandbox(settings)
    yield from _report_gone_projects(settings)
    if settings.config.wants_plugins:
        yield from _plugins(settings)
    yield from _mcp(settings)
    yield from check_models.check_platforms(settings)


def _report_gone_projects(settings: Settings) -> Iterator[Finding]:
    for root in find_gone_projects(settings.home):
        yield Finding(
            "projects",
            "warn",
            f"{root} has settings of its own (talaria config set --project), and is not there any more",
            f"if it moved, `talaria config get --project` in its new folder says how to take them along; if it is "
            f"deleted: rm -r {project_file(settings.home, root).parent}",
        )


def _sandbox(settings: Settings) -> Iterator[Finding]:
    from talaria.tools.sandbox.chooser import SandboxChooser  # noqa: PLC0415

    terminal = settings.config.terminal
    sandbox = SandboxChooser(terminal).sandbox
    told = f"{sandbox.level}: {sandbox.about}; `talaria doctor --security` tries it"
    if sandbox.level == "landlock":
        told = f"landlock: {sandbox.about}; commands {WITHOUT_BUBBLEWRAP}"
        yield Finding("sandbox", "warn" if terminal.backend == "auto" else "ok", told, BUBBLEWRAP)
        yield from _useless_at_landlock(settings)
    elif sandbox.level != "none":
        yield Finding("sandbox", "ok", told)
    else:
        is_wanted = terminal.backend == "local"
        yield Finding("sandbox", "warn", told, "set terminal.backend to auto" if is_wanted else BUBBLEWRAP)


def _useless_at_landlock(settings: Settings) -> Iterator[Finding]:
    """Settings without which commands would run, in general and in this folder."""
    general = settings.config.terminal
    try:
        here = read_project_settings(settings.home, settings.environment, general, Path.cwd())
    except TalariaError as error:
        yield Finding("terminal", "fail", str(error))
        return
    for name in ("network", "ports"):
        for given, where, option in ((getattr(general, name), "", ""), (getattr(here, name), " here", " --project")):
            if given and (option == "" or given != getattr(general, name)):
                yield Finding(
                    "terminal",
                    "fail",
                    f"commands do not run{where}: terminal.{name} lists {', '.join(map(str, given))}, and at level "
                    "landlock there is no network",
                    f"{BUBBLEWRAP}, or `talaria config unset{option} terminal.{name}`",
                )


def _plugins(settings: Settings) -> Iterator[Finding]:
    """Loaded as a conversation would load them."""
    from talaria.cli.plugin_view import look_at  # noqa: PLC0415  (who has none does not wait for it)

    try:
        loaded, problems = look_at(settings, lambda some: ([one.key for one in some.host.loaded], some.problems()))
    except TalariaError as error:
        yield Finding("plugins", "fail", str(error), "`talaria plugins list` names them all")
        return
    yield Finding("plugins", "ok", f"loaded: {', '.join(loaded) or 'none'}")
    for key, problem in problems:
        remedy = f"`talaria plugins info {key}` tells more" if key else "`talaria plugins list` names them all"
        yield Finding(f"plugin {key}" if key else "plugins", "warn", problem, remedy)


def _mcp(settings: Settings) -> Iterator[Finding]:
    """Each server that is named, tried; and those that an earlier version has left outside the sandbox."""
    servers = settings.config.all_mcp_servers
    if not servers:
        return
    from talaria.tools.mcp.project_servers import find_earlier  # noqa: PLC0415  (who has none does not wait for it)

    outside = find_earlier(servers, settings.home)
    for name, entry in servers.items():
        if entry.enabled:
            yield asyncio.run(_server(settings, name, entry))
        if name in outside:
            yield Finding(
                f"mcp {name}",
                "warn",
                "runs outside the sandbox, with all your rights, because an earlier version started it so",
                f"`talaria mcp sandbox {name}` puts it in (with --network HOST, --write FOLDER for what it needs), "
                f"`talaria mcp sandbox {name} --off` keeps it outside",
            )


async def _server(settings: Settings, name: str, entry: ServerEntry) -> Finding:
    from talaria.cli.mcp import try_server  # noqa: PLC0415

    subject, remedy = f"mcp {name}", f"see to it, then `talaria mcp test {name}`"
    try:
        trial = await try_server(settings, name, entry)
    except TalariaError as error:
        return Finding(subject, "fail", str(error), remedy)
    if trial.problem:
        return Finding(subject, "fail", trial.problem, remedy)
    if trial.refused:
        allowing = f"`talaria mcp sandbox {name} {' '.join(f'--network {host}' for host in trial.refused)}` allows it"
        return Finding(subject, "warn", f"the sandbox refused it {', '.join(trial.refused)}", allowing)
    if trial.notices:
        return Finding(subject, "warn", " ".join(trial.notices), remedy)
    return Finding(subject, "ok", f"answers; {len(trial.tools)} tools")
