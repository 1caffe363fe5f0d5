"""A long text in parts that a service takes, for adapters that split what they are given."""

from collections.abc import Callable, Iterator

_FENCE = "```"
_NUMBER_CHARS = len(" (999/999)")


def parts(text: str, limit: int, length: Callable[[str], int]) -> list[str]:
    """None longer than `limit`, and numbered if there are several; a code block is closed and opened again."""
    if length(text) <= limit:
        return [text]
    cut = list(_cut(text, max(limit - _NUMBER_CHARS, 1), length))
    return [f"{part} ({number}/{len(cut)})" for number, part in enumerate(cut, 1)]


def _cut(text: str, limit: int, length: Callable[[str], int]) -> Iterator[str]:
    opening = ""
    while text:
        if length(opening + text) <= limit:
            yield opening + text
            return
        room = limit - length(opening) - len(f"\n{_FENCE}")
        at = _good_place(text, _fitting(text, max(room, 1), length))
        part, text = opening + text[:at].rstrip("\n"), text[at:].lstrip("\n")
        fences = [line for line in part.split("\n") if line.startswith(_FENCE)]
        is_open = len(fences) % 2 == 1
        opening = f"{fences[-1]}\n" if is_open and length(fences[-1]) < limit // 4 else ""
        yield f"{part}\n{_FENCE}" if is_open else part


def _fitting(text: str, room: int, length: Callable[[str], int]) -> int:
    """How many characters of it there is room for; at least one."""
    low, high = 1, min(len(text), room)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if length(text[:middle]) <= room else (low, middle - 1)
    return low


def _good_place(text: str, at: int) -> int:
    """The end of a line, or else of a word, if that is not too far back."""
    line, word = text.rfind("\n", 0, at), text.rfind(" ", 0, at)
    return next((place + 1 for place in (line, word) if place >= at // 2), at)
