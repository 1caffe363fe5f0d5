"""`hermes_state`: conversations as they are kept, to read; and the way to another platform."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from talaria.compat.hermes.aliases.hermes_cli_config import get_hermes_home
from talaria.compat.hermes.bound import require_bound
from talaria.config import paths
from talaria.core.clock import SystemClock
from talaria.core.entries import MessageAdded
from talaria.core.ids import SessionId
from talaria.core.message_dicts import to_dicts
from talaria.runtime.transcript import without_undone
from talaria.store.base import Session, Store
from talaria.store.sqlite.store import SqliteStore

T = TypeVar("T")
PATIENCE_S = 30.0


class SessionDB:
    """Nothing is open between two calls. Called from plugin code, which has a thread of its own."""

    def __init__(self, db_path: Path | str | None = None, **_: Any) -> None:
        self._home = require_bound().home
        self.db_path = paths.database_file(get_hermes_home())
        """The name that plugins know. The conversations themselves are in Talaria's database."""
        known = (self.db_path, paths.database_file(self._home), paths.database_file(require_bound().plugin_home.path))
        if db_path is not None and Path(db_path).resolve() not in [path.resolve() for path in known]:
            raise ValueError(f"There is only one database here: {self.db_path}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None: ...

    def get_session(self, session_id: str) -> dict[str, Any] | None:
        row = self._ask(lambda store: store.sessions.get(SessionId(session_id)))
        return _to_dict(row) if row else None

    def get_session_by_title(self, title: str) -> dict[str, Any] | None:
        return next((one for one in self.search_sessions(limit=10_000) if one["title"] == title), None)

    def search_sessions(self, source: str | None = None, limit: int = 20, offset: int = 0) -> list[dict[str, Any]]:
        """The latest first."""
        wanted = limit + offset if source is None else 10_000
        rows = self._ask(lambda store: store.sessions.list(wanted))
        found = [_to_dict(row) for row in rows if source in (None, row.source)]
        return found[offset : offset + limit]

    def list_sessions_rich(
        self, source: str | None = None, limit: int = 20, offset: int = 0, **_: Any
    ) -> list[dict[str, Any]]:
        return self.search_sessions(source, limit, offset)

    def get_messages(self, session_id: str) -> list[dict[str, Any]]:
        """As the person sees them: without what was undone."""
        entries = self._ask(lambda store: store.journal.entries(SessionId(session_id)))
        said = [(one, one.entry.message) for one in without_undone(entries) if isinstance(one.entry, MessageAdded)]
        return [
            {"id": recorded.seq, "session_id": session_id, "timestamp": recorded.at, **to_dicts([message])[0]}
            for recorded, message in said
        ]

    def get_messages_as_conversation(self, session_id: str, **_: Any) -> list[dict[str, Any]]:
        messages = self.get_messages(session_id)
        for message in messages:
            del message["id"], message["session_id"], message["timestamp"]
        return messages

    def search_messages(self, query: str, *_: Any, limit: int = 20, **__: Any) -> list[dict[str, Any]]:
        hits = self._ask(lambda store: store.search.search(query, limit))
        return [
            {"session_id": hit.session, "timestamp": hit.at, "role": hit.role, "snippet": hit.snippet} for hit in hits
        ]

    def request_handoff(self, session_id: str, platform: str) -> bool:
        return self._ask(lambda store: store.handoffs.request(SessionId(session_id), platform))

    def get_handoff_state(self, session_id: str) -> dict[str, Any] | None:
        found = self._ask(lambda store: store.handoffs.state(SessionId(session_id)))
        return msgspec.structs.asdict(found) if found else None

    def list_pending_handoffs(self) -> list[dict[str, Any]]:
        ids = self._ask(lambda store: store.handoffs.list_pending())
        return [row for id in ids if (row := self.get_session(id)) is not None]

    def claim_handoff(self, session_id: str) -> bool:
        return self._ask(lambda store: store.handoffs.claim(SessionId(session_id)))

    def complete_handoff(self, session_id: str) -> None:
        self._ask(lambda store: store.handoffs.complete(SessionId(session_id)))

    def fail_handoff(self, session_id: str, error: str) -> None:
        self._ask(lambda store: store.handoffs.fail(SessionId(session_id), error))

    def _ask(self, work: Callable[[Store], Awaitable[T]]) -> T:
        async def work_in_store() -> T:
            async with SqliteStore(self._home, SystemClock()) as store:
                return await work(store)

        return require_bound().bridge.run(work_in_store, PATIENCE_S)


def _to_dict(row: Session) -> dict[str, Any]:
    return {
        "id": row.id,
        "source": row.source,
        "user_id": row.person,
        "model": row.model,
        "system_prompt": row.system_prompt,
        "parent_session_id": row.parent,
        "title": row.title,
        "preview": row.preview,
        "cwd": row.cwd,
        "started_at": row.created_at,
        "last_active": row.updated_at,
        "ended_at": None,
        "message_count": row.message_count,
    }
