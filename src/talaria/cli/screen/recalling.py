"""What was typed before, searched."""

from typing import TYPE_CHECKING

from talaria.cli.screen.menu import Choice, Menu

if TYPE_CHECKING:
    from talaria.cli.screen.screen import Screen


async def recall(screen: "Screen", typed: list[str]) -> None:
    """Puts what is chosen on the line."""
    latest = dict.fromkeys(reversed(typed))
    choices = [Choice(text, text, text if "\n" in text else "") for text in latest]
    chosen = await screen.ask(Menu("Typed before", choices, typing="search"))
    if chosen is not None:
        screen.buffer.reset()
        screen.buffer.insert_text(chosen)
