import pytest

from talaria.core.ids import Epoch, SessionId, TurnId
from talaria.store.base import BrokenRuleError, NewSession, Store
from talaria.store.chat_ports import ChatRow, Inbound, InboxTaken

OTHER = SessionId("session-2")
CHAT = "agent:main:telegram:dm:42"
SECOND = "agent:main:slack:dm:U7"


def inbound(message_id: str, session: SessionId, key: str = CHAT) -> Inbound:
    return Inbound("telegram", "bot", "42", message_id, session, "body", key)


async def pending(store: Store, session: SessionId) -> list[str]:
    return [mail.message_id for mail in await store.inbox.list_pending(session)]


async def test_chat_is_about_the_session_it_was_bound_to_last(store: Store, session: SessionId) -> None:
    assert await store.chats.get(CHAT) is None

    assert await store.chats.bind(CHAT, session, "telegram:42") is None
    assert await store.chats.get(CHAT) == ChatRow(CHAT, session, "telegram:42")

    assert await store.chats.bind(CHAT, OTHER, "telegram:43") == session
    assert await store.chats.get(CHAT) == ChatRow(CHAT, OTHER, "telegram:43")
    assert await store.chats.bind(CHAT, OTHER, "telegram:43") == OTHER


async def test_new_mail_follows_its_chat_and_what_was_taken_stays(
    store: Store, session: SessionId, epoch: Epoch
) -> None:
    await store.inbox.accept([inbound(number, session) for number in "123"])
    await store.inbox.accept([inbound("4", session, SECOND), inbound("5", session, "")])
    first, second, *_ = await store.inbox.list_pending(session)
    await store.journal.record(session, epoch, [InboxTaken(TurnId("turn-1"), (first.id,))])
    await store.inbox.take(second.id)
    await store.inbox.finish(session, [second.id])

    await store.chats.bind(CHAT, OTHER, "telegram:42")

    assert await pending(store, session) == ["1", "4", "5"]
    assert await pending(store, OTHER) == ["3"]
    assert await store.inbox.list_sessions() == [session, OTHER]


async def test_chats_of_a_session_are_listed_latest_bound_first(store: Store, session: SessionId) -> None:
    await store.inbox.accept([inbound("1", session)])
    await store.chats.bind(SECOND, session, "slack:U7")
    await store.chats.bind("elsewhere", OTHER, "slack:U8")
    assert [chat.key for chat in await store.chats.list_for(session)] == [SECOND, CHAT]

    await store.chats.bind(CHAT, session, "telegram:42")
    assert [chat.key for chat in await store.chats.list_for(session)] == [CHAT, SECOND]

    await store.chats.bind(SECOND, OTHER, "slack:U7")
    assert [chat.key for chat in await store.chats.list_for(session)] == [CHAT]


async def test_busy_mode_belongs_to_the_chat_whatever_it_is_about(store: Store, session: SessionId) -> None:
    await store.chats.bind(CHAT, session, "telegram:42")
    await store.chats.set_busy_mode(CHAT, "steer")
    await store.chats.bind(CHAT, OTHER, "telegram:42")
    assert await store.chats.get(CHAT) == ChatRow(CHAT, OTHER, "telegram:42", "steer")

    await store.chats.set_busy_mode(CHAT, None)
    assert await store.chats.get(CHAT) == ChatRow(CHAT, OTHER, "telegram:42")


async def test_busy_mode_of_an_unknown_chat_is_refused(store: Store) -> None:
    with pytest.raises(BrokenRuleError):
        await store.chats.set_busy_mode(CHAT, "queue")


async def test_binding_goes_with_its_session(store: Store, session: SessionId) -> None:
    await store.sessions.create(NewSession(OTHER, "test"))
    await store.chats.bind(CHAT, session, "telegram:42")
    await store.chats.bind(SECOND, OTHER, "slack:U7")

    await store.sessions.delete(session)

    assert await store.chats.get(CHAT) is None
    assert await store.chats.list_for(OTHER) == [ChatRow(SECOND, OTHER, "slack:U7")]
    (row,) = await store.inbox.accept([inbound("1", SessionId("a fresh one"))])
    assert row is not None
    assert row.session == "a fresh one"


async def test_home_is_the_address_chosen_last(store: Store) -> None:
    assert await store.chats.home("telegram") is None

    await store.chats.set_home("telegram", "telegram:1")
    await store.chats.set_home("telegram", "telegram:2")
    await store.chats.set_home("slack", "slack:C1")

    assert (await store.chats.home("telegram"), await store.chats.home("slack")) == ("telegram:2", "slack:C1")


async def test_a_chat_that_is_called_otherwise_keeps_its_conversations(store: Store, session: SessionId) -> None:
    old, new = "agent:main:telegram:group:-1", "agent:main:telegram:group:-100"
    await store.chats.bind(f"{old}:7", session, "telegram:-1")
    await store.chats.bind(f"{old}0:7", session, "telegram:-10")
    await store.chats.set_home("telegram", "telegram:-1")

    await store.chats.move(old, new, "telegram:-1", "telegram:-100")

    assert await store.chats.get(f"{old}:7") is None
    moved = await store.chats.get(f"{new}:7")
    assert moved is not None
    assert (moved.session, moved.address) == (session, "telegram:-100")
    assert await store.chats.get(f"{old}0:7") is not None
    assert await store.chats.home("telegram") == "telegram:-100"


async def test_a_chat_that_has_the_new_name_already_keeps_it(store: Store, session: SessionId) -> None:
    other = SessionId("another")
    await store.chats.bind("agent:main:telegram:group:-1:7", session, "telegram:-1")
    await store.chats.bind("agent:main:telegram:group:-100:7", other, "telegram:-100")

    await store.chats.move(
        "agent:main:telegram:group:-1", "agent:main:telegram:group:-100", "telegram:-1", "telegram:-100"
    )

    kept = await store.chats.get("agent:main:telegram:group:-100:7")
    assert kept is not None
    assert kept.session == other
