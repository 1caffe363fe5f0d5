"""What was typed before, to be searched."""

from collections.abc import Sequence

from talaria.cli.screen.menu import Choice, Menu


def recalling(typed: Sequence[str]) -> Menu:
    """The latest first."""
    latest = dict.fromkeys(reversed(typed))
    return Menu("Typed before", [Choice(text, text, text if "\n" in text else "") for text in latest], typing="search")
