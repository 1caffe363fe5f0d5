"""The tree of commands. Each lives in a module of its own, loaded when it is called; none named means `chat`."""

import importlib
import sys
from collections.abc import Sequence
from io import TextIOWrapper

import click

from talaria import __version__
from talaria.cli.exits import guarded
from talaria.model.errors import BadConfig

_MODULES = {
    "chat": "talaria.cli.chat",
    "model": "talaria.cli.model",
    "sessions": "talaria.cli.sessions",
    "rollback": "talaria.cli.rollback",
    "usage": "talaria.cli.usage",
    "config": "talaria.cli.config",
    "import": "talaria.cli.importing",
    "tools": "talaria.cli.tools",
    "approvals": "talaria.cli.approvals",
    "plugins": "talaria.cli.plugins",
    "mcp": "talaria.cli.mcp",
    "gateway": "talaria.cli.gateway",
    "pairing": "talaria.cli.pairing",
    "doctor": "talaria.cli.doctor",
}
_SUMMARIES = {
    "chat": "Talk to the model (the default).",
    "model": "List and try models, and choose the default.",
    "sessions": "List, show, search, export and change conversations.",
    "rollback": "Put files back as they were before a turn changed them.",
    "usage": "What model calls have used and cost.",
    "config": "Read and change settings.",
    "import": "Bring along what another program keeps.",
    "tools": "List tools, and choose which of them the model may use.",
    "approvals": "List what was allowed beforehand, and take it back.",
    "plugins": "List, install, enable and choose plugins.",
    "mcp": "List, add and try MCP servers.",
    "gateway": "Talk to the agent in chats: start, stop and look at it.",
    "pairing": "Let people in who wrote to the agent.",
    "doctor": "Check that everything is in order.",
}


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_MODULES, *_of_plugins(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _MODULES.get(cmd_name)
        if module is not None:
            return importlib.import_module(module).command
        named = _of_plugins(ctx)
        if cmd_name not in named:
            return None
        from talaria.cli import plugin_commands  # noqa: PLC0415  (loads what plugins need)

        return plugin_commands.command(cmd_name, named[cmd_name])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_SUMMARIES.items()))
        named = _of_plugins(ctx)
        if named:
            with formatter.section("Commands of plugins"):
                formatter.write_dl(list(named.items()))


def _of_plugins(ctx: click.Context) -> dict[str, str]:
    """With their help. What is ours is not theirs to name."""
    from talaria.config import paths  # noqa: PLC0415

    file = paths.consents_file(paths.home(ctx.find_root().obj))
    if not file.exists():
        return {}
    from talaria.cli.safe import printable  # noqa: PLC0415
    from talaria.plugins import consent  # noqa: PLC0415

    try:
        agreed = consent.read(file).values()
    except BadConfig:  # told by whoever needs it; help is still help
        return {}
    return {name: printable(told) for one in agreed for name, told in one.cli.items() if name not in _MODULES}


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", message="talaria %(version)s")
@click.option("-p", "--profile", metavar="NAME", help="Use the home of this profile.")
@click.pass_context
def talaria(ctx: click.Context, profile: str | None) -> None:
    """A self-hosted AI agent that loses nothing and does nothing twice.

    Without a command it is `chat`, whose options (-q, -c, -r, -m, …) `talaria chat --help` lists.
    """
    ctx.obj = profile


def run(arguments: Sequence[str]) -> int:
    """The exit code."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # what the terminal's encoding cannot hold must not end a turn
            stream.reconfigure(errors="replace")
    return guarded(lambda: _invoke(_with_default(arguments)))


def _invoke(arguments: list[str]) -> object:
    """Without click's `main`, which would swallow a broken pipe."""
    with talaria.make_context("talaria", arguments) as ctx:
        return talaria.invoke(ctx)


def _with_default(arguments: Sequence[str]) -> list[str]:
    """`talaria -c` means `talaria chat -c`; the profile may stand before the command."""
    given = list(arguments)
    first = given[0] if given else ""
    is_joined = first.startswith(("--profile=", "-p")) and first != "-p"
    start = 2 if first in ("-p", "--profile") else 1 if is_joined else 0
    rest = given[start:]
    if not rest or (rest[0].startswith("-") and rest[0] not in ("-h", "--help", "-V", "--version")):
        return [*given[:start], "chat", *rest]
    return given
