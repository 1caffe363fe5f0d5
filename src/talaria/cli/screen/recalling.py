"""What was typed before, to be searched."""

from collections.abc import Callable, Sequence

from talaria.cli.screen.menu import Menu, MenuItem


def recalling(typed: Sequence[str], unfolded: Callable[[str], str]) -> Menu:
    """The latest first. What is folded is found by all that it stands for."""
    latest = dict.fromkeys(reversed(typed))
    choices = [MenuItem(text, text, text if "\n" in text else "", searched=unfolded(text)) for text in latest]
    return Menu("Typed before", choices, typing="search")
