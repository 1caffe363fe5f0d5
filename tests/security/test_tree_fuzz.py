"""A hostile process makes random links, repositories, worktrees, renames and pipes in a project while Talaria reads,
writes, searches, keeps checkpoints, looks for what to guard and moves strange things away. Whatever it does, nothing
outside of the project is read, changed or removed."""

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from talaria.cli.references import with_references
from talaria.core.errors import BadInput
from talaria.core.ids import CallId, SessionId
from talaria.core.messages import ToolCall, user
from talaria.core.redaction import Redactor
from talaria.core.trees import Root
from talaria.gateway.replies import NotSendable, find_file
from talaria.providers.base import Route
from talaria.providers.demo import ENDPOINT
from talaria.runtime.prompt import build
from talaria.runtime.session_config import SessionConfig
from talaria.store.sqlite.undo import SqliteUndoStore
from talaria.tools import file_content
from talaria.tools.base import OpenGate, Scope
from talaria.tools.builtin.file_tools import file_tools
from talaria.tools.builtin.search_tools import search_tools
from talaria.tools.executor import Executor
from talaria.tools.file_content import ReadFiles
from talaria.tools.protected import Protected
from talaria.tools.quarantine import Quarantine
from talaria.tools.registry import Toolbox
from talaria.tools.sandbox.base import SandboxPolicy
from talaria.tools.sandbox.inside import find_guardable, scan_project
from talaria.tools.sandbox.sandbox_policy import view_of
from talaria.tools.sandbox.sandbox_settings import TerminalSettings
from talaria.tools.undo.change_recorder import ChangeRecorder, undo_file

CANARY = "canary-tree-T7pLx2QvN9kRw4ZcB6mYs1Hd"
NAMES = ("a", "b", ".git", "hooks", "config", "commondir", "AGENTS.md", ".local", "bin", "x.txt")
HOSTILE = Path(__file__).with_name("hostile_tree.py")
"""What the other side does; a program of its own."""


class World:
    """Everything that can be harmed is below one folder."""

    def __init__(self, folder: Path) -> None:
        self.project, self.home, self.outside = folder / "project", folder / "home", folder / "outside"
        for place in (self.project, self.home, self.outside):
            place.mkdir()
        for name in ("a", "hooks", "config", "bin", ".git/hooks", "commondir.d", "b/a"):
            (self.outside / name).mkdir(parents=True, exist_ok=True)
        for place, _, _ in os.walk(self.outside):
            for name in ("commondir", "x.txt", "AGENTS.md", "key"):
                Path(place, name).write_text(CANARY)
        self.before = self.marks()

    def marks(self) -> dict[str, tuple[int, int, str]]:
        """Of all that is outside: inode, time of change, content."""
        found = dict[str, tuple[int, int, str]]()
        for folder, folders, names in os.walk(self.outside):
            for name in (*folders, *names):
                path = Path(folder, name)
                known = path.lstat()
                found[str(path)] = known.st_ino, known.st_mtime_ns, path.read_text() if path.is_file() else ""
        return found


@contextmanager
def hostile(world: World, seed: int) -> Generator[None]:
    words = (sys.executable, "-I", HOSTILE, world.project, world.outside, str(seed), str(os.getpid()))
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "on\n"
            yield
            assert process.poll() is None, "the other side has given up"
        finally:
            process.kill()


