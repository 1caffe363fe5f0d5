"""A developer's day: sessions with commands in a real sandbox, and a person who is asked and says yes.

What a day needs of a machine is real. Hosts below `.example` are registries on loopback.
"""

import os
import shutil
import socket
import subprocess
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from tests.contracts.sandboxes.desktop import Desktop

from talaria.core.clock import SystemClock
from talaria.core.ids import OwnerId, new_session_id
from talaria.core.messages import ToolResult
from talaria.core.questions import Answer, Question
from talaria.store.base import NewSession, Store
from talaria.store.memory import MemoryStore
from talaria.tools.sandbox.sandbox_settings import Backend

PATH = "/usr/local/bin:/usr/bin:/bin"

GIT_SETTINGS = """\
[user]
name = Ada
email = ada@example.org
[init]
defaultBranch = main
"""


class Missing(Exception):
    """Something that a day needs is not installed."""


class Developer:
    """Says yes for as long as is offered, and remembers what they were asked."""

    def __init__(self) -> None:
        self.asked: list[Question] = []

    def may_approve(self) -> bool:
        return True

    async def allow(self, question: Question) -> Answer:
        self.asked.append(question)
        return next(answer for answer in ("project", "once") if answer in question.offered)

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:
        return None


class Day:
    """One project, in which sessions follow each other."""

    def __init__(self, folder: Path, level: Backend, store: Store, owner: OwnerId) -> None:
        self.level: Backend = level
        self.person = folder / "person"
        """The home of the developer."""
        self.project = self.person / "src/shop"
        self.developer = Developer()
        self._folder = folder
        self._store = store
        self._owner = owner
        self._desktop: Desktop | None = None
        self._session = ""

    @property
    def has_network(self) -> bool:
        return self.level == "bubblewrap"

    async def begin(self, *, env: Sequence[str] = ()) -> None:
        """A new session, after the last one has ended. `env`: of the person's variables, those that commands get."""
        await self.end()
        self._session = new_session_id(SystemClock().now())
        await self._store.sessions.create(NewSession(self._session, "terminal"))
        self._desktop = Desktop(self._store, self._owner, self._folder, self.level, env=tuple(env))

    async def end(self) -> None:
        if self._desktop is not None:
            await self._desktop.close()
            self._desktop = None

    async def call(self, command: str, *, project: Path | None = None, **more: Any) -> ToolResult:
        assert self._desktop is not None, "no session has begun"
        place = str((project or self.project).relative_to(self._folder))
        more = {"timeout_s": 300, **more}
        return await self._desktop.run(command, self.developer, session=self._session, project=place, **more)

    async def run(self, command: str, **more: Any) -> str:
        """What a command prints that succeeds."""
        result = await self.call(command, **more)
        assert not result.is_error, f"{command}\n{result.text}"
        assert "[exit code 0]" in result.text, f"{command}\n{result.text}"
        return result.text

    async def fail(self, command: str, **more: Any) -> str:
        """What a command prints that fails and says so."""
        result = await self.call(command, **more)
        assert "[exit code 0]" not in result.text, f"{command}\n{result.text}"
        return result.text

    def outside(self, command: str, folder: Path | None = None) -> str:
        """By hand, outside of the sandbox: what it prints."""
        words = ("/bin/sh", "-ec", command)
        return subprocess.run(words, cwd=folder or self.project, stdout=subprocess.PIPE, text=True, check=True).stdout

    def write(self, files: Mapping[str, str], folder: Path | None = None) -> None:
        """By hand, outside of the sandbox."""
        for name, text in files.items():
            file = (folder or self.project) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def was_asked(self, *headlines: str) -> None:
        """Just these, since this was last called."""
        asked = [question.headline for question in self.developer.asked]
        self.developer.asked.clear()
        assert asked == [*headlines], asked


def wanted(*programs: str) -> None:
    """Raises `Missing`."""
    for program in programs:
        if shutil.which(program, path=PATH) is None:
            raise Missing(f"{program} is not installed")


@contextmanager
def _found_on_loopback() -> Generator[None]:
    real = socket.getaddrinfo

    def find(host: Any, *more: Any, **named: Any) -> Any:
        return real("127.0.0.1" if str(host).endswith(".example") else host, *more, **named)

    socket.getaddrinfo = find
    try:
        yield
    finally:
        socket.getaddrinfo = real


@asynccontextmanager
async def a_day(folder: Path, level: Backend) -> AsyncGenerator[Day]:
    (folder / "person/src/shop").mkdir(parents=True)
    os.environ.update(HOME=str(folder / "person"), PATH=PATH)
    os.environ.pop("GIT_SSL_CAINFO", None)
    async with MemoryStore(SystemClock()) as store:
        day = Day(folder, level, store, await store.owners.join("test"))
        (day.person / ".gitconfig").write_text(GIT_SETTINGS)
        with _found_on_loopback():
            try:
                yield day
            finally:
                await day.end()
