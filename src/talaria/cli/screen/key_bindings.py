"""What each key does on the screen."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from prompt_toolkit.filters import Condition, Filter, has_completions, has_selection
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.keys import Keys

from talaria.cli.screen.rendering import next_cluster
from talaria.cli.screen.width import cluster_before
from talaria.core.errors import BadConfig

if TYPE_CHECKING:
    from prompt_toolkit.buffer import Buffer
    from prompt_toolkit.key_binding.key_processor import KeyPressEvent

    from talaria.cli.screen.menu import Menu
    from talaria.cli.screen.screen import Screen

Act = Callable[[], object]
MAX_PAGES = 1_000_000
"""Longer than any question."""


def build_bindings(screen: "Screen") -> KeyBindings:
    """All but the key for steering, which is a setting."""
    keys = KeyBindings()
    has_menu = Condition(lambda: screen.menu is not None)
    _bind_line(keys, screen, ~has_menu)
    _bind_menu(keys, screen, has_menu)

    def suspend(event: "KeyPressEvent") -> None:
        event.app.suspend_to_background()

    keys.add("c-z")(suspend)
    return keys


def bind_steer_key(keys: KeyBindings, screen: "Screen", key: str) -> None:
    try:
        _bind(keys, key, screen.steer, Condition(lambda: screen.menu is None))
    except ValueError as fault:
        raise BadConfig(
            f"display.steer_key: {key!r} is not a key; write c-s for Ctrl-S, escape s for Alt-S."
        ) from fault


def _bind(keys: KeyBindings, key: str, act: Act, where: Filter, *, at_once: bool = False) -> None:
    """`key` may be a sequence of keys. `at_once`: do not wait for longer sequences that start with it."""

    def handle(_: "KeyPressEvent") -> None:
        act()

    keys.add(*key.split(), filter=where, eager=at_once)(handle)


def _bind_line(keys: KeyBindings, screen: "Screen", where: Filter) -> None:
    """While the person types a line."""
    buffer = screen.buffer

    def enter() -> None:
        buffer.complete_state = None  # the chosen completion is already on the line
        screen.submit()

    def complete() -> None:
        if buffer.complete_state is not None:
            buffer.complete_next()
        else:
            buffer.start_completion(insert_common_part=True)

    def paste(event: "KeyPressEvent") -> None:
        screen.paste(event.data.replace("\r\n", "\n").replace("\r", "\n"))

    acts: dict[str, Act] = {
        "enter": enter,
        "escape enter": lambda: buffer.insert_text("\n"),
        "c-j": lambda: buffer.insert_text("\n") if screen.is_raw else screen.submit(),
        "tab": complete,
        "c-c": screen.interrupt,
        "c-d": lambda: _delete_after(buffer) if buffer.text else screen.listener.leave(),
        "c-o": lambda: screen.listener.show_details(),  # noqa: PLW0108  (the listener changes)
        "c-r": screen.search_history,
        "c-x c-e": screen.open_editor,
    }
    for key, act in acts.items():
        _bind(keys, key, act, where)
    by_cluster: dict[str, Callable[[Buffer], None]] = {
        "delete": _delete_after,
        "backspace": _delete_before,
        "left": _move_left,
        "c-b": _move_left,
        "right": _move_right,
        "c-f": _move_right,
    }
    for key, edit in by_cluster.items():
        _bind(keys, key, lambda edit=edit: edit(buffer), where & ~has_selection)
    _bind(keys, "escape", screen.interrupt, where & Condition(lambda: screen.is_working))
    _bind(keys, "up", buffer.auto_up, where & ~has_completions)
    _bind(keys, "down", buffer.auto_down, where & ~has_completions)
    keys.add(Keys.BracketedPaste, filter=where)(paste)


def _move_left(buffer: "Buffer") -> None:
    if buffer.document.cursor_position_col:
        buffer.cursor_position = cluster_before(buffer.text, buffer.cursor_position)


def _move_right(buffer: "Buffer") -> None:
    if not buffer.document.is_cursor_at_the_end_of_line:
        buffer.cursor_position = next_cluster(buffer.text, buffer.cursor_position)


def _delete_before(buffer: "Buffer") -> None:
    place = buffer.cursor_position
    buffer.delete_before_cursor(place - cluster_before(buffer.text, place))


def _delete_after(buffer: "Buffer") -> None:
    place = buffer.cursor_position
    buffer.delete(next_cluster(buffer.text, place) - place)


def _bind_menu(keys: KeyBindings, screen: "Screen", where: Filter) -> None:
    """While a question takes the place of the line."""

    def menu() -> "Menu":
        assert screen.menu is not None  # noqa: S101  (ensured by `where`)
        return screen.menu

    acts: dict[str, Act] = {
        "up": lambda: menu().move(-1),
        "s-tab": lambda: menu().move(-1),
        "down": lambda: menu().move(1),
        "tab": lambda: menu().move(1),
        "pageup": lambda: menu().scroll(-1),
        "pagedown": lambda: menu().scroll(1),
        "home": lambda: menu().scroll(-MAX_PAGES),
        "end": lambda: menu().scroll(MAX_PAGES),
        "enter": lambda: menu().accept(),
        "backspace": lambda: menu().erase(),
        "escape": lambda: menu().cancel(),
        "c-c": lambda: menu().cancel(),
        "c-d": lambda: menu().cancel(),
    }
    for key, act in acts.items():
        _bind(keys, key, act, where, at_once=True)

    def type_(event: "KeyPressEvent") -> None:
        if event.data.isprintable():
            menu().type(event.data)

    def paste(event: "KeyPressEvent") -> None:
        menu().type(" ".join(event.data.split()))

    keys.add(Keys.Any, filter=where)(type_)
    keys.add(Keys.BracketedPaste, filter=where)(paste)
