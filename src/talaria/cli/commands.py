"""The tree of commands. Each lives in a module of its own, loaded when it is called; none named means `chat`."""

import importlib
import sys
from collections.abc import Iterable, Sequence
from io import TextIOWrapper

import click

from talaria import __version__
from talaria.cli.arguments import with_default
from talaria.cli.border import guarded
from talaria.model.errors import BadConfig, BadInput

_MODULES = {
    "chat": "talaria.cli.chat",
    "setup": "talaria.cli.first_run.setup",
    "model": "talaria.cli.model",
    "sessions": "talaria.cli.sessions.commands",
    "rollback": "talaria.cli.rollback",
    "usage": "talaria.cli.usage",
    "config": "talaria.cli.config",
    "profiles": "talaria.cli.profiles",
    "import": "talaria.cli.importing",
    "backup": "talaria.cli.keeping.backup",
    "restore": "talaria.cli.keeping.restore",
    "forget": "talaria.cli.keeping.forgetting",
    "tools": "talaria.cli.tools",
    "approvals": "talaria.cli.approvals",
    "plugins": "talaria.cli.plugins",
    "mcp": "talaria.cli.mcp",
    "gateway": "talaria.cli.gateway.commands",
    "pairing": "talaria.cli.gateway.pairing",
    "send": "talaria.cli.gateway.send",
    "doctor": "talaria.cli.health.doctor",
    "completion": "talaria.cli.completion.command",
}
_SUMMARIES = {
    "chat": "Talk to the model (the default).",
    "setup": "Find or choose a model, try it, and make it the default.",
    "model": "List and try models, and choose the default.",
    "sessions": "List, show, search, export and change conversations.",
    "rollback": "Put files back as they were before a turn changed them.",
    "usage": "What model calls have used and cost.",
    "config": "Read and change settings.",
    "profiles": "List, make and delete profiles: each a home of its own.",
    "import": "Bring along what another program keeps.",
    "backup": "Write all that is yours into one file.",
    "restore": "Make a backup the home again.",
    "forget": "Delete what is kept about somebody.",
    "tools": "List tools, and choose which of them the model may use.",
    "approvals": "List what was allowed beforehand, and take it back.",
    "plugins": "List, install, enable and choose plugins.",
    "mcp": "List, add and try MCP servers.",
    "gateway": "Talk to the agent in chats: start, stop and look at it.",
    "pairing": "Let people in who wrote to the agent.",
    "send": "Send a message to a chat.",
    "doctor": "Check that everything is in order.",
    "completion": "Print what completes this command in your shell.",
}
_ALIASES = {"message": "send", "onboard": "setup", "profile": "profiles"}
"""As they are called elsewhere."""


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.summaries(ctx))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _MODULES.get(_ALIASES.get(cmd_name, cmd_name))
        if module is not None:
            return importlib.import_module(module).command
        named = _of_plugins(ctx)
        if cmd_name not in named:
            return None
        from talaria.cli import plugin_commands  # noqa: PLC0415  (loads what plugins need)

        return plugin_commands.command(cmd_name, named[cmd_name])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in (*_ALIASES, *self.summaries(ctx)):
            raise BadInput(_unknown(args, self.summaries(ctx)))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_SUMMARIES.items()))
        named = _of_plugins(ctx)
        if named:
            with formatter.section("Commands of plugins"):
                formatter.write_dl(list(named.items()))

    def summaries(self, ctx: click.Context) -> dict[str, str]:
        """Every command with its help; none of them is loaded for that."""
        return {**_SUMMARIES, **_of_plugins(ctx)}

    def is_ours(self, name: str) -> bool:
        """No code of others is loaded for it."""
        return _ALIASES.get(name, name) in _MODULES


def _unknown(words: Sequence[str], known: Iterable[str]) -> str:
    import shlex  # noqa: PLC0415  (only who errs waits for it)
    from difflib import get_close_matches  # noqa: PLC0415

    near = get_close_matches(words[0], list(known), 1, 0.76)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return f"No such command {words[0]!r}{hint} To ask a question: talaria -q {shlex.quote(' '.join(words))}"


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
    return {
        name: printable(told) for one in agreed for name, told in one.cli.items() if name not in _MODULES | _ALIASES
    }


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
    return guarded(lambda: _invoke(with_default(arguments, _MODULES)))


def _invoke(arguments: list[str]) -> object:
    """Without click's `main`, which would swallow a broken pipe."""
    with talaria.make_context("talaria", arguments) as ctx:
        return talaria.invoke(ctx)
