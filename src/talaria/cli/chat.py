"""`talaria` and `talaria chat`: a conversation, or one question with `-q`."""

from pathlib import Path

import click

from talaria.cli.options import CliOptions, Format


@click.command(
    "chat",
    help="Talk to the model. Without a terminal, each line of standard input is a turn.",
    epilog="Exit codes: 0 done, 1 a bug, 2 input or settings are wrong, 3 the provider failed, 4 the store cannot be"
    " used, 5 a limit was reached, 6 answered, but a call was refused because nobody was there to allow it,"
    " 130 interrupted.",
)
@click.option("-q", "-z", "--query", "--print", "query", metavar="TEXT", help="Answer this once and exit.")
@click.option("-m", "--model", metavar="MODEL", help="A model, or provider:model.")
@click.option("-r", "--resume", metavar="ID|TITLE", help="Go on with this conversation.")
@click.option("-c", "--continue", "is_continuing", is_flag=True, help="Go on with the latest conversation.")
@click.option(
    "--output-format",
    "format",
    type=click.Choice(["text", "json", "stream-json"]),
    default="text",
    help="How answers are printed.",
)
@click.option("--max-turns", type=click.IntRange(min=1), metavar="N", help="At most N rounds of tool calls.")
@click.option("--yolo", is_flag=True, help="Do not ask before commands.")
@click.option("-p", "--profile", metavar="NAME", help="Use the home of this profile.")
@click.option("--image", "images", multiple=True, type=click.Path(path_type=Path), help="Add an image to the question.")
@click.pass_context
def command(
    ctx: click.Context,
    query: str | None,
    model: str | None,
    resume: str | None,
    is_continuing: bool,
    format: Format,
    max_turns: int | None,
    yolo: bool,
    profile: str | None,
    images: tuple[Path, ...],
) -> int:
    ctx.find_root().obj = profile or ctx.find_root().obj
    options = CliOptions(format, query is not None, model, resume, is_continuing, max_turns, yolo)
    if options.has_screen and not images:
        from talaria.cli.screen.startup import run_screen  # noqa: PLC0415  (loads the rest behind the prompt)

        return run_screen(ctx.find_root().obj, options)
    from talaria.cli.question import run_without_screen  # noqa: PLC0415  (who has a screen does not wait for it)

    return run_without_screen(ctx, options, query, images)
