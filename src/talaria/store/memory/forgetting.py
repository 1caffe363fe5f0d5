"""Forgetting in memory."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from talaria.core.ids import SessionId
from talaria.store.forgetting import NOBODY, PersonalData, Stale, Traces, Whose
from talaria.store.mail import Inbound
from talaria.store.memory.mail import waiting
from talaria.store.memory.sessions import remove
from talaria.store.memory.tables import MemoryDatabase, SessionRow, Tables


class Forgetting:
    def __init__(self, memory: MemoryDatabase) -> None:
        self._memory = memory

    async def stale(self, before: float | None = None, keep: int = 0, *, is_empty: bool = False) -> Sequence[Stale]:
        tables = self._memory.tables
        rows = sorted(tables.sessions.values(), key=lambda row: (row.session.updated_at, row.session.id))
        return [
            _stale(row)
            for row in rows[: max(0, len(rows) - keep)]
            if (before is None or row.session.updated_at < before)
            and not (is_empty and row.session.message_count)
            and _is_at_rest(tables, row)
        ]

    async def discard(self, session: SessionId) -> bool:
        with self._memory.transaction() as tables:
            row = tables.sessions.get(session)
            if row is None or not _is_at_rest(tables, row):
                return False
            remove(tables, session)
        return True

    async def traces(self, whose: Whose) -> Traces:
        return _Found(self._memory.tables, whose).traces()

    async def forget(self, whose: Whose) -> Traces:
        with self._memory.transaction() as tables:
            found = _Found(tables, whose)
            traces = found.traces()
            found.own.check_at_rest(lambda session: tables.sessions[session].owner in tables.owners)
            found.remove()
        return traces


def _stale(row: SessionRow) -> Stale:
    session = row.session
    size = sum(len(msgspec.json.encode(recorded.entry)) for recorded in row.entries)
    name = session.preview if session.title is None else session.title
    return Stale(session.id, name, session.updated_at, session.message_count, size)


def _is_at_rest(tables: Tables, row: SessionRow) -> bool:
    id = row.session.id
    is_due = any(one.session == id and one.state in ("pending", "started") for one in tables.outbox.values())
    is_moving = row.handoff.state in ("pending", "running")
    return row.owner not in tables.owners and not waiting(tables, id) and not is_due and not is_moving


class _Found:
    """The rows of one person."""

    def __init__(self, tables: Tables, whose: Whose) -> None:
        self._tables = tables
        self._whose = whose
        self._rows = [row for row in tables.sessions.values() if row.session.person == whose.person]
        ids = sorted(row.session.id for row in self._rows)
        mail = [row.inbound for row in tables.inbox.values()]
        self.own = PersonalData(whose, ids, mail, tables.chats.values())

    def traces(self) -> Traces:
        tables, own, whose = self._tables, self.own, self._whose
        there = [one.session for one in own.elsewhere if one.session in tables.sessions]
        return Traces(
            conversations=tuple(own.conversations),
            messages=sum(row.session.message_count for row in self._rows),
            inbox=sum(self._is_theirs(row.inbound) for row in tables.inbox.values()),
            outbox=sum(self._is_to_them(row.session, row.target) for row in tables.outbox.values()),
            chats=len(own.keys),
            approvals=sum(whose.person in (row.requester, row.decided_by) for row in tables.approvals.values()),
            grants=sum(row.person == whose.person for row in tables.grants.values()),
            pairing=len(self._names()),
            homes=sum(address in own.addresses for address in tables.homes.values()),
            spending=sum(row.person == whose.person for row in tables.spending),
            shared=tuple(dict.fromkeys(there)),
            names=tuple(dict.fromkeys(filter(None, self._names()))),
            folders=self._folders(),
        )

    def remove(self) -> None:
        tables, own, person = self._tables, self.own, self._whose.person
        tables.inbox = {key: row for key, row in tables.inbox.items() if not self._is_theirs(row.inbound)}
        tables.outbox = {id: row for id, row in tables.outbox.items() if not self._is_to_them(row.session, row.target)}
        tables.chats = {key: row for key, row in tables.chats.items() if key not in own.keys}
        tables.homes = {name: home for name, home in tables.homes.items() if home not in own.addresses}
        if tables.home_people.get(self._whose.platform) == self._whose.user:
            del tables.home_people[self._whose.platform]
        for id in own.conversations:
            remove(tables, id)
        tables.approvals = {
            id: row for id, row in tables.approvals.items() if person not in (row.requester, row.decided_by)
        }
        tables.grants = {id: row for id, row in tables.grants.items() if row.person != person}
        tables.holds = {id: row for id, row in tables.holds.items() if row.person != person}
        tables.spending = tuple(
            replace(row, spent=msgspec.structs.replace(row.spent, person=NOBODY)) if row.person == person else row
            for row in tables.spending
        )
        tables.members.pop((self._whose.platform, self._whose.user), None)
        tables.requests.pop((self._whose.platform, self._whose.user), None)

    def _is_theirs(self, inbound: Inbound) -> bool:
        return inbound.session in self.own.conversations or inbound in self.own.said

    def _is_to_them(self, session: SessionId, target: str) -> bool:
        return session in self.own.conversations or target in self.own.addresses

    def _names(self) -> list[str]:
        who = (self._whose.platform, self._whose.user)
        found = (self._tables.members.get(who), self._tables.requests.get(who))
        return [one.name for one in found if one is not None]

    def _folders(self) -> tuple[str, ...]:
        others = {row.session.cwd for row in self._tables.sessions.values() if row not in self._rows}
        return tuple(sorted({row.session.cwd for row in self._rows} - others))
