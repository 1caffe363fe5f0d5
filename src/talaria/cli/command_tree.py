"""The tree of commands. Each lives in a module of its own, loaded when it is called; none named means `chat`."""

import importlib
import sys
from collections.abc import Iterable, Sequence
from io import TextIOWrapper

import click

from talaria import __version__
from talaria.cli import command_name
from talaria.cli.arguments import with_default
from talaria.cli.error_messages import guarded
from talaria.core.errors import BadConfig, BadInput

_COMMANDS = {
    "chat": ("chat", "Talk to the model (the default)."),
    "setup": ("first_run.setup", "Find or choose a model, try it, and make it the default."),
    "model": ("model", "List and try models, and choose the default."),
    "sessions": ("sessions.session_commands", "List, show, search, export and change conversations."),
    "rollback": ("rollback", "Put files back as they were before a turn changed them."),
    "usage": ("usage", "What model calls have used and cost."),
    "config": ("config", "Read and change settings."),
    "profiles": ("profiles", "List, make and delete profiles: each a home of its own."),
    "import": ("importing", "Bring along what another program keeps."),
    "backup": ("backup.backup", "Write all that is yours into one file."),
    "restore": ("backup.restore", "Make a backup the home again."),
    "forget": ("backup.forget", "Delete what is kept about somebody."),
    "tools": ("tools", "List tools, and choose which of them the model may use."),
    "approvals": ("approvals", "List what was allowed beforehand, and take it back."),
    "plugins": ("plugins", "List, install, enable and choose plugins."),
    "mcp": ("mcp", "List, add and try MCP servers."),
    "gateway": ("gateway.gateway_commands", "Talk to the agent in chats: start, stop and look at it."),
    "pairing": ("gateway.pairing_commands", "Let people in who wrote to the agent."),
    "send": ("gateway.send", "Send a message to a chat."),
    "doctor": ("health.doctor", "Check that everything is in order."),
    "completion": ("completion.command", "Print what completes this command in your shell."),
}
"""Where each is in this package, and its help."""
_SUMMARIES = {name: summary for name, (_, summary) in _COMMANDS.items()}
_ALIASES = {"message": "send", "onboard": "setup", "profile": "profiles"}
"""As they are called elsewhere."""


class HelpContext(click.Context):
    """Help that names commands as they can be typed."""

    def get_help(self) -> str:
        return command_name.runnable(super().get_help())


def _with_help(command: click.Command) -> click.Command:
    command.context_class = HelpContext
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            _with_help(inner)
    return command


class LazyGroup(click.Group):
    context_class = HelpContext

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.summaries(ctx))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if self.is_ours(cmd_name):
            module, _ = _COMMANDS[_ALIASES.get(cmd_name, cmd_name)]
            return _with_help(importlib.import_module(f"talaria.cli.{module}").command)
        named = _of_plugins(ctx)
        if cmd_name not in named:
            return None
        from talaria.cli import plugin_view  # noqa: PLC0415  (only who calls it pays for it)

        return plugin_view.command(cmd_name, named[cmd_name])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in (*_ALIASES, *self.summaries(ctx)):
            raise BadInput(_unknown(args, self.summaries(ctx)))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_SUMMARIES.items()))
        if named := _of_plugins(ctx):
            with formatter.section("Commands of plugins"):
                formatter.write_dl(list(named.items()))

    def summaries(self, ctx: click.Context) -> dict[str, str]:
        """Every command with its help; none of them is loaded for that."""
        return {**_SUMMARIES, **_of_plugins(ctx)}

    def is_ours(self, name: str) -> bool:
        """No code of others is loaded for it."""
        return _ALIASES.get(name, name) in _COMMANDS


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
        name: printable(told) for one in agreed for name, told in one.cli.items() if name not in (*_COMMANDS, *_ALIASES)
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
    return guarded(lambda: _invoke(with_default(arguments, _COMMANDS)))


def _invoke(arguments: list[str]) -> object:
    """Without click's `main`, which would swallow a broken pipe."""
    with talaria.make_context(command_name.name(), arguments) as ctx:
        return talaria.invoke(ctx)
