"""`talaria` and `talaria chat`: a conversation, or one question with `-q`."""

import select
import sys
from pathlib import Path

import click

from talaria.cli.conversation import Options, open_conversation
from talaria.cli.notices import say
from talaria.cli.pictures import read_image
from talaria.cli.render import Format, print_failure
from talaria.cli.surroundings import settings
from talaria.model.errors import BadInput, TalariaError
from talaria.model.messages import Text, User

SILENCE_S = 2.0


@click.command("chat", help="Talk to the model. Without a terminal, each line of standard input is a turn.")
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
    options = Options(format, query is not None, model, resume, is_continuing, max_turns, yolo)
    try:
        message = _question(query, images)
        with open_conversation(settings(ctx), options) as conversation:
            return conversation.once(message) if message else conversation.converse()
    except TalariaError as error:
        if format != "text":
            print_failure(error)
        raise


def _question(query: str | None, images: tuple[Path, ...]) -> User | None:
    """What was asked, with what stands on standard input behind it."""
    if query is None:
        if images:
            raise BadInput("--image needs a question: add -q TEXT.")
        return None
    piped = _piped()
    query = query.encode("utf-8", "replace").decode()  # an argument may hold bytes that are no text
    text = f"{query}\n\n{piped}" if piped else query
    if not text.strip():
        raise BadInput("The question is empty.")
    return User((*(read_image(image) for image in images), Text(text)))


def _piped() -> str:
    """What somebody hands us on standard input, to its end: a slow writer is waited for, and that is told."""
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    ready, _, _ = select.select([sys.stdin], [], [], SILENCE_S)
    if not ready:
        say("Waiting for the end of standard input; add `< /dev/null` if there is none.")
    return sys.stdin.read().strip()
