"""docs/reference/cli.md names every command, argument and option. `python -m` of this file writes the page."""

import re
from collections.abc import Iterator
from pathlib import Path

import click

from talaria.cli.command_tree import talaria

FILE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
MARK = "<!-- From here on: python -m tests.architecture.test_cli_reference -->\n"


def reference() -> str:
    with click.Context(talaria, info_name="talaria", help_option_names=["-h", "--help"]) as root:
        parts = ["\n## talaria\n", _table(options(talaria, root))]
        for name, command in commands(talaria, root):
            parts += [f"\n## {name}\n", _table(rows(command, name, root))]
    return "\n".join(parts)


def _table(found: Iterator[tuple[str, str]]) -> str:
    lines = [f"| {cell(left)} | {cell(right)} |" for left, right in found]
    return "\n".join(["| | |", "|---|---|", *lines, ""])


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def rows(command: click.Command, name: str, parent: click.Context) -> Iterator[tuple[str, str]]:
    with click.Context(command, parent, name) as ctx:
        arguments = [one.make_metavar(ctx) for one in command.params if isinstance(one, click.Argument)]
        usage = " ".join([ctx.command_path, *arguments])
        yield f"**`{usage}`**", re.split(r"\n\s*\n", command.help or "")[0]
        yield from options(command, ctx)
        for inner, found in commands(command, ctx):
            yield from rows(found, inner, ctx)


def commands(command: click.Command, ctx: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Without those of plugins, if this machine has some."""
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(ctx):
        if command is talaria and not talaria.is_ours(name):
            continue
        found = command.get_command(ctx, name)
        assert found is not None
        yield name, found


def options(command: click.Command, ctx: click.Context) -> Iterator[tuple[str, str]]:
    for one in command.params:
        if isinstance(one, click.Option) and (record := one.get_help_record(ctx)):
            yield f"`{record[0]}`", record[1]


def test_the_reference_names_every_command_and_option() -> None:
    _, _, there = FILE.read_text("utf-8").partition(MARK)
    assert there == reference(), "`python -m tests.architecture.test_cli_reference` writes it"


if __name__ == "__main__":
    FILE.write_text(FILE.read_text("utf-8").partition(MARK)[0] + MARK + reference(), "utf-8")
