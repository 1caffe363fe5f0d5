"""Where imported conversations go: into our store, or, in a dry run, nowhere."""

from pathlib import Path
from typing import Protocol

import msgspec

from talaria.compat.hermes_home.hermes_database import HermesSession, open_read_only
from talaria.core.aio import in_thread
from talaria.core.entries import Recorded
from talaria.core.ids import SessionId
from talaria.providers.demo import ENDPOINT as ANY_ENDPOINT
from talaria.providers.route import Route
from talaria.runtime import prompt
from talaria.runtime.session_config import SessionConfig
from talaria.store.base import Adoption, NewSession, Sessions
from talaria.tools.registry import Toolbox


class AdoptingSessions(Sessions, Adoption, Protocol):
    """Sessions of a store that takes others over."""


class StoreReceiver:
    """Gives each conversation what a new one would begin with: a prompt for its folder, and the tools."""

    def __init__(self, shelf: AdoptingSessions, toolbox: Toolbox, home: Path) -> None:
        self._shelf = shelf
        self._tools = msgspec.json.encode(toolbox.specs).decode()
        self._home = home
        self._prompts: dict[Path, str] = {}

    async def has(self, id: str) -> bool:
        return await self._shelf.get(SessionId(id)) is not None

    async def take(self, row: HermesSession, told: list[Recorded]) -> bool:
        return await self._shelf.adopt(await in_thread(lambda: self._new(row)), row.at or told[0].at, told)

    def _new(self, row: HermesSession) -> NewSession:
        """A folder that is gone is replaced by the person's home: the tools need one."""
        folder = Path(row.cwd) if row.cwd and Path(row.cwd).is_dir() else Path.home()
        return NewSession(
            SessionId(row.id),
            source=row.source,
            model=f"{row.provider}:{row.model}" if row.provider and row.model else row.model,
            cwd=str(folder),
            system_prompt=self._prompt(folder),
            tools=self._tools,
            title=row.title,
            parent=SessionId(row.parent) if row.parent else None,
        )

    def _prompt(self, folder: Path) -> str:
        if folder not in self._prompts:
            self._prompts[folder] = prompt.build(SessionConfig(Route(ANY_ENDPOINT), folder, self._home))
        return self._prompts[folder]


class NoReceiver:
    """Knows what our database has, and takes nothing."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._known: frozenset[str] | None = None

    async def has(self, id: str) -> bool:
        if self._known is None:
            self._known = await in_thread(lambda: _session_ids(self._database))
        return id in self._known

    async def take(self, row: HermesSession, told: list[Recorded]) -> bool:  # noqa: ARG002
        return True


def _session_ids(database: Path) -> frozenset[str]:
    if not database.exists():
        return frozenset()
    with open_read_only(database) as connection:
        return frozenset(str(row[0]) for row in connection.execute("SELECT id FROM sessions"))
