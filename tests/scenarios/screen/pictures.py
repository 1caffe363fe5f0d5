"""Pictures of the screen for `docs/screens`, drawn from what the real program writes into a terminal.

`make screens` renews them.
"""

import json
import os
import re
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree as ET

import pyte
from tests.scenarios.screen.emulator import DOWN, END, ENTER, Terminal, talaria

from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Faults, Reply, ReplyUsage, call

FOLDER = Path(__file__).parents[3] / "docs" / "screens"
_CELL, _LINE, _LEFT, _TOP = 8.43, 19, 18, 46
Theme = Literal["dark", "light"]
_INKS: Mapping[Theme, str] = {"dark": "#d8dee9", "light": "#24292f"}
_PAPERS: Mapping[Theme, str] = {"dark": "#2e3440", "light": "#ffffff"}
_INK, _PAPER = _INKS["dark"], _PAPERS["dark"]
LEVEL = "· sandbox strict"
"""In the status: what people see who set nothing."""
_COLOURS = {
    "black": "#3b4252",
    "red": "#bf616a",
    "green": "#a3be8c",
    "brown": "#ebcb8b",
    "blue": "#81a1c1",
    "magenta": "#b48ead",
    "cyan": "#88c0d0",
    "white": "#e5e9f0",
    "brightblack": "#7b88a1",
}
_DIM = re.compile(rb"\x1b\[((?:[013-9]\d*;)*)2((?:;\d+)*)m")
"""The emulator knows no dim letters: they become grey ones."""
_CHANGING = (
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d"), "2026-03-02 09:41"),
    (re.compile(r"\d{8}_\d{6}_[0-9a-f]{8}"), "20260302_094107_5e55100d"),
    (re.compile(r"[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]"), "⠹"),
    (re.compile(r"… \d+ s"), "… 2 s"),
    (re.compile(r"\d\.\d s(?= *$)"), "0.1 s"),
    (re.compile(r"(?<=  )\d+ s(?= *$)"), "2 s"),
    (re.compile(r"\b\d\.\d{3}s\b"), "0.002s"),
    (re.compile(r"/tmp/t[a-z0-9_]{8}"), "/home/ada"),
)

CART = """from dataclasses import dataclass


@dataclass
class Cart:
    prices: list[float]
    discount: float = 0.0

    def total(self) -> float:
        return sum(self.prices)
"""
ANSWER = """`total()` summed the prices and **never looked at the discount**. Now it does:

```python
cart = Cart([20.0, 5.0], discount=0.1)
assert cart.total() == 22.5
```

Two things to know:

- a discount of more than 100 % would make the total negative, so it is"""


@dataclass(frozen=True, slots=True)
class Look:
    ink: str = _INK
    paper: str = ""
    is_bold: bool = False
    is_italic: bool = False
    is_underlined: bool = False

    @property
    def style(self) -> str:
        """As the attributes of a text."""
        styles = {
            "font-weight": "bold" if self.is_bold else "",
            "font-style": "italic" if self.is_italic else "",
            "text-decoration": "underline" if self.is_underlined else "",
        }
        return " ".join([f'fill="{self.ink}"', *(f'{name}="{style}"' for name, style in styles.items() if style)])


@dataclass(frozen=True, slots=True)
class Cell:
    sign: str
    """Empty behind a wide one."""
    look: Look


_EDGES: Mapping[Theme, str] = {"dark": "", "light": ' stroke="#d0d7de"'}
Picture = Sequence[Sequence[Cell]]


