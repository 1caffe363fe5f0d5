"""`talaria` and `talaria chat`: a conversation, or one question with `-q`."""

import asyncio
import sys
from pathlib import Path
from typing import cast

import click

from talaria.cli.conversation import Conversation, Options
from talaria.cli.pictures import read_image
from talaria.cli.render import Format, print_failure
from talaria.cli.surroundings import settings
from talaria.model.errors import BadInput, TalariaError
from talaria.model.messages import Text, User


@click.command("chat", help="Talk to the model. Without a terminal, each line of standard input is a turn.")
@click.option("-q", "-z", "--query", "--print", "query", metavar="TEXT", help="Answer this once and exit.")
@click.option("-m", "--model", metavar="MODEL", help="A model, or provider:model.")
@click.option("-r", "--resume", metavar="ID|TITLE", help="Go on with this conversation.")
@click.option("-c", "--continue", "is_continuing", is_flag=True, help="Go on with the latest conversation.")
@click.option(
    "--output-format",
    type=click.Choice(["text", "json", "stream-json"]),
    default="text",
    help="How answers are printed.",
)
@click.option("--max-turns", type=click.IntRange(min=1), metavar="N", help="At most N rounds of tool calls.")
@click.option("--yolo", is_flag=True, help="Do not ask before commands.")
@click.option("-p", "--profile", metavar="NAME", help="Use the home of this profile.")
@click.option("--image", "images", multiple=True, type=click.Path(path_type=Path), help="Add an image to the question.")
@click.pass_context
def command(ctx: click.Context, /, **given: object) -> int:
    query = cast("str | None", given.pop("query"))
    images = cast("tuple[Path, ...]", given.pop("images"))
    format = cast("Format", given.pop("output_format"))
    ctx.find_root().obj = given.pop("profile") or ctx.find_root().obj
    try:
        if images and query is None:
            raise BadInput("--image needs a question: add -q TEXT.")
        options = Options(format=format, is_one_shot=query is not None, **given)  # type: ignore[arg-type]  # click's types
        message = None if query is None else _question(query, images)
        with asyncio.Runner() as runner, Conversation(settings(ctx), options, runner) as conversation:
            return conversation.once(message) if message else conversation.converse()
    except TalariaError as error:
        if format != "text":
            print_failure(error)
        raise


def _question(query: str, images: tuple[Path, ...]) -> User:
    """What was asked, with what stands on standard input behind it."""
    piped = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read().strip()
    query = query.encode("utf-8", "replace").decode()  # an argument may hold bytes that are no text
    text = f"{query}\n\n{piped}" if piped else query
    if not text.strip():
        raise BadInput("The question is empty.")
    return User((*(read_image(image) for image in images), Text(text)))