class Talaria:
    """One step of ours at a time; each answers with all that the model, or a person in a chat, would get to see."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world, self._chance = world, chance
        self._scope = Scope(SessionId("s"), world.project, world.home / "spill/s", turn="t")
        protected = Protected(world.outside.parent / "person", world.home)
        tools = (*file_tools(ReadFiles()), *search_tools(protected))
        self._executor = Executor(Toolbox(tools), OpenGate(), self._scope)
        self._quarantine = Quarantine(world.home, SessionId("s"))
        self._root = Root.open(world.project)
        self._recorder = ChangeRecorder(SqliteUndoStore(undo_file(world.home)), world.home)
        self.steps = (
            *(
                self.read,
                self.write,
                self.read_at,
                self.record,
                self.restore,
                self.tidy,
                self.look,
                self.build,
                self.refer,
                self.send,
            ),
        )

    def close(self) -> None:
        self._root.close()
        self._recorder.close()

    def _name(self) -> str:
        return "/".join(self._chance.choices(NAMES, k=self._chance.randint(1, 3)))

    def _target(self) -> Path | None:
        """Resolved once, as a call is prepared. What is outside by then would be asked about."""
        with suppress(OSError, RuntimeError):
            path = (self._world.project / self._name()).resolve()
            return path if path.is_relative_to(self._world.project) else None
        return None

    def read_at(self) -> str:
        path = self._target()
        found = file_content.read_file(path, 1_000) if path else None
        return found.content.decode("utf-8", "replace") if found else ""

    def read(self) -> str:
        return self._root.read(self._root.follow(self._name()), 1_000).decode("utf-8", "replace")

    def write(self) -> str:
        path = self._target()
        if path is not None:
            recording = self._recorder.project(self._world.project).begin("s", "t", [path])
            before = file_content.read_file(path, 1_000)
            file_content.write_file(path, b"ours", before)
            if recording is not None:
                self._recorder.project(self._world.project).end(recording)
        return ""

    def record(self) -> str:
        recording = self._recorder.project(self._world.project).begin("s", str(self._chance.random()), None)
        if recording is not None:
            self._recorder.project(self._world.project).end(recording)
        return ""

    def restore(self) -> str:
        kept = self._recorder.checkpoints(SessionId("s"))
        if not (known := kept.list()):
            return ""
        told = "".join(one.diff for one in kept.changes_since(known[-1].number, Redactor()))
        kept.restore(known[-1].number, everything=True)
        return told

    def tidy(self) -> str:
        self._quarantine.move(self._root, [self._name(), ".git/commondir", ".local/bin"])
        return ""

    def look(self) -> str:
        """What would be mounted must be in the project, and no link."""
        view = view_of(self._world.project, self._world.home, TerminalSettings(), {})
        places_ = (
            *scan_project(self._world.project).policy,
            *find_guardable((self._world.project,), iter(view.guarded)),
        )
        assert all(place.is_relative_to(self._world.project) for place in (*places_, *view.guarded, *view.unwanted))
        return _mounted(view)

    def build(self) -> str:
        return build(SessionConfig(route=Route(ENDPOINT), cwd=self._world.project, home=self._world.home))

    def refer(self) -> str:
        with suppress(BadInput):
            return str(with_references(user(f"@{self._name()}"), self._world.project))
        return ""

    def send(self) -> str:
        with suppress(NotSendable):
            named = find_file(str(self._world.project / self._name()), self._world.project, self._world.home, 1 << 20)
            with file_content.open_file(named) as file:
                return file.read(1_000).decode("utf-8", "replace")
        return ""

    async def search(self) -> str:
        arguments = json.dumps({"pattern": "canary|ours"})
        return (await self._executor.call(ToolCall(CallId("c"), "search_files", arguments))).text

    async def step(self, number: int) -> str:
        if number % 100 == 0:  # a process of its own
            return await self.search()
        try:
            return self._chance.choice(self.steps)()
        except OSError:
            return ""


def _mounted(view: SandboxPolicy) -> str:
    """What a sandbox would show of what it guards: it is handed over by descriptors that are reached like this."""
    shown = ""
    for path in view.guarded:
        with suppress(OSError), Root.open("/") as root:
            descriptor = root.handle(str(path)[1:])
            with suppress(OSError), Root(descriptor) as held:
                shown += held.read("key", 100).decode()
    return shown


def by_paths(world: World, chance: random.Random) -> str:
    """The control: the same steps as one would write them without care."""
    path = world.project / "/".join(chance.choices(NAMES, k=chance.randint(1, 3)))
    with suppress(OSError):
        if chance.random() < 0.5:
            if path.parent.is_dir() and path.is_file():
                return path.read_text(errors="replace") if path.stat().st_size < 1_000 else ""
        elif path.is_file():
            path.write_text("ours")
        elif path.is_dir() and not path.is_symlink() and path != world.project:
            shutil.rmtree(path, ignore_errors=True)
    return ""


async def run(folder: Path, steps: int, seed: int) -> None:
    world, chance = World(folder), random.Random(seed)
    talaria = Talaria(world, chance)
    try:
        with hostile(world, seed):
            for number in range(steps):
                assert CANARY not in await talaria.step(number), (
                    f"step {number} of seed {seed} has read what is outside"
                )
                if number % 50 == 0:
                    assert world.marks() == world.before, f"by step {number} of seed {seed}"
                    await asyncio.sleep(0)
        assert world.marks() == world.before
    finally:
        talaria.close()
    assert any((world.home / "quarantine/s").iterdir()), "the other side has made nothing strange"


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
async def test_nothing_outside_is_read_changed_or_removed(tmp_path: Path, seed: int) -> None:
    await run(tmp_path, 150, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
async def test_nothing_outside_is_ever_read_changed_or_removed(tmp_path: Path, seed: int) -> None:
    await run(tmp_path, 2_000, seed * 7919 + 3)


def test_without_care_the_same_steps_harm(tmp_path: Path) -> None:
    world, chance = World(tmp_path), random.Random(1)
    with hostile(world, 1):
        for _ in range(20_000):
            if CANARY in by_paths(world, chance) or world.marks() != world.before:
                return
    pytest.fail("the other side does nothing that harms")
