"""What each key does on the screen."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from prompt_toolkit.filters import Condition, Filter, has_completions, has_selection
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.keys import Keys

from talaria.cli.screen.clusters import next_cluster
from talaria.cli.screen.width import cluster_before
from talaria.core.errors import BadConfig

if TYPE_CHECKING:
    from prompt_toolkit.buffer import Buffer
    from prompt_toolkit.key_binding.key_processor import KeyPressEvent

    from talaria.cli.screen.menu import Menu

Act = Callable[[], object]
MOST_PAGES = 1_000_000
"""More than a question has."""


class Keyed(Protocol):
    """What keys act on."""

    @property
    def buffer(self) -> "Buffer": ...
    @property
    def menu(self) -> "Menu | None": ...
    @property
    def is_working(self) -> bool: ...
    @property
    def is_raw(self) -> bool: ...
    def submit(self) -> None: ...
    def steer(self) -> None: ...
    def interrupt(self) -> None: ...
    def leave(self) -> None: ...
    def open_editor(self) -> None: ...
    def show_details(self) -> None: ...
    def search_history(self) -> None: ...
    def paste(self, text: str) -> None: ...


def build_bindings(screen: Keyed) -> KeyBindings:
    """All but the one that steers, which is a matter of settings."""
    keys = KeyBindings()
    asks = Condition(lambda: screen.menu is not None)
    _LineKeys(screen).bind(keys, ~asks)
    _MenuKeys(screen).bind(keys, asks)
    keys.add("c-z")(_suspend)
    return keys


def bind_steer_key(keys: KeyBindings, screen: Keyed, key: str) -> None:
    try:
        _bind(keys, key, screen.steer, Condition(lambda: screen.menu is None))
    except ValueError as fault:
        raise BadConfig(f"display.steer_key: {key!r} is no key; write c-s for Ctrl-S, escape s for Alt-S.") from fault


def _suspend(event: "KeyPressEvent") -> None:
    event.app.suspend_to_background()


def _bind(keys: KeyBindings, key: str, act: Act, here: Filter, *, at_once: bool = False) -> None:
    """`key` may be several, one after the other. `at_once`: whatever longer ones begin so."""

    def handle(_: "KeyPressEvent") -> None:
        act()

    keys.add(*key.split(), filter=here, eager=at_once)(handle)


class _LineKeys:
    """While a line is typed."""

    def __init__(self, screen: Keyed) -> None:
        self._screen = screen
        self._buffer = screen.buffer

    def bind(self, keys: KeyBindings, here: Filter) -> None:
        buffer, screen = self._buffer, self._screen
        acts: dict[str, Act] = {
            "enter": self._enter,
            "escape enter": lambda: buffer.insert_text("\n"),
            "c-j": lambda: buffer.insert_text("\n") if screen.is_raw else screen.submit(),
            "tab": self._complete,
            "c-c": screen.interrupt,
            "c-d": lambda: self._delete_after() if buffer.text else screen.leave(),
            "c-o": screen.show_details,
            "c-r": screen.search_history,
            "c-x c-e": screen.open_editor,
        }
        for key, act in acts.items():
            _bind(keys, key, act, here)
        by_cluster: dict[str, Act] = {
            "delete": self._delete_after,
            "backspace": self._delete_before,
            "left": self._move_left,
            "c-b": self._move_left,
            "right": self._move_right,
            "c-f": self._move_right,
        }
        for key, act in by_cluster.items():
            _bind(keys, key, act, here & ~has_selection)
        _bind(keys, "escape", screen.interrupt, here & Condition(lambda: screen.is_working))
        _bind(keys, "up", buffer.auto_up, here & ~has_completions)
        _bind(keys, "down", buffer.auto_down, here & ~has_completions)

        def paste(event: "KeyPressEvent") -> None:
            screen.paste(event.data.replace("\r\n", "\n").replace("\r", "\n"))

        keys.add(Keys.BracketedPaste, filter=here)(paste)

    def _enter(self) -> None:
        self._buffer.complete_state = None  # what was chosen stands on the line already
        self._screen.submit()

    def _move_left(self) -> None:
        buffer = self._buffer
        if buffer.document.cursor_position_col:
            buffer.cursor_position = cluster_before(buffer.text, buffer.cursor_position)

    def _move_right(self) -> None:
        buffer = self._buffer
        if not buffer.document.is_cursor_at_the_end_of_line:
            buffer.cursor_position = next_cluster(buffer.text, buffer.cursor_position)

    def _delete_before(self) -> None:
        place = self._buffer.cursor_position
        self._buffer.delete_before_cursor(place - cluster_before(self._buffer.text, place))

    def _delete_after(self) -> None:
        place = self._buffer.cursor_position
        self._buffer.delete(next_cluster(self._buffer.text, place) - place)

    def _complete(self) -> None:
        if self._buffer.complete_state is not None:
            self._buffer.complete_next()
        else:
            self._buffer.start_completion(insert_common_part=True)


class _MenuKeys:
    """While a question stands in its place."""

    def __init__(self, screen: Keyed) -> None:
        self._screen = screen

    @property
    def _menu(self) -> "Menu":
        assert self._screen.menu is not None  # noqa: S101  (these keys are bound only then)
        return self._screen.menu

    def bind(self, keys: KeyBindings, here: Filter) -> None:
        acts: dict[str, Act] = {
            "up": lambda: self._menu.move(-1),
            "s-tab": lambda: self._menu.move(-1),
            "down": lambda: self._menu.move(1),
            "tab": lambda: self._menu.move(1),
            "pageup": lambda: self._menu.scroll(-1),
            "pagedown": lambda: self._menu.scroll(1),
            "home": lambda: self._menu.scroll(-MOST_PAGES),
            "end": lambda: self._menu.scroll(MOST_PAGES),
            "enter": lambda: self._menu.accept(),  # noqa: PLW0108  (of whichever is there then)
            "backspace": lambda: self._menu.erase(),  # noqa: PLW0108
            "escape": lambda: self._menu.cancel(),  # noqa: PLW0108
            "c-c": lambda: self._menu.cancel(),  # noqa: PLW0108
            "c-d": lambda: self._menu.cancel(),  # noqa: PLW0108
        }
        for key, act in acts.items():
            _bind(keys, key, act, here, at_once=True)

        def type_(event: "KeyPressEvent") -> None:
            if event.data.isprintable():
                self._menu.type(event.data)

        def paste(event: "KeyPressEvent") -> None:
            self._menu.type(" ".join(event.data.split()))

        keys.add(Keys.Any, filter=here)(type_)
        keys.add(Keys.BracketedPaste, filter=here)(paste)
