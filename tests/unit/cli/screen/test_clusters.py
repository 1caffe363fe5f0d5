"""Characters of several code points on the screen."""

import asyncio
import re
from collections.abc import Iterator
from io import StringIO

import pytest
from prompt_toolkit.completion import DummyCompleter
from prompt_toolkit.data_structures import Size
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input

from talaria.cli.screen.rendering import ClusterOutput, inside_cluster, next_cluster
from talaria.cli.screen.screen import Screen
from talaria.cli.screen.width import cluster_width, cut, width, wrap, wrap_words
from talaria.testing.patience import PATIENCE_S

FAMILY, THUMB, SYLLABLE = "👩\u200d👩\u200d👧", "👍🏽", "क्\u200dष"
LEFT, BACKSPACE = "\x1b[D", "\x7f"


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One that draws a family as one emoji."""
    monkeypatch.setenv("TERM_PROGRAM", "ghostty")
    cluster_width.cache_clear()
    yield
    cluster_width.cache_clear()


def test_a_terminal_that_joins_nothing_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert width(FAMILY) == 2
    cluster_width.cache_clear()
    monkeypatch.delenv("TERM_PROGRAM")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("VTE_VERSION", "7600")
    assert width(FAMILY) == 6


class Nobody:
    def submit(self, text: str) -> None: ...
    def steer(self, text: str) -> None: ...
    def interrupt(self) -> None: ...
    def leave(self) -> None: ...
    def show_details(self) -> None: ...


async def typed(keys: str, until: str, *, cursor: int) -> tuple[Screen, str]:
    """The screen after these keys, once the line is `until`, and all that it has written."""
    written = StringIO()
    with create_pipe_input() as pipe:
        output = ClusterOutput(written, lambda: Size(rows=12, columns=40), enable_cpr=False)
        screen = Screen(Nobody(), history=InMemoryHistory(), completer=DummyCompleter(), input=pipe, output=output)

        async def use() -> None:
            pipe.send_text(keys)
            while (screen.buffer.text, screen.buffer.cursor_position) != (until, cursor):
                await asyncio.sleep(0.001)
            screen.print("drawn")
            await screen.drain()
            screen.close()

        using: list[asyncio.Task[None]] = []
        async with asyncio.timeout(PATIENCE_S):
            await screen.run(lambda: using.append(asyncio.ensure_future(use())))
            await using[0]
    return screen, written.getvalue()


@pytest.mark.parametrize("cluster", [FAMILY, THUMB, SYLLABLE, "❤\ufe0f", "🇩🇪", "e\u0301"])
async def test_a_character_is_drawn_passed_over_and_deleted_as_one(cluster: str) -> None:
    line = f"a{cluster}b"
    _, raw = await typed(line, line, cursor=len(line))
    behind = 2 + len("a") + cluster_width(cluster) + 1
    assert re.search(f"a{cluster}(?:\x1b\\[{behind}G)?b", raw), raw
    await typed(f"{line}{LEFT * 2}", line, cursor=1)
    await typed(f"{line}{LEFT}{BACKSPACE}", "ab", cursor=1)


async def test_the_cursor_is_told_its_column_where_terminals_draw_differently() -> None:
    _, raw = await typed(f"{FAMILY}b", f"{FAMILY}b", cursor=len(FAMILY) + 1)
    assert f"{FAMILY}\x1b[5Gb" in raw


async def test_the_cursor_is_never_inside_of_a_character() -> None:
    up = "\x1b[A"
    line = f"{FAMILY}x\nabc"
    await typed(f"{FAMILY}x\nabc{up}", line, cursor=0)


def test_places_inside_of_a_character_are_known() -> None:
    text = f"a{FAMILY}b"
    assert [inside_cluster(text, place) for place in range(len(text) + 1)] == [None, None, 1, 1, 1, 1, None, None]
    assert next_cluster(text, 1) == 1 + len(FAMILY)
    assert next_cluster(text, len(text)) == len(text)


@pytest.mark.parametrize("columns", [1, 2, 5, 9])
def test_nothing_is_cut_inside_of_a_character(columns: int) -> None:
    text = f"{FAMILY} {SYLLABLE}{THUMB} {FAMILY}{FAMILY}"
    whole = {FAMILY, SYLLABLE, THUMB, " ", "…"}
    for line in (*wrap(text, columns), cut(text, columns), *wrap_words(text, columns).split("\n")):
        left = line
        while left:
            (found,) = [one for one in whole if left.startswith(one)]
            left = left.removeprefix(found)
    assert width(cut(text, columns)) <= columns
    assert "".join(wrap(text, columns)) == text
