"""What the person types, or what stands on standard input: line after line."""

import importlib
import sys
import termios
from collections.abc import Iterator


def lines(*, is_interactive: bool) -> Iterator[str]:
    """Without those that say nothing."""
    read = _ask if is_interactive else _read
    while (line := read()) is not None:
        if line.strip():
            yield line.strip()


def _read() -> str | None:
    return sys.stdin.readline() or None if sys.stdin is not None else None


def _make_sane(descriptor: int) -> None:
    """Echo and whole lines, which a chat that was killed in the middle of a line may have left switched off."""
    mode = termios.tcgetattr(descriptor)
    mode[3] |= termios.ECHO | termios.ICANON
    termios.tcsetattr(descriptor, termios.TCSANOW, mode)


def _ask() -> str | None:
    importlib.import_module("readline")  # gives `input` its line editing
    _make_sane(sys.stdin.fileno())
    is_plain = not sys.stdout.isatty()
    if is_plain:  # `input` would write its prompt among the answers
        sys.stderr.write("› ")
        sys.stderr.flush()
    try:
        return input("" if is_plain else "› ")
    except EOFError:
        sys.stderr.write("\n")
        return None
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return ""
