"""`talaria completion`: a script for the shell, which asks this command again at every press of the tab key."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, get_args

import click
from click.shell_completion import CompletionItem, ShellComplete, split_arg_string

from talaria.cli.command_tree import add_default_command, profile_length
from talaria.cli.safe import brief, printable
from talaria.core.errors import TalariaError

if TYPE_CHECKING:
    from talaria.cli.command_tree import LazyGroup

Shell = Literal["bash", "zsh", "fish"]
Item = CompletionItem[str]

FILES = ":files"
"""The answer that leaves it to the shell."""
MAX_TOLD_CHARS = 60

_CURSOR = "\x1f"
_SPECIAL = re.compile(r"([^\w@%+=:,./-])")
_SPECIAL_IN_QUOTES = re.compile(r"[\"'$`\\!]")
_SCRIPTS: Mapping[Shell, str] = {
    "bash": r"""_talaria() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ $line == :files ]]; then
            compopt -o default
        else
            COMPREPLY+=("$line")
        fi
    done < <("$1" completion bash --line "${COMP_LINE:0:COMP_POINT}" --breaks "$COMP_WORDBREAKS" 2>/dev/null)
}
complete -F _talaria talaria
""",
    "zsh": r"""#compdef talaria
_talaria() {
    local -a values shown
    local value told
    while IFS=$'\t' read -r value told; do
        if [[ $value == :files ]]; then
            _files
            return
        fi
        values+=("$value")
        shown+=("$value${told:+  ($told)}")
    done < <("$words[1]" completion zsh --line "${(j: :)words[1,CURRENT]}" 2>/dev/null)
    compadd -l -d shown -a values
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _talaria "$@"
else
    compdef _talaria talaria
fi
""",
    "fish": r"""function __talaria_complete
    for line in (talaria completion fish --line (commandline -cp | string collect) 2>/dev/null)
        if test "$line" = :files
            __fish_complete_path (commandline -ct)
        else
            printf '%s\n' $line
        end
    end
end
complete -c talaria -f -a '(__talaria_complete)'
""",
}


@click.command("completion")
@click.argument("shell", type=click.Choice(get_args(Shell)))
@click.option("--line", hidden=True, help="What is typed, up to the cursor.")
@click.option("--breaks", default="", hidden=True, help="Signs at which the shell begins a word.")
def command(shell: Shell, line: str | None, breaks: str) -> None:
    """Print a script that completes commands, options, sessions, models and settings.

    \b
    bash: eval "$(talaria completion bash)" in ~/.bashrc
    zsh:  eval "$(talaria completion zsh)" in ~/.zshrc, after compinit
    fish: talaria completion fish > ~/.config/fish/completions/talaria.fish
    """
    if line is None:
        click.echo(_SCRIPTS[shell], nl=False)
        return
    *arguments, word = _split_line(line)
    for item in _complete(arguments, word):
        if answer := _answer(item, shell, line, word, breaks):
            click.echo(answer)


def _split_line(line: str) -> list[str]:
    """The words behind `talaria`; the last one is where the cursor stands."""
    words = split_arg_string(line + _CURSOR)
    while "=" in words[0]:  # variables for this one command
        del words[0]
    return [*words[1:-1], words[-1].removesuffix(_CURSOR)]


def _answer(item: Item, shell: Shell, line: str, word: str, breaks: str) -> str:
    """As the shell puts it on the line; empty: it would not be safe there. Only bash leaves the quoting to us."""
    if item.type != "plain":
        return FILES
    option, is_joined, _ = word.partition("=")
    value = f"{option}={item.value}" if is_joined and word.startswith("--") else item.value
    if shell != "bash":
        told = brief(printable(item.help or ""), MAX_TOLD_CHARS)
        return f"{value}\t{told}" if told else value
    if _is_quoted(line):  # there nothing begins a word
        return "" if _SPECIAL_IN_QUOTES.search(value) else value
    begun = max((at + 1 for at, sign in enumerate(word) if sign in breaks and not _SPECIAL.match(sign)), default=0)
    return _SPECIAL.sub(r"\\\1", value[begun:])


def _is_quoted(line: str) -> bool:
    """The cursor stands inside of quotes."""
    try:
        shlex.split(line)
    except ValueError:
        return True
    return False


def _complete(arguments: Sequence[str], word: str) -> Sequence[Item]:
    """Without a command, options are those of `chat`, too."""
    from talaria.cli.command_tree import talaria  # noqa: PLC0415  (it loads us)

    start = profile_length(arguments)
    with talaria.make_context("talaria", list(arguments[:start]), resilient_parsing=True) as ctx:
        ctx.obj = ctx.params.get("profile")
        known = talaria.summaries(ctx)
    is_first = len(arguments) == start
    if is_first and not word.startswith("-"):
        return [Item(name, help=told) for name, told in known.items() if name.startswith(word)]
    try:
        whole = add_default_command(arguments, known) if len(arguments) > start else arguments
        lines = (whole, [*arguments, "chat"]) if is_first else (whole,)
        found = [item for line in lines for item in _ask_command(talaria, line, word)]
    except (TalariaError, click.ClickException):
        return ()
    return list({item.value: item for item in found}.values())


def _ask_command(talaria: "LazyGroup", arguments: Sequence[str], word: str) -> list[Item]:
    from talaria.cli.completion.values import equip  # noqa: PLC0415  (loads what knows sessions, models, settings)

    equip(talaria)
    name = next(iter(arguments[profile_length(arguments) :]), None)
    if name is not None:
        if not talaria.is_builtin(name):
            return []
        with click.Context(talaria) as ctx:
            equip(talaria.get_command(ctx, name))
    return ShellComplete(talaria, {}, "talaria", "").get_completions(list(arguments), word)
