"""`talaria chat` without a screen: what is asked, and with what."""

from pathlib import Path

import click

from talaria.cli import piped
from talaria.cli.attached_pictures import read_image
from talaria.cli.context import settings
from talaria.cli.json_output import print_failure
from talaria.cli.options import CliOptions
from talaria.cli.plain import converse
from talaria.cli.references import with_references
from talaria.core.errors import BadInput, TalariaError
from talaria.core.messages import Text, User


def answer(ctx: click.Context, options: CliOptions, query: str | None, images: tuple[Path, ...]) -> int:
    try:
        return converse(settings(ctx), options, _question(query, images))
    except TalariaError as error:
        if options.format != "text":
            print_failure(error, is_line=options.format == "stream-json")
        raise


def _question(query: str | None, images: tuple[Path, ...]) -> User | None:
    """What was asked, with what stands on standard input behind it; `-` asks just that."""
    if query is None:
        if images:
            raise BadInput("--image needs a question: add -q TEXT.")
        piped.refuse_binary_lines()
        return None
    query = query.encode("utf-8", "replace").decode()  # an argument may hold bytes that are no text
    behind = piped.read_all() if query == "-" or piped.is_piped() else ""
    text = behind if query == "-" else "\n\n".join(filter(None, [query, behind]))
    if not text.strip():
        raise BadInput("The question is empty.")
    return with_references(User((*(read_image(image) for image in images), Text(text))), Path.cwd())
