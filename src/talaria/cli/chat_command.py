"""`talaria` and `talaria chat`: a conversation, or one question with `-q`."""

from pathlib import Path

import click

from talaria.cli.options import CliOptions, Format


@click.command(
    "chat",
    help="Talk to the model. Without a terminal, each line of standard input is a turn.",
    epilog="Exit codes: 0 success, 1 internal error, 2 invalid input or settings, 3 provider failure, 4 the store"
    " cannot be used, 5 a limit was reached, 6 answered, but a call was refused because nobody could be asked to"
    " approve it, 130 interrupted.",
)
@click.option("-q", "-z", "--query", "--print", "query", metavar="TEXT", help="Answer this question and exit.")
@click.option("-m", "--model", metavar="MODEL", help="The model to use: its name, or provider:model.")
@click.option("-r", "--resume", metavar="ID|TITLE", help="Resume this conversation.")
@click.option("-c", "--continue", "is_continuing", is_flag=True, help="Continue the latest conversation.")
@click.option(
    "--output-format",
    "format",
    type=click.Choice(["text", "json", "stream-json"]),
    default="text",
    help="How to print answers.",
)
@click.option("--max-turns", type=click.IntRange(min=1), metavar="N", help="Allow at most N rounds of tool calls.")
@click.option("--yolo", is_flag=True, help="Run commands without asking you.")
@click.option("-p", "--profile", metavar="NAME", help="Use this profile's home.")
@click.option(
    "--image", "images", multiple=True, type=click.Path(path_type=Path), help="Attach an image to the question."
)
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
        from talaria.cli.screen.startup import run_screen  # noqa: PLC0415  (loads the rest after the prompt is drawn)

        return run_screen(ctx.find_root().obj, options)
    from talaria.cli.plain import run_without_screen  # noqa: PLC0415  (not needed with a screen)

    return run_without_screen(ctx.find_root().obj, options, query, images)
