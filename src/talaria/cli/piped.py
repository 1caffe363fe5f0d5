"""What somebody hands us on standard input: text, to its end, and not without end."""

import select
import sys
from io import BufferedReader
from typing import cast

from talaria.cli.notices import say
from talaria.core.errors import BadInput
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
