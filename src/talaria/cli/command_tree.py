"""The tree of commands. Each command has its own module, which is loaded when needed; the default is `chat`.

Every error becomes one sentence on stderr and an exit code; nobody sees a traceback.
"""

import importlib
import logging
import shlex
from collections.abc import Container, Iterator, Mapping, Sequence

import click

from talaria import __version__
from talaria.cli import command_name
from talaria.cli.exits import BAD_INPUT, BUG, DONE, INTERRUPTED, code_for
from talaria.cli.notices import complain, discard_output, replace_unencodable
from talaria.core.errors import BadConfig, BadInput, TalariaError

log = logging.getLogger(__name__)

_COMMANDS = {
    "chat": ("chat_command", "Talk to the model (the default)."),
    "setup": ("first_run.setup", "Find or choose a model, try it, and make it the default."),
    "model": ("model", "List and try models, and choose the default."),
    "attach": ("attach", "Watch a conversation that runs in another process; steer and stop it."),
    "sessions": ("sessions.session_commands", "List, show, search, export and edit conversations."),
    "rollback": ("rollback_command", "Put files back as they were before a turn changed them."),
    "usage": ("usage", "Show what model calls have used and cost."),
    "config": ("config_command", "Show and change settings."),
    "profiles": ("profiles", "List, create and delete profiles; each has a home of its own."),
    "import": ("importing", "Import your data from another program."),
    "backup": ("backup.backup", "Write everything in your home to one file."),
    "restore": ("backup.restore", "Restore your home from a backup."),
    "forget": ("backup.forget", "Delete what is stored about a person."),
    "tools": ("tools", "List tools, and choose which ones the model may use."),
    "approvals": ("approvals", "List and revoke standing approvals."),
    "plugins": ("plugins", "List, install, enable and choose plugins."),
    "mcp": ("mcp", "List, add and try MCP servers."),
    "gateway": ("gateway.gateway_commands", "Start, stop and inspect the gateway, which answers chats."),
    "api": ("api_command", "Serve the HTTP API without chats, and manage its tokens."),
    "pairing": ("gateway.pairing_commands", "Approve people who wrote to the agent."),
    "send": ("gateway.send", "Send a message to a chat."),
    "doctor": ("health.doctor", "Check that everything works."),
    "completion": ("completion.command", "Print a completion script for your shell."),
}
"""By command: its module in this package, and its help."""
_SUMMARIES = {name: summary for name, (_, summary) in _COMMANDS.items()}
_ALIASES = {"message": "send", "onboard": "setup", "profile": "profiles"}
"""What other agents call these commands."""
_TOP_LEVEL_FLAGS = ("-h", "--help", "-V", "--version")


class HelpContext(click.Context):
    """Its help spells commands so that they can be typed."""

    def get_help(self) -> str:
        return command_name.runnable(super().get_help())


class ListingGroup(click.Group):
    """Runs `list` by default."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["list"])


class LazyGroup(click.Group):
    context_class = HelpContext

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.summaries(ctx))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if self.is_builtin(cmd_name):
            module, _ = _COMMANDS[_ALIASES.get(cmd_name, cmd_name)]
            return _with_help(importlib.import_module(f"talaria.cli.{module}").command)
        named = _plugin_commands(ctx)
        if cmd_name not in named:
            return None
        from talaria.cli import plugin_view  # noqa: PLC0415  (only needed for plugins' commands)

        return plugin_view.command(cmd_name, named[cmd_name])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = [*_ALIASES, *self.summaries(ctx)]
        if args[0] not in known:
            from difflib import get_close_matches  # noqa: PLC0415  (only needed after a mistake)

            near = get_close_matches(args[0], self.summaries(ctx), 1, 0.76)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            question = shlex.quote(" ".join(args))
            raise BadInput(f"No such command {args[0]!r}{hint} To ask a question: talaria -q {question}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_SUMMARIES.items()))
        if named := _plugin_commands(ctx):
            with formatter.section("Plugin commands"):
                formatter.write_dl(list(named.items()))

    def summaries(self, ctx: click.Context) -> dict[str, str]:
        """Every command with its help. Loads none of them."""
        return {**_SUMMARIES, **_plugin_commands(ctx)}

    def is_builtin(self, name: str) -> bool:
        return _ALIASES.get(name, name) in _COMMANDS


def _with_help(command: click.Command) -> click.Command:
    command.context_class = HelpContext
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            _with_help(inner)
    return command


def _plugin_commands(ctx: click.Context) -> dict[str, str]:
    """Plugins' commands with their help. A plugin cannot replace a built-in command."""
    from talaria.config import paths  # noqa: PLC0415

    file = paths.consents_file(paths.home(ctx.find_root().obj))
    if not file.exists():
        return {}
    from talaria.cli.safe import printable  # noqa: PLC0415
    from talaria.plugins import consent  # noqa: PLC0415

    try:
        agreed = consent.read(file).values()
    except BadConfig:  # reported where the file is needed; help must work without it
        return {}
    return {
        name: printable(about)
        for one in agreed
        for name, about in one.cli.items()
        if name not in (*_COMMANDS, *_ALIASES)
    }


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", message="talaria %(version)s")
@click.option("-p", "--profile", metavar="NAME", help="Use this profile's home.")
@click.pass_context
def talaria(ctx: click.Context, profile: str | None) -> None:
    """A self-hosted AI agent that loses nothing and does nothing twice.

    Without a command, `chat` runs; `talaria chat --help` lists its options (-q, -c, -r, -m, …).
    """
    ctx.obj = profile


