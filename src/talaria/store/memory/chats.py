"""Chats in memory."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from talaria.core.ids import SessionId
from talaria.store.base import BrokenRuleError
from talaria.store.chats import BusyMode, ChatRow
from talaria.store.memory.tables import MemoryDatabase, Tables


class Chats:
    def __init__(self, memory: MemoryDatabase) -> None:
        self._memory = memory

    async def get(self, key: str) -> ChatRow | None:
        return self._memory.tables.chats.get(key)

    async def bind(self, key: str, session: SessionId, address: str) -> SessionId | None:
        with self._memory.transaction() as tables:
            return bind(tables, key, session, address)

    async def of(self, session: SessionId) -> Sequence[ChatRow]:
        return [chat for chat in reversed(self._memory.tables.chats.values()) if chat.session == session]

    async def move(self, key: str, to_key: str, address: str, to: str) -> None:
        with self._memory.transaction() as tables:
            for old in [one for one in tables.chats if one == key or one.startswith(f"{key}:")]:
                new = f"{to_key}{old.removeprefix(key)}"
                if new not in tables.chats:
                    tables.chats = {
                        (new if one == old else one): (msgspec.structs.replace(chat, key=new) if one == old else chat)
                        for one, chat in tables.chats.items()
                    }
            tables.chats = {
                one: msgspec.structs.replace(chat, address=to) if chat.address == address else chat
                for one, chat in tables.chats.items()
            }
            tables.homes = {name: to if home == address else home for name, home in tables.homes.items()}

    async def set_busy_mode(self, key: str, mode: BusyMode | None) -> None:
        with self._memory.transaction() as tables:
            if key not in tables.chats:
                raise BrokenRuleError(f"no chat {key}")
            tables.chats[key] = msgspec.structs.replace(tables.chats[key], busy_mode=mode)

    async def home(self, platform: str) -> str | None:
        return self._memory.tables.homes.get(platform)

    async def home_person(self, platform: str) -> str:
        return self._memory.tables.home_people.get(platform, "")

    async def set_home(self, platform: str, address: str, person: str = "") -> None:
        with self._memory.transaction() as tables:
            tables.homes[platform] = address
            tables.home_people[platform] = person


def bind(tables: Tables, key: str, session: SessionId, address: str) -> SessionId | None:
    """The session that the chat was about before."""
    before = tables.chats.pop(key, None)  # and in again, after all others
    tables.chats[key] = ChatRow(key, session, address, before.busy_mode if before else None)
    for place, row in tables.inbox.items():
        if row.inbound.key == key and row.inbound.state == "new":
            tables.inbox[place] = replace(row, inbound=msgspec.structs.replace(row.inbound, session=session))
    return before.session if before else None
