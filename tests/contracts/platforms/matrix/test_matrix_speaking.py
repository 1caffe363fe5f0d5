"""Matrix through its port, over a real homeserver: what we say, and what goes wrong with it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.contracts.platforms.matrix.conftest import Connect, Listen, Words
from tests.servers.synapse import PASSWORD, Synapse
from tests.servers.synapse_person import SynapseUser

from talaria.core.errors import BadConfig
from talaria.platforms.base import (
    AccessLost,
    Address,
    ChatMoved,
    File,
    NotTaken,
    Platform,
    Refused,
    Rejected,
    SentId,
    Unsure,
)
from talaria.testing.servers.chat_service import Fault, LostAnswer, Refusal

GONE = SentId("$nowhere")


async def met(server: Synapse, connect: Connect, listen: Listen, home: str = "home") -> str:
    """The room of the first person and us."""
    async with connect(home=home) as matrix, listen(matrix) as ear:
        await server.say("hello")
        return (await ear.arrival()).where.chat


async def last(person: SynapseUser, room: str, sender: str) -> dict[str, object]:
    return [dict(event["content"]) for event in person.events(room) if event["sender"] == sender][-1]


async def test_a_message_is_seen_with_its_markup_and_mentions_nobody(
    server: Synapse, connect: Connect, listen: Listen, words: Words
) -> None:
    room = await met(server, connect, listen)
    async with connect() as matrix:
        sent = await matrix.send(words(room, "**Hi** @room ![cat](https://evil.example/cat.png)"))
        (seen,) = await server.wait_for(1)
    assert (seen.id, seen.text) == (sent, "Hi @room cat")
    content = await last(await server.person(), room, server.bot)
    assert content["m.mentions"] == {}
    assert content["body"] == "**Hi** @room ![cat](https://evil.example/cat.png)"
    assert "<img" not in str(content["formatted_body"])


async def test_clients_are_told_not_to_fetch_what_a_message_links_to(
    server: Synapse, connect: Connect, listen: Listen, words: Words
) -> None:
    """Each client heeds another of these."""
    none: dict[str, object] = {
        "m.url_previews": [],
        "com.beeper.linkpreviews": [],
        "uk.half-shot.unstable.show_url_previews": False,
    }
    room = await met(server, connect, listen)
    async with connect() as matrix:
        sent = await matrix.send(words(room, "https://evil.example/?q=stolen"))
        await server.wait_for(1)
        first = await last(await server.person(), room, server.bot)
        await matrix.edit(sent, words(room, "[a page](https://evil.example/?q=stolen)"))
        await matrix.send(words(room, "end", key="key-2"))
        await server.wait_for(2)
    events = (await server.person()).events(room)
    changes = [event["content"] for event in events if "m.new_content" in event["content"]]
    assert first.items() >= none.items()
    assert [change["m.new_content"].items() >= none.items() for change in changes] == [True]
    assert changes[0].items() >= none.items()


async def test_the_same_key_is_the_same_message_also_after_a_restart(
    server: Synapse, connect: Connect, listen: Listen, words: Words
) -> None:
    room = await met(server, connect, listen)
    async with connect() as matrix:
        first = await matrix.send(words(room, "once", key="a:1"))
    async with connect() as matrix:
        assert await matrix.send(words(room, "once", key="a:1")) == first
        assert await matrix.send(words(room, "twice", key="a:2")) != first
    assert [seen.text for seen in await server.wait_for(2)] == ["once", "twice"]
    assert len(server.calls("login")) == 1


async def test_a_message_changes_and_reads_as_it_was_last_told_to(
    server: Synapse, connect: Connect, listen: Listen, words: Words
) -> None:
    room = await met(server, connect, listen)
    async with connect() as matrix:
        sent = await matrix.send(words(room, "…"))
        for text in ("A", "*B*", "A", "A"):
            await matrix.edit(sent, words(room, text))
        await matrix.send(words(room, "end", key="key-2"))
        seen = (await server.wait_for(2))[0]
    assert (seen.id, seen.text, seen.edits) == (sent, "A", 3)


async def test_an_edit_whose_answer_was_lost_is_one_edit(
    server: Synapse, connect: Connect, listen: Listen, words: Words
) -> None:
    room = await met(server, connect, listen)
    async with connect() as matrix:
        sent = await matrix.send(words(room, "…"))
        server.fault("send", LostAnswer())
        with pytest.raises(Unsure):
            await matrix.edit(sent, words(room, "done"))
        await matrix.edit(sent, words(room, "done"))
        await matrix.send(words(room, "end", key="key-2"))
        assert (await server.wait_for(2))[0].edits == 1


async def test_what_was_deleted_is_gone_and_cannot_be_changed(
    server: Synapse, connect: Connect, listen: Listen, words: Words
) -> None:
    room = await met(server, connect, listen)
    async with connect() as matrix:
        first, second = await matrix.send(words(room, "1")), await matrix.send(words(room, "2", key="key-2"))
        await matrix.delete(first, Address("matrix", room))
        with pytest.raises(Rejected, match="deleted"):
            await matrix.edit(first, words(room, "3"))
        with pytest.raises(Rejected):
            await matrix.edit(GONE, words(room, "3"))
        with pytest.raises(Rejected):
            await matrix.delete(GONE, Address("matrix", room))
        await matrix.send(words(room, "end", key="key-3"))
        assert second in {seen.id for seen in await server.wait_for(2)}


async def test_a_reply_says_what_it_answers(server: Synapse, connect: Connect, listen: Listen, words: Words) -> None:
    async with connect() as matrix, listen(matrix) as ear:
        said = await server.say("a question")
        room = (await ear.arrival()).where.chat
        await matrix.send(words(room, "an answer", reply_to=said))
        await matrix.send(words(room, "another", key="key-2", reply_to=said, thread=said))
        await matrix.send(words(room, "more", key="key-3", thread=said))
        seen = await server.wait_for(3)
    assert [(one.reply_to, one.thread) for one in seen] == [(said, ""), (said, said), ("", said)]


@pytest.mark.parametrize(
    ("name", "mime", "kind"), [("a picture.png", "image/png", "m.image"), ("notes.txt", "text/plain", "m.file")]
)
async def test_a_file_goes_with_its_caption(
    server: Synapse, connect: Connect, listen: Listen, words: Words, tmp_path: Path, name: str, mime: str, kind: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content" * 30_000)
    room = await met(server, connect, listen)
    async with connect() as matrix:
        await matrix.send(words(room, "see", file=File(path, name, mime)))
        await matrix.send(words(room, "", key="key-2", file=File(path, name, mime)))
        seen = await server.wait_for(2)
        with pytest.raises(Rejected, match="cannot be read"):
            await matrix.send(words(room, "", key="key-3", file=File(tmp_path / "none", name, mime)))
    assert [one.file for one in seen] == [name, name]
    person = await server.person()
    content = await last(person, room, server.bot)
    assert "formatted_body" not in content
    assert (content["msgtype"], content["body"], content["info"]) == (kind, name, {"mimetype": mime, "size": 210_000})
    assert await person.download(content) == path.read_bytes()


@pytest.mark.parametrize(
    ("fault", "expected", "retry_after_s"),
    [(Refusal(429, retry_after_s=3), NotTaken, 3), (LostAnswer(), NotTaken, None), (Refusal(413), Rejected, None)],
)
async def test_a_file_that_did_not_get_there_was_surely_not_sent(
    server: Synapse,
    connect: Connect,
    listen: Listen,
    words: Words,
    tmp_path: Path,
    fault: Fault,
    expected: type[Exception],
    retry_after_s: float | None,
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    room = await met(server, connect, listen)
    async with connect() as matrix:
        server.fault("upload", fault)
        with pytest.raises(expected) as failure:
            await matrix.send(words(room, "", file=File(path, "name")))
        assert getattr(failure.value, "retry_after_s", None) == retry_after_s
    assert len(server.calls("upload")) == 1
    assert not server.calls("send")


async def test_typing_and_reactions_are_shown(server: Synapse, connect: Connect, listen: Listen) -> None:
    room = await met(server, connect, listen)
    where = Address("matrix", room)
    async with connect() as matrix:
        said = await server.say("look")
        await matrix.show_typing(where)
        await matrix.react(where, said, "👀")
        await matrix.react(where, said, "👀")
        reaction = await (await server.person()).until_event(room, "m.reaction")
    assert reaction["content"]["m.relates_to"] == {"rel_type": "m.annotation", "event_id": said, "key": "👀"}
    assert server.calls("typing")[0]["body"] == {"typing": True, "timeout": 8000}


@pytest.mark.parametrize(
    ("fault", "expected", "retry_after_s", "is_there"),
    [
        (Refusal(429, retry_after_s=7.5), NotTaken, 7.5, False),
        (Refusal(429), NotTaken, None, False),
        (LostAnswer(), Unsure, None, True),
        (Refusal(500), Unsure, None, False),
        (Refusal(502), Unsure, None, False),
        (Refusal(403), AccessLost, None, False),
        (Refusal(413), Rejected, None, False),
        (Refusal(400), Rejected, None, False),
        (Refusal(404), Rejected, None, False),
        (Refusal(403, extra={"errcode": "M_USER_DEACTIVATED"}), Refused, None, False),
        (Refusal(403, extra={"errcode": "M_CONSENT_NOT_GIVEN"}), Refused, None, False),
        (Refusal(401), NotTaken, None, False),
        (Refusal(401, extra={"soft_logout": True}), NotTaken, None, False),
    ],
)
async def test_every_failure_of_a_send_means_what_it_promises(
    server: Synapse,
    connect: Connect,
    listen: Listen,
    words: Words,
    fault: Fault,
    expected: type[Exception],
    retry_after_s: float | None,
    is_there: bool,
) -> None:
    room = await met(server, connect, listen)
    async with connect() as matrix:
        server.fault("send", fault)
        with pytest.raises(expected) as failure:
            await matrix.send(words(room, "hello"))
        assert getattr(failure.value, "retry_after_s", None) == retry_after_s
        assert len(server.calls("send")) == 1
    async with connect() as matrix:
        await matrix.send(words(room, "hello"))
        await matrix.send(words(room, "end", key="key-2"))
        assert [seen.text for seen in await server.wait_for(2)] == ["hello", "end"]
        assert is_there is False or len(server.calls("send")) == 3


async def test_nobody_there_means_not_taken(server: Synapse, connect: Connect, listen: Listen, words: Words) -> None:
    room = await met(server, connect, listen)
    async with connect() as matrix:
        await matrix.send(words(room, "hello"))
        await server.shut_the_door()
        with pytest.raises(NotTaken, match="cannot be reached"):
            await matrix.send(words(room, "hello", key="key-2"))
    with pytest.raises(NotTaken, match="cannot be reached"):
        async with connect():
            pass


async def test_who_is_shown_out_has_lost_the_room(
    server: Synapse, connect: Connect, listen: Listen, words: Words
) -> None:
    room = await met(server, connect, listen)
    await (await server.person()).kick(room, server.bot)
    async with connect() as matrix:
        with pytest.raises(AccessLost):
            await matrix.send(words(room, "hello"))
        with pytest.raises(AccessLost):
            await matrix.show_typing(Address("matrix", room))
        with pytest.raises(AccessLost):
            await matrix.send(words("!elsewhere:test", "hello"))


async def test_a_room_that_was_replaced_has_moved(
    server: Synapse, connect: Connect, listen: Listen, words: Words
) -> None:
    async with connect() as matrix, listen(matrix) as ear:
        await server.say("hello")
        room = (await ear.arrival()).where.chat
        person = await server.person()
        successor = await person.upgrade(room)
        await person.invite(successor, server.bot)
        await person.say(successor, "here")
        assert (await ear.arrival()).where.chat == successor
        with pytest.raises(ChatMoved) as moved:
            await matrix.send(words(room, "hello"))
    assert moved.value.to == Address("matrix", successor)


async def test_a_login_that_has_ended_is_made_anew_with_the_same_device(
    server: Synapse, connect: Connect, listen: Listen, words: Words
) -> None:
    room = await met(server, connect, listen)
    async with connect() as matrix:
        first = await matrix.send(words(room, "once"))
    await server.end_logins()
    async with connect() as matrix:
        assert await matrix.send(words(room, "once")) == first
    assert len(server.calls("login")) == 2


async def test_a_token_is_enough_as_long_as_the_server_knows_it(
    server: Synapse, connect: Connect, words: Words
) -> None:
    account = await server.log_in()
    given = {"password": "", "access_token": account["access_token"]}
    async with connect(**given) as matrix:
        assert matrix.account == server.bot
        await server.end_logins()
        with pytest.raises(Refused, match="no longer knows our login"):
            await anext(matrix.receive(None))
    with pytest.raises(Refused, match="no longer knows our login") as refused:
        async with connect(**given):
            pass
    assert account["access_token"] not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"password": "wrong"}, "does not accept the password"),
        ({"user_id": "@nobody:test"}, "does not accept the password"),
    ],
)
async def test_who_is_not_let_in_is_told_why(connect: Connect, settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(Refused, match=sentence) as refused:
        async with connect(**settings):
            pass
    assert PASSWORD not in str(refused.value)


async def test_a_token_of_somebody_else_is_refused(server: Synapse, connect: Connect) -> None:
    other = await server.register("other")
    with pytest.raises(Refused, match=r"token is for @other"):
        async with connect(access_token=other["access_token"]):
            pass


async def test_the_login_is_kept_where_nobody_else_reads_it(server: Synapse, connect: Connect, tmp_path: Path) -> None:
    async with connect():
        pass
    assert (tmp_path / "home" / "login.json").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"homeserver": "server.org"}, "not an address"),
        ({"user_id": "talaria"}, "not an id like @name:server.org"),
        ({"password": ""}, "needs a password"),
        ({"allowed_users": ["alice"]}, "'alice' is not an id"),
        ({"admin_users": ["@alice"]}, "'@alice' is not an id"),
        ({"allowed_chats": ["#room:server.org"]}, "an alias can change hands"),
        ({"home_channel": "#room:server.org"}, "home_channel"),
    ],
)
async def test_a_setting_that_is_wrong_is_named(connect: Connect, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadConfig, match=sentence):
        async with connect(**settings):
            pass


async def test_a_message_of_full_length_fits(server: Synapse, connect: Connect, listen: Listen, words: Words) -> None:
    room = await met(server, connect, listen)
    async with connect() as matrix:
        for number, text in enumerate(full_length(matrix)):
            sent = await matrix.send(words(room, text, key=f"key-{number}"))
            await matrix.edit(sent, words(room, f"{text[:-1]}.", key=f"key-{number}"))


def full_length(matrix: Platform) -> list[str]:
    """Texts of the greatest length, whatever they are made of."""
    limit, length = matrix.capabilities.max_chars, matrix.capabilities.length
    return [unit * (limit // length(unit)) for unit in ("a", "*a* ", "<&", "ü", "漢", "😀", "\n\n- x", '"\\')]


def test_the_manifest_can_be_read() -> None:
    import tomllib
    from importlib.resources import files

    from talaria.platforms.base import PlatformManifest
    from talaria.platforms.matrix.config import MatrixSettings

    text = (files("talaria.platforms.matrix") / "manifest.toml").read_text()
    manifest = msgspec.convert(tomllib.loads(text), PlatformManifest)
    fields = {field.name for field in msgspec.structs.fields(MatrixSettings)}
    assert manifest.name == "matrix"
    assert fields >= {*manifest.environment.values(), *manifest.required, *manifest.secrets}
