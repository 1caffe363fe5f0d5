"""`talaria chat` without a screen: what is asked, and with what.

What somebody hands us on standard input: text, to its end, and not without end.
"""

import select
import sys
from io import BufferedReader
from pathlib import Path
from typing import cast

import click

from talaria.cli.context import settings
from talaria.cli.notices import say
from talaria.cli.options import CliOptions
from talaria.cli.output import print_failure
from talaria.cli.plain import converse
from talaria.cli.references import read_image, with_references
from talaria.core.errors import BadInput, TalariaError
from talaria.core.messages import Text, User
from talaria.core.pictures import media_type

MAX_BYTES = 4 << 20
"""More than any model reads at once."""
SILENCE_S = 2.0


def is_piped() -> bool:
    return sys.stdin is not None and not sys.stdin.isatty()


def read_all() -> str:
    """A slow writer is waited for, and that is told."""
    if sys.stdin is None:
        return ""
    if is_piped() and not _has_arrived(SILENCE_S):
        say("Waiting for the end of standard input; add `< /dev/null` if there is none.")
    content = sys.stdin.buffer.read(MAX_BYTES + 1)
    _refuse_binary(content)
    if len(content) > MAX_BYTES:
        raise BadInput(
            f"Standard input is larger than {MAX_BYTES >> 20} MB, which no model reads at once: "
            "pipe a part of it, or keep it in a file and ask about that."
        )
    return content.decode(sys.stdin.encoding, "replace").replace("\r\n", "\n").strip()


def refuse_binary_lines() -> None:
    """Where each line would be a turn: as far as can be seen without waiting."""
    if is_piped() and _has_arrived(0):
        _refuse_binary(cast("BufferedReader", sys.stdin.buffer).peek())


def _has_arrived(within_s: float) -> bool:
    return bool(select.select([sys.stdin], [], [], within_s)[0])


def _refuse_binary(content: bytes) -> None:
    if b"\0" not in content:
        return
    found = media_type(content)
    what = f"an image ({found}): add it with --image FILE" if found else "not text (UTF-8)"
    raise BadInput(f"Standard input is {what}.")


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
        refuse_binary_lines()
        return None
    query = query.encode("utf-8", "replace").decode()  # an argument may hold bytes that are no text
    behind = read_all() if query == "-" or is_piped() else ""
    text = behind if query == "-" else "\n\n".join(filter(None, [query, behind]))
    if not text.strip():
        raise BadInput("The question is empty.")
    return with_references(User((*(read_image(image) for image in images), Text(text))), Path.cwd())
