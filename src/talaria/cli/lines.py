"""What the person types, or what stands on standard input: line after line."""

import sys
import termios
from collections.abc import Callable, Iterator, Sequence

Complete = Callable[[str], Sequence[str]]
"""What a line's beginning may become."""


def lines(*, is_interactive: bool, complete: Complete) -> Iterator[str]:
    """Without those that say nothing."""
    if is_interactive:
        _edit_with(complete)
    read = _ask if is_interactive else _read
    while (line := read()) is not None:
        if line.strip():
            yield line.strip()


def _edit_with(complete: Complete) -> None:
    """Gives `input` its line editing; the tab key completes."""
    import readline  # noqa: PLC0415  (nobody else needs a terminal's library)

    def option(_: str, number: int) -> str | None:
        options = complete(readline.get_line_buffer())
        return options[number] if number < len(options) else None

    readline.set_completer_delims("")
    readline.set_completer(option)
    readline.parse_and_bind("tab: complete")


def _read() -> str | None:
    return sys.stdin.readline() or None if sys.stdin is not None else None


def _make_sane(descriptor: int) -> None:
    """Echo and whole lines, which a chat that was killed in the middle of a line may have left switched off."""
    mode = termios.tcgetattr(descriptor)
    mode[3] |= termios.ECHO | termios.ICANON
    termios.tcsetattr(descriptor, termios.TCSANOW, mode)


def _ask() -> str | None:
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
