"""What a person types without a command, or before it, put into its place, or told in a sentence where that is."""

from collections.abc import Container, Iterator, Mapping, Sequence

import click

from talaria.core.errors import BadInput

_ABOUT_ALL = ("-h", "--help", "-V", "--version")


class ListingGroup(click.Group):
    """Without a command it lists what there is."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["list"])


def add_default_command(arguments: Sequence[str], commands: Container[str]) -> list[str]:
    """`talaria -c` means `talaria chat -c`; the profile may stand before the command, and options of `chat`, too."""
    start = profile_length(arguments)
    before, rest = list(arguments[:start]), list(arguments[start:])
    if rest[:1] == ["chat"]:
        del rest[0]
    elif rest and (not rest[0].startswith("-") or rest[0] in _ABOUT_ALL):
        return [*before, *rest]
    return [*before, "chat", *(_for_chat(rest, commands) if rest else ())]


def profile_length(arguments: Sequence[str]) -> int:
    """How many of them say which profile."""
    first = arguments[0] if arguments else ""
    if first in ("-p", "--profile"):
        return 2
    return 1 if first.startswith(("--profile=", "-p")) else 0


def _for_chat(arguments: Sequence[str], commands: Container[str]) -> Sequence[str]:
    """Without its name, if that stands behind some of them."""
    from talaria.cli.chat import command  # noqa: PLC0415  (it is what will run)

    flags = {name: one.is_flag for one in command.params if isinstance(one, click.Option) for name in one.opts}
    found = next(_words(arguments, flags), None)
    if found is None:
        return arguments
    options, word, behind = arguments[:found], arguments[found], arguments[found + 1 :]
    if options and word == "chat":
        return _for_chat([*options, *behind], commands)
    is_known = all(_option_name(one) in flags for one in options if one.startswith("-"))
    if options and word in commands:
        raise BadInput(_misplaced_options(options, [word, *behind], is_known=is_known))
    if not is_known:  # click tells which
        return arguments
    raise BadInput(_misplaced_words(options, word))


def _misplaced_options(options: Sequence[str], command: Sequence[str], *, is_known: bool) -> str:
    import shlex  # noqa: PLC0415  (only who errs waits for it)

    plain = shlex.join(["talaria", *command])
    if is_known:
        return f"{_option_name(options[0])} is an option of `talaria chat`; without it: {plain}"
    return f"Options stand behind the command: {plain} {shlex.join(options)}"


def _misplaced_words(options: Sequence[str], word: str) -> str:
    import shlex  # noqa: PLC0415

    resuming = f"; to go on with what is called so: talaria -r {shlex.quote(word)}" if "-c" in options else ""
    return f"{word!r} is no option. To ask it: {shlex.join(['talaria', *options, '-q', word])}{resuming}"


def _words(arguments: Sequence[str], flags: Mapping[str, bool]) -> Iterator[int]:
    """Where something stands that is no option, nor the value of one."""
    is_value = False
    for number, one in enumerate(arguments):
        if is_value:
            is_value = False
        elif one == "-" or not one.startswith("-"):
            yield number
        elif one.startswith("--"):
            is_value = not flags.get(one, True)
        else:  # several flags may share a dash, and the last of them have a value
            is_value = next((at for at, sign in enumerate(one) if flags.get(f"-{sign}") is False), 0) == len(one) - 1


def _option_name(option: str) -> str:
    """`--model` of `--model=x`, `-m` of `-mx`."""
    return option.partition("=")[0] if option.startswith("--") else option[:2]
