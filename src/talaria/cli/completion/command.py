"""`talaria completion`: a script for the shell, which calls this command at every press of the tab key."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import click
from click.shell_completion import CompletionItem, ShellComplete, split_arg_string

from talaria.cli.command_tree import add_default_command, profile_length
from talaria.cli.safe import brief, printable
from talaria.core.errors import TalariaError

Shell = Literal["bash", "zsh", "fish"]
Item = CompletionItem[str]

FILES = ":files"
"""The answer that leaves completion to the shell."""
MAX_HELP_CHARS = 60

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
    local value help
    while IFS=$'\t' read -r value help; do
        if [[ $value == :files ]]; then
            _files
            return
        fi
        values+=("$value")
        shown+=("$value${help:+  ($help)}")
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
@click.option("--line", hidden=True, help="The line up to the cursor.")
@click.option("--breaks", default="", hidden=True, help="Characters that start a new word in the shell.")
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
    words = split_arg_string(line + _CURSOR)
    while "=" in words[0]:  # variables for this one command
        del words[0]
    arguments, word = words[1:-1], words[-1].removesuffix(_CURSOR)
    for item in _complete(arguments, word):
        if answer := _format_item(item, shell, line, word, breaks):
            click.echo(answer)


def _format_item(item: Item, shell: Shell, line: str, word: str, breaks: str) -> str:
    """As the shell inserts it; empty if that would not be safe. Only bash leaves the quoting to us."""
    if item.type != "plain":
        return FILES
    option, is_joined, _ = word.partition("=")
    value = f"{option}={item.value}" if is_joined and word.startswith("--") else item.value
    if shell != "bash":
        about = brief(printable(item.help or ""), MAX_HELP_CHARS)
        return f"{value}\t{about}" if about else value
    try:
        shlex.split(line)
    except ValueError:  # the cursor is inside quotes, where no character starts a new word
        return "" if _SPECIAL_IN_QUOTES.search(value) else value
    start = max((at + 1 for at, char in enumerate(word) if char in breaks and not _SPECIAL.match(char)), default=0)
    return _SPECIAL.sub(r"\\\1", value[start:])


def _complete(arguments: Sequence[str], word: str) -> Sequence[Item]:
    """Without a command, the options of `chat` are offered, too."""
    from talaria.cli.command_tree import talaria  # noqa: PLC0415  (it loads this module)

    start = profile_length(arguments)
    with talaria.make_context("talaria", list(arguments[:start]), resilient_parsing=True) as ctx:
        ctx.obj = ctx.params.get("profile")
        known = talaria.summaries(ctx)
    is_first = len(arguments) == start
    if is_first and not word.startswith("-"):
        return [Item(name, help=summary) for name, summary in known.items() if name.startswith(word)]
    from talaria.cli.completion.values import equip  # noqa: PLC0415  (loads what knows sessions, models, settings)

    equip(talaria)
    found: list[Item] = []
    try:
        whole = add_default_command(arguments, known) if len(arguments) > start else arguments
        for line in (whole, [*arguments, "chat"]) if is_first else (whole,):
            name = next(iter(line[profile_length(line) :]), None)
            if name is not None:
                if not talaria.is_builtin(name):
                    continue
                with click.Context(talaria) as ctx:
                    equip(talaria.get_command(ctx, name))
            found += ShellComplete(talaria, {}, "talaria", "").get_completions(list(line), word)
    except (TalariaError, click.ClickException):
        return ()
    return list({item.value: item for item in found}.values())
