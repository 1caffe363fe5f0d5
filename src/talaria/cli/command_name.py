"""How to start this program from this terminal, so that a hint can be typed as it is printed.

All sentences say `talaria …`; at the terminal `runnable` replaces that with the name that works.
"""

import os
import re
import shlex
import sys
from functools import cache

NAME = "talaria"
LINKS = "~/.local/bin"
_IN_A_HINT = re.compile(r"(?<=[`(])talaria(?=[\s`])|(?<=[:;→] )talaria(?= )|(?<=^  )talaria(?= )", re.MULTILINE)
"""A command in backticks or parentheses, after a colon, or on an indented line. In prose the program is called
Talaria."""


@cache
def name() -> str:
    """`talaria` if the shell finds this installation under that name, otherwise the path of this program."""
    script = _script()
    if script is None:
        return f"{shlex.quote(_shorten(sys.executable))} -m talaria.cli.main"
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        found = os.path.join(folder, NAME)  # noqa: PTH118
        if folder and os.access(found, os.X_OK) and os.path.isfile(found):  # noqa: PTH113
            if os.path.realpath(found) == os.path.realpath(script):
                return NAME
            break  # a shell starts the first that it finds
    return shlex.quote(_shorten(script))


def runnable(text: str) -> str:
    """Replaces `talaria` in commands, so that they can be typed as they are."""
    return _IN_A_HINT.sub(lambda _: name(), text) if NAME in text and name() != NAME else text


def link_advice() -> str:
    """How to make `talaria` a command in every folder; empty if it already is."""
    script = _script()
    if script is None or name() == NAME:
        return ""
    folder = os.path.expanduser(LINKS)  # noqa: PTH111
    link = f"{folder}/{NAME}"
    is_listed = folder in os.environ.get("PATH", "").split(os.pathsep)
    missing = "" if is_listed else f" ({LINKS} is not on your PATH yet: add it in your shell's startup file)"
    if os.path.realpath(link) == os.path.realpath(script):
        return f"`{NAME}` is a command in {LINKS}{missing}."
    if os.path.lexists(link):
        return f"{LINKS}/{NAME} is a different program. To run this one: {name()}"
    make = "" if os.path.isdir(folder) else f"mkdir -p {LINKS} && "  # noqa: PTH112
    link_it = f"{make}ln -s {shlex.quote(script)} {LINKS}/{NAME}"
    return f"To use Talaria in your own projects, make it a command: {link_it}{missing}"


def _script() -> str | None:
    """The absolute path of the command that was typed, or of the one installed with this Python."""
    installed = os.path.join(os.path.dirname(sys.executable), NAME)  # noqa: PTH118, PTH120
    for path in (sys.argv[0], installed):
        if os.path.basename(path) == NAME and os.access(path, os.X_OK):  # noqa: PTH119
            return os.path.abspath(path)  # noqa: PTH100
    return None


def _shorten(path: str) -> str:
    """Relative, if it is inside the working directory."""
    here = os.path.join(os.getcwd(), "")  # noqa: PTH109, PTH118  (it exists: `main` checks)
    inside = path.removeprefix(here)
    return inside if "/" in inside else f"./{inside}"


if __name__ == "__main__" and (advice := link_advice()):  # at the end of `make run`
    sys.stdout.write(f"{advice}\n")