def run(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    replace_unencodable()
    try:  # without click's `main`, which would swallow a broken pipe
        with talaria.make_context(command_name.name(), add_default_command(arguments, _COMMANDS)) as ctx:
            result = talaria.invoke(ctx)
    except (Exception, KeyboardInterrupt) as fault:  # noqa: BLE001  (reported)
        return report_error(fault)
    return result if isinstance(result, int) else DONE


def report_error(fault: BaseException) -> int:
    """Returns the exit code."""
    match fault:
        case TalariaError():
            complain(str(fault))
            return code_for(fault)
        case click.exceptions.Exit():
            return fault.exit_code
        case click.ClickException():
            fault.show()
            return BAD_INPUT
        case KeyboardInterrupt() | click.Abort():
            complain("Interrupted.")
            return INTERRUPTED
        case BrokenPipeError():
            discard_output()
            return DONE
        case _:
            log.error("a command failed", exc_info=fault)
            complain(f"Internal error ({type(fault).__name__}: {fault}). `talaria doctor` may say more.")
            return BUG


def add_default_command(arguments: Sequence[str], commands: Container[str]) -> list[str]:
    """`talaria -c` means `talaria chat -c`. The profile and options of `chat` may come before the command."""
    start = profile_length(arguments)
    before, rest = list(arguments[:start]), list(arguments[start:])
    if rest[:1] == ["chat"]:
        del rest[0]
    elif rest and (not rest[0].startswith("-") or rest[0] in _TOP_LEVEL_FLAGS):
        return [*before, *rest]
    return [*before, "chat", *(_chat_arguments(rest, commands) if rest else ())]


def profile_length(arguments: Sequence[str]) -> int:
    """How many of the arguments name the profile."""
    first = arguments[0] if arguments else ""
    if first in ("-p", "--profile"):
        return 2
    return 1 if first.startswith(("--profile=", "-p")) else 0


def _chat_arguments(arguments: Sequence[str], commands: Container[str]) -> Sequence[str]:
    """Removes the word `chat` if it comes after some options."""
    from talaria.cli.chat_command import command  # noqa: PLC0415  (it will run next)

    flags = {name: one.is_flag for one in command.params if isinstance(one, click.Option) for name in one.opts}
    found = next(_words(arguments, flags), None)
    if found is None:
        return arguments
    options, word, rest = arguments[:found], arguments[found], arguments[found + 1 :]
    if options and word == "chat":
        return _chat_arguments([*options, *rest], commands)
    is_known = all(_option_name(one) in flags for one in options if one.startswith("-"))
    if options and word in commands:
        plain = shlex.join(["talaria", word, *rest])
        if is_known:
            raise BadInput(f"{_option_name(options[0])} is an option of `talaria chat`; without it: {plain}")
        raise BadInput(f"Put options after the command: {plain} {shlex.join(options)}")
    if not is_known:  # click reports which option is unknown
        return arguments
    question = shlex.join(["talaria", *options, "-q", word])
    resume = f"; to resume that conversation: talaria -r {shlex.quote(word)}" if "-c" in options else ""
    raise BadInput(f"{word!r} is not an option. To send it as a question: {question}{resume}")


def _words(arguments: Sequence[str], flags: Mapping[str, bool]) -> Iterator[int]:
    """The positions of arguments that are neither options nor their values."""
    is_value = False
    for number, one in enumerate(arguments):
        if is_value:
            is_value = False
        elif one == "-" or not one.startswith("-"):
            yield number
        elif one.startswith("--"):
            is_value = not flags.get(one, True)
        else:  # several short flags may share a dash, and the last may take a value
            is_value = next((at for at, char in enumerate(one) if flags.get(f"-{char}") is False), 0) == len(one) - 1


def _option_name(option: str) -> str:
    """`--model` of `--model=x`, `-m` of `-mx`."""
    return option.partition("=")[0] if option.startswith("--") else option[:2]
