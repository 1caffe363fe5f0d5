"""Handoff: the key under which a chat finds its conversation, and what binding it to another one means."""

import pytest
from tests.contracts.store.conftest import clock, store

from talaria.core.ids import SessionId
from talaria.gateway.envelope import KeyRules, session_key
from talaria.platforms.base import Address, ChatKind
from talaria.store.base import Store
from talaria.store.chat_ports import Inbound

__all__ = ["clock", "store"]

ONE, TWO = SessionId("one"), SessionId("two")
KEY = "agent:main:telegram:dm:42"


@pytest.mark.clause("H-X7")
@pytest.mark.parametrize(
    ("where", "kind", "rules", "key"),
    [
        (Address("telegram", "42"), "dm", KeyRules(), KEY),
        (Address("telegram", "42", "7"), "dm", KeyRules(), f"{KEY}:7"),
        (Address("telegram", "", "7"), "dm", KeyRules(), "agent:main:telegram:dm:1001:7"),
        (Address("telegram", "42"), "dm", KeyRules("work"), "agent:work:telegram:dm:42"),
        (Address("telegram", "-9"), "group", KeyRules(), "agent:main:telegram:group:-9:1001"),
        (Address("telegram", "-9"), "group", KeyRules(is_group_per_person=False), "agent:main:telegram:group:-9"),
        (Address("telegram", "-9", "7"), "group", KeyRules(), "agent:main:telegram:thread:-9:7"),
        (
            Address("telegram", "-9", "7"),
            "group",
            KeyRules(is_thread_per_person=True),
            "agent:main:telegram:thread:-9:7:1001",
        ),
    ],
)
def test_how_a_key_is_made(where: Address, kind: ChatKind, rules: KeyRules, key: str) -> None:
    assert session_key(where, kind, "1001", rules) == key
    assert key.split(":")[2] == "telegram"


@pytest.mark.clause("H-X7")
def test_no_chat_can_pass_for_another() -> None:
    names = [("a:b", "c"), ("a", "b:c"), ("a%3Ab", "c"), ("a", "b%3Ac")]
    keys = {session_key(Address("matrix", chat, thread), "group", "", KeyRules()) for chat, thread in names}
    assert len(keys) == len(names)
    assert all(key.count(":") == 5 for key in keys)


@pytest.mark.clause("H-X6")
async def test_a_chat_that_is_bound_to_another_conversation_takes_its_mail_along(store: Store) -> None:
    assert await store.chats.get(KEY) is None
    assert await store.chats.bind(KEY, ONE, "telegram:42") is None
    (kept,) = await store.inbox.accept([Inbound("telegram", "bot", "42", "m1", SessionId("new"), "{}", KEY)])
    assert kept is not None
    assert kept.session == ONE
    assert await store.chats.bind(KEY, TWO, "telegram:42") == ONE
    assert await store.chats.bind(KEY, TWO, "telegram:42") == TWO
    bound = await store.chats.get(KEY)
    assert bound is not None
    assert (bound.session, bound.address) == (TWO, "telegram:42")
    assert [row.session for row in await store.inbox.list_pending(TWO)] == [TWO]
    assert await store.inbox.list_pending(ONE) == []
    assert await store.chats.list_for(ONE) == []