class Studio:
    """A home, a project and a model, in which the scenes follow each other."""

    def __init__(self, folder: Path, server: ModelServer, settings: str = "") -> None:
        self.server = server
        self._folder = folder
        self._home, self._project = folder / ".talaria", folder / "shop"
        self._home.mkdir(mode=0o700)
        self._project.mkdir()
        (self._project / "cart.py").write_text(CART)
        (self._project / "test_cart.py").write_text("import unittest\n")
        (folder / "sitecustomize.py").write_text("import os\nos.geteuid = lambda: 1000\n")  # else root is warned
        self._home.joinpath("config.yaml").write_text(
            f"model: {{default: claude-sonnet, base_url: '{server.base_url}'}}\n{settings}"
        )

    @property
    def project(self) -> Path:
        return self._project

    @contextmanager
    def screen(self, columns: int, rows: int, *arguments: str, **variables: str) -> Generator[Terminal]:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self._folder),
            "TALARIA_HOME": str(self._home),
            "PWD": str(self._project),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "XDG_RUNTIME_DIR": str(self._folder),
            "PYTHONPATH": str(self._folder),
        }
        with Terminal(talaria(*arguments), {**environment, **variables}, columns=columns, rows=rows) as screen:
            screen.see("/help", LEVEL)
            yield screen

    def repair(self, screen: Terminal) -> None:
        """The cart is repaired; the answer about it is being written."""
        (self._project / "cart.py").write_text(CART)
        line = "        return sum(self.prices)"
        better = f"{line} * (1 - self.discount)"
        self.server.say(
            Reply(calls=(call("read_file", path="cart.py"),), usage=ReplyUsage(8_200, 60)),
            Reply(calls=(call("patch", path="cart.py", old=line, new=better),)),
            _being_written(ANSWER),
        )
        screen.say("The total ignores the discount. Fix it?")
        screen.see("so it is")
        screen.wait(lambda: "tokens" in screen.status, "the status below the answer")


def _being_written(text: str) -> Reply:
    """It comes to the end of this text, and then no further."""
    inside_the_next_piece = Faults(stall_at=len(json.dumps(text)) + 900)
    return Reply(text + "…" * len(text), chunk_chars=len(text), faults=inside_the_next_piece)


def chat(studio: Studio) -> Picture:
    with studio.screen(84, 34) as screen:
        studio.repair(screen)
        return _picture(screen)


def crash(studio: Studio) -> Picture:
    """Killed in the middle of a command, started again."""
    (studio.project / "deploy.sh").write_text(DEPLOY)
    studio.server.say(Reply(calls=(call("terminal", command="sh deploy.sh"),)))
    with studio.screen(84, 34) as screen:
        screen.say("Deploy the shop.")
        screen.see("uploading")
        it_takes_a_while = re.compile(r"terminal  sh deploy.sh  \d+ s *$", re.MULTILINE)
        screen.wait(lambda: it_takes_a_while.search(screen.text) is not None, "how long the script has taken")
        *before, _, _, _ = _picture(screen)  # without the spinner, the input line and the status
        screen.kill()
    studio.server.say(Reply(calls=(call("read_file", path="deploy.log"),)), CUT_OFF)
    with studio.screen(84, 34, "-c") as screen:
        screen.see("Should I")
        screen.wait(lambda: LEVEL in screen.status and "Ctrl-C stops" not in screen.text, "the status, and no spinner")
        return [
            *(_line("$ talaria"), *before),
            *(_line("Killed", _COLOURS["red"]), _line(""), _line("$ talaria -c"), *_picture(screen)),
        ]


def approval(studio: Studio) -> Picture:
    install = call(
        "terminal",
        command="python3 -m venv .venv && .venv/bin/pip install pytest",
        needs=["network pypi.org"],
        reason="pytest is not installed",
    )
    studio.server.say(Reply(calls=(install,)))
    with studio.screen(84, 24) as screen:
        screen.say("Run the tests with pytest.")
        screen.see("the Python package index", "Enter: answer")
        return _picture(screen)


def completion(studio: Studio) -> Picture:
    with studio.screen(84, 16) as screen:
        screen.type("/re")
        screen.see("/resume", "/retry")
        screen.type(DOWN)
        screen.see("› /reset")
        return _picture(screen)


def picker(studio: Studio) -> Picture:
    for question, told in (
        ("Which of our endpoints are slow?", "Two: `/search` and `/export`."),
        ("Write release notes for 2.4", "# 2.4\n\nFaster search."),
    ):
        studio.server.say(told)
        with studio.screen(100, 20) as screen:
            screen.say(question)
            screen.see(told[-8:-2])
            screen.see_gone("Ctrl-C stops")
            screen.type(END)
            screen.end()
    with studio.screen(100, 20) as screen:
        screen.say("/resume")
        screen.see("Which conversation?", "Enter: select")
        return _picture(screen)


