"""The screen of the real program, against a scripted model."""

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from tests.scenarios.screen.emulator import PATIENCE_S, Terminal, talaria

from talaria.testing.servers.model_server import ModelServer, RecordedRequest
from talaria.testing.servers.scripted_replies import Faults, Reply, call

OpenScreen = Callable[..., Terminal]
Run = Callable[..., subprocess.CompletedProcess[str]]
READY = "· /help"
"""Said once the conversation is open."""
RUNNING = " s · Ctrl-C stops"
"""Beside the spinner."""
_DAY = re.compile(r"\[Today is [^]]+\]\s+")


@pytest.fixture
def open_screen(environment: dict[str, str]) -> Iterator[OpenScreen]:
    """`open_screen("-c", columns=40, NO_COLOR="1")`; waits for the prompt alone if `is_ready` is false."""
    with ExitStack() as opened:

        def start(
            *arguments: str, columns: int = 80, rows: int = 24, is_ready: bool = True, **variables: str
        ) -> Terminal:
            around = {**environment, "TERM": "xterm-256color", **variables}
            terminal = Terminal(talaria(*arguments), around, columns=columns, rows=rows)
            opened.enter_context(terminal)
            terminal.see(READY if is_ready else "›")
            return terminal

        yield start


WAIT = "until [ -e go ]; do : > begun; sleep 0.01; done; rm go begun"


class Held:
    """A command of the model that runs until it is let go."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def reply(self) -> Reply:
        return Reply(calls=(call("terminal", command=WAIT),))

    def let_go(self) -> None:
        """Not before it runs: if the file were there, deleting it would be asked about."""
        deadline = time.monotonic() + PATIENCE_S
        while not (self._folder / "begun").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        (self._folder / "go").touch()


@pytest.fixture
def work(environment: dict[str, str]) -> Path:
    """Where the program is started."""
    return Path(environment["PWD"])


@pytest.fixture
def held(work: Path) -> Held:
    return Held(work)


@pytest.fixture
def unconfined(server: ModelServer, home: Path) -> None:
    """Commands run on the machine itself, so they are asked about."""
    with (home / "config.yaml").open("a") as config:
        config.write("terminal: {backend: local}\n")


def see_quiet(screen: Terminal, *gone: str) -> None:
    """It is the person's turn: nothing runs, and none of `gone` is there any more; all of it is drawn."""

    def is_quiet() -> bool:
        return screen.status.startswith(("custom:", "test-model")) and not any(
            text in screen.text for text in (RUNNING, *gone)
        )

    screen.wait(is_quiet, ("nothing runs", *gone))


def said_to(request: RecordedRequest) -> Sequence[str]:
    """What the person has said, as the model was told."""
    return [_DAY.sub("", _text(one["content"])) for one in _messages(request) if one["role"] == "user"]


def told_by_tools(request: RecordedRequest) -> Sequence[str]:
    return [_text(one["content"]) for one in _messages(request) if one["role"] == "tool"]


def _messages(request: RecordedRequest) -> list[dict[str, Any]]:
    return request.json["messages"]


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in cast("list[dict[str, str]]", content))


def being_written(text: str) -> Reply:
    """It comes to the end of this text, and then no further."""
    inside_the_next_piece = Faults(stall_at=len(json.dumps(text)) + 900)
    return Reply(text + "…" * len(text), chunk_chars=len(text), faults=inside_the_next_piece)


def words_of(lines: Sequence[str]) -> list[str]:
    return re.findall(r"word\d+", " ".join(lines))


def between(lines: Sequence[str], first: str, last: str) -> Sequence[str]:
    """What stands behind the last line that is `first`, up to the next that begins with `last`."""
    begun = len(lines) - list(reversed(lines)).index(first)
    ended = next(place for place in range(begun, len(lines)) if lines[place].startswith(last))
    return lines[begun:ended]
