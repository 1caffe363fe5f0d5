"""What was typed before, searched."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from talaria.cli.screen.menu import Choice, Menu

if TYPE_CHECKING:
    from talaria.cli.screen.screen import Screen


def menu(typed: Sequence[str]) -> Menu:
    latest = dict.fromkeys(reversed(typed))
    return Menu("Typed before", [Choice(text, text, text if "\n" in text else "") for text in latest], typing="search")


async def recall(screen: "Screen", asked: Menu) -> None:
    """Puts what is chosen on the line."""
    chosen = await screen.ask(asked)
    if chosen is not None:
        screen.buffer.reset()
        screen.buffer.insert_text(chosen)