def narrow(studio: Studio) -> Picture:
    with studio.screen(40, 34) as screen:
        studio.repair(screen)
        return _picture(screen)


def plain(studio: Studio) -> Picture:
    with studio.screen(84, 24, NO_COLOR="1") as screen:
        studio.repair(screen)
        screen.say("Then add a test for it.")
        screen.see("queued: Then add")
        screen.type("and one for an empty cart")
        screen.see("for an empty cart")
        return _picture(screen)


TESTS = """import unittest

from cart import Cart


class Totals(unittest.TestCase):
    def test_discount(self) -> None:
        self.assertEqual(Cart([20.0, 5.0], discount=0.1).total(), 22.5)


unittest.main()
"""
BETTER = CART.replace(
    "        return sum(self.prices)", "        whole = sum(self.prices)\n        return whole * (1 - self.discount)"
)
BUILD = 'for n in 1 2 3 4 5 6; do echo "[$n/9] building module $n"; done; until [ -e go ]; do sleep 0.1; done'
DEPLOY = """echo uploading the shop | tee deploy.log
sleep 60
echo restarting the server | tee --append deploy.log
"""
CUT_OFF = """The deployment was cut off: `deploy.log` ends with the upload, and the server was not restarted.
I have not run the script again. Should I?"""
ASKING = "approvals: {ask: [patch]}\n"


def session(studio: Studio, columns: int, theme: Theme) -> Iterator[tuple[str, "Terminal"]]:
    """A test that fails, a read that is refused, an overwrite, a question, and a build that goes on."""
    (studio.project / "test_cart.py").write_text(TESTS)
    studio.server.say(
        Reply("I'll run the tests first.", calls=(call("terminal", command="python3 test_cart.py"),)),
        Reply(calls=(call("read_file", path="~/.ssh/id_ed25519"),)),
        Reply(calls=(call("read_file", path="cart.py"),)),
        Reply("The discount is never used.", calls=(call("write_file", path="cart.py", content=BETTER),)),
        Reply(
            calls=(call("patch", path="cart.py", old="discount: float = 0.0", new="discount: float = 0.0  # 0 to 1"),)
        ),
        Reply("Now the build.", calls=(call("terminal", command=BUILD),)),
    )
    rows = 50 if columns >= 100 else 76
    with studio.screen(columns, rows, COLORFGBG="15;0" if theme == "dark" else "0;15") as screen:
        screen.say("The total ignores the discount. Fix it?")
        screen.see("May patch do this?", "a i · Enter")
        yield f"question-{columns}-{theme}", screen
        screen.type(f"y{ENTER}")
        screen.see("Now the build.")
        screen.see("[6/9] building module 6")
        it_takes_a_while = re.compile(r"terminal  for .*  \d+ s *$", re.MULTILINE)
        screen.wait(lambda: it_takes_a_while.search(screen.text) is not None, "how long the build has taken")
        yield f"session-{columns}-{theme}", screen
        (studio.project / "go").touch()


SESSIONS: Sequence[tuple[int, Theme]] = ((120, "dark"), (120, "light"), (40, "dark"), (40, "light"))
NAMES = tuple(f"{what}-{columns}-{theme}" for columns, theme in SESSIONS for what in ("question", "session"))
SCENES: Mapping[str, Callable[[Studio], Picture]] = {
    "chat": chat,
    "crash": crash,
    "approval": approval,
    "completion": completion,
    "picker": picker,
    "narrow": narrow,
    "plain": plain,
}


def taken() -> Iterator[tuple[str, Picture]]:
    """Every scene, played."""
    for name, scene in SCENES.items():
        with ModelServer() as server, tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as folder:
            yield name, scene(Studio(Path(folder), server))


def played(columns: int, theme: Theme) -> Iterator[tuple[str, Picture]]:
    """One session, with a picture of each of its moments."""
    with ModelServer() as server, tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as folder:
        for name, screen in session(Studio(Path(folder), server, ASKING), columns, theme):
            yield name, _picture(screen, theme)


def _picture(terminal: Terminal, theme: Theme = "dark") -> Picture:
    rows, columns = len(terminal.cells), len(terminal.cells[0])
    screen = pyte.Screen(columns, rows)
    pyte.ByteStream(screen).feed(_DIM.sub(b"\x1b[\\g<1>90\\2m", terminal.raw))
    cells = [[_cell(screen.buffer[row][column], theme) for column in range(columns)] for row in range(rows)]
    if not screen.cursor.hidden:
        column, row = terminal.cursor
        cells[row][column] = Cell(cells[row][column].sign, Look(_PAPERS[theme], _INKS[theme]))
    while not _text(cells[-1]):
        cells.pop()
    return [_masked(line) for line in cells]


def _line(text: str, ink: str = _INK) -> Sequence[Cell]:
    """What a shell shows around the program."""
    return [Cell(sign, Look(ink)) for sign in text]


def _cell(char: pyte.screens.Char, theme: Theme) -> Cell:
    ink, paper = _colour(char.fg, _INKS[theme]), _colour(char.bg, "")
    if char.reverse:
        ink, paper = paper or _PAPERS[theme], ink
    return Cell(char.data, Look(ink, paper, char.bold, char.italics, char.underscore))


def _colour(name: str, usual: str) -> str:
    if name == "default":
        return usual
    return _COLOURS.get(name) or _COLOURS.get(name.removeprefix("bright")) or f"#{name}"


def _masked(line: list[Cell]) -> Sequence[Cell]:
    """What is different each time is made the same."""
    for changing, instead in _CHANGING:
        text = "".join(cell.sign or "\0" for cell in line)
        for found in reversed(list(changing.finditer(text))):
            masked = [Cell(sign, line[found.start()].look) for sign in instead]
            line = [*line[: found.start()], *masked, *line[found.end() :]]
    return line


def _text(line: Sequence[Cell]) -> str:
    return "".join(cell.sign for cell in line).rstrip()


def text_of(picture: Picture) -> list[str]:
    return [_text(line) for line in picture]


def text_in(svg: str) -> list[str]:
    """What can be read in a picture that was kept."""
    return ["".join(line.itertext()).rstrip() for line in ET.fromstring(svg) if line.tag.endswith("text")]


def svg(picture: Picture, theme: Theme = "dark") -> str:
    width = round(max(map(len, picture)) * _CELL + 2 * _LEFT)
    height = len(picture) * _LINE + _TOP + 14
    font = 'font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace" font-size="14"'
    lights = (("red", 22), ("brown", 42), ("green", 62))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {font}>',
        f'<rect width="{width}" height="{height}" rx="10" fill="{_PAPERS[theme]}"{_EDGES[theme]}/>',
        *(f'<circle cx="{left}" cy="20" r="6" fill="{_COLOURS[name]}"/>' for name, left in lights),
        *(part for row, line in enumerate(picture) for part in _drawn(line, _TOP + row * _LINE)),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _drawn(line: Sequence[Cell], top: int) -> Iterator[str]:
    """Its background, and then its text."""
    while line and line[-1].sign == " " and not line[-1].look.paper:
        line = line[:-1]
    spans: list[str] = []
    column = 0
    for look, cells in groupby(line, lambda cell: cell.look):
        run = list(cells)
        left, length = _LEFT + column * _CELL, len(run) * _CELL
        column += len(run)
        if look.paper:
            yield f'<rect x="{left:.1f}" y="{top}" width="{length:.1f}" height="{_LINE}" fill="{look.paper}"/>'
        words = escape("".join(cell.sign for cell in run))
        spans.append(f'<tspan x="{left:.1f}" textLength="{length:.1f}" {look.style}>{words}</tspan>')
    yield f'<text y="{top + 14}" xml:space="preserve">{"".join(spans)}</text>'


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, picture in taken():
        (FOLDER / f"{name}.svg").write_text(svg(picture), encoding="utf-8")
    for columns, theme in SESSIONS:
        for name, picture in played(columns, theme):
            (FOLDER / f"{name}.svg").write_text(svg(picture, theme), encoding="utf-8")


if __name__ == "__main__":
    main()
