"""Matrix through its port, over a real homeserver: what reaches us."""

import logging
from pathlib import Path

import msgspec
import pytest
from tests.contracts.platforms.matrix.conftest import Connect, Listen, Words
from tests.servers.synapse import Synapse

from talaria.platforms.base import Address, Deleted, NotTaken, Quoted, Refused, Rejected
from talaria.testing.servers.chat_service import Fault, LostAnswer, Refusal


async def test_a_message_in_a_room_for_two_arrives(server: Synapse, connect: Connect, listen: Listen) -> None:
    async with connect() as matrix, listen(matrix) as ear:
        said = await server.say("hello")
        heard = await ear.arrival()
    person = await server.person()
    assert (heard.message_id, heard.text, heard.kind) == (said, "hello", "dm")
    assert (heard.sender.id, heard.sender.name) == (person.user_id, "1001")
    assert str(heard.where).startswith("matrix:!")
    assert heard.sent_at > 1_700_000_000
    assert matrix.account == server.bot


async def test_what_was_said_before_we_first_came_is_not_read(
    server: Synapse, connect: Connect, listen: Listen
) -> None:
    async with connect(home="a") as matrix, listen(matrix) as ear:
        await server.say("old")
        await ear.arrival()
    async with connect(home="b") as matrix, listen(matrix) as ear:
        await server.say("new")
        assert (await ear.arrival()).text == "new"


async def test_an_invitation_that_waited_for_us_is_followed_and_what_came_with_it_is_read(
    server: Synapse, connect: Connect, listen: Listen
) -> None:
    await server.say("are you there?")
    async with connect() as matrix, listen(matrix) as ear:
        assert (await ear.arrival()).text == "are you there?"


async def test_nothing_that_was_said_between_an_invitation_and_our_coming_is_lost(
    server: Synapse, connect: Connect, listen: Listen
) -> None:
    room, person = await server.room("1001"), await server.person()
    said = [str(number) for number in range(55)]
    for text in said:
        await person.say(room, text)
    async with connect() as matrix, listen(matrix) as ear:
        assert [heard.text for heard in await ear.arrivals(55)] == said


async def test_what_was_said_in_a_room_before_we_were_invited_is_not_read(
    server: Synapse, connect: Connect, listen: Listen
) -> None:
    async with connect() as matrix, listen(matrix) as ear:
        person = await server.person()
        room = await person.create_room()
        await person.say(room, "among us")
        await person.invite(room, server.bot)
        await person.say(room, "hello")
        assert [heard.text for heard in await ear.arrivals()] == ["hello"]


async def test_nothing_that_was_said_during_an_absence_is_lost(
    server: Synapse, connect: Connect, listen: Listen
) -> None:
    async with connect() as matrix, listen(matrix) as ear:
        await server.say("one")
        await ear.arrival()
    await server.say("two")
    await server.say("three")
    async with connect() as matrix, listen(matrix, ear.cursor) as later:
        assert [heard.text for heard in await later.arrivals(2)] == ["two", "three"]


async def test_a_batch_that_was_not_kept_is_told_again(server: Synapse, connect: Connect, listen: Listen) -> None:
    async with connect() as matrix, listen(matrix) as ear:
        await server.say("one")
        await ear.arrival()
        before = ear.cursor
        await server.say("two")
        first = await ear.arrival()
    async with connect() as matrix, listen(matrix, before) as again:
        assert await again.arrival() == first


async def test_a_gap_in_what_the_server_tells_is_read_in_order(
    server: Synapse, connect: Connect, listen: Listen
) -> None:
    async with connect() as matrix, listen(matrix) as ear:
        await server.say("before")
        await ear.arrival()
    said = [str(number) for number in range(55)]
    for text in said:
        await server.say(text)
    async with connect() as matrix, listen(matrix, ear.cursor) as later:
        assert [heard.text for heard in await later.arrivals(55)] == said


@pytest.mark.long
async def test_of_a_long_absence_the_oldest_is_left_out(server: Synapse, connect: Connect, listen: Listen) -> None:
    async with connect() as matrix, listen(matrix) as ear:
        await server.say("before")
        await ear.arrival()
    person = await server.person()
    for number in range(253):
        content = {"msgtype": "m.text", "body": "oldest" if number < 3 else "later"}
        await person.send_in_clear(person.known_direct_room, content)
    async with connect() as matrix, listen(matrix, ear.cursor) as later:
        assert {heard.text for heard in await later.arrivals(250)} == {"later"}


async def test_a_cursor_that_the_server_does_not_know_means_from_now_on(
    server: Synapse, connect: Connect, listen: Listen, caplog: pytest.LogCaptureFixture
) -> None:
    await server.say("before")
    async with connect() as matrix, listen(matrix, "nonsense") as ear:
        assert (await ear.batch()).items == ()
        assert (await ear.arrival()).text == "before"  # in a room to which we were only invited
    assert "does not know how far" in caplog.text


async def test_nobody_who_is_not_allowed_gets_us_into_a_room(
    server: Synapse, connect: Connect, listen: Listen, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "talaria")
    async with connect() as matrix, listen(matrix) as ear:
        await server.say("psst", user="stranger")
        await server.say("hello")
        assert (await ear.arrival()).text == "hello"
    assert len(server.calls("join")) == 1
    assert not server.calls("leave")  # no sign of life either
    stranger = (await server.person("stranger")).user_id
    refused = [one.getMessage() for one in caplog.records if "refused" in one.getMessage()]
    assert [line.partition(" room=")[0] for line in refused] == [f"invitation refused: person=matrix:{stranger}"]


async def test_who_is_allowed_later_is_followed_later(server: Synapse, connect: Connect, listen: Listen) -> None:
    async with connect(allowed=()) as matrix, listen(matrix) as ear:
        await server.say("hello")
        await ear.batch()
    async with connect(allowed=("1001",)) as matrix, listen(matrix, ear.cursor) as later:
        assert (await later.arrival()).text == "hello"


async def test_a_room_for_two_stays_one_when_our_memory_is_lost(
    server: Synapse, connect: Connect, listen: Listen
) -> None:
    async with connect(home="a") as matrix, listen(matrix) as ear:
        await server.say("one")
        await ear.arrival()
    async with connect(home="b") as matrix, listen(matrix) as ear:
        await server.say("two")
        assert (await ear.arrival()).kind == "dm"


async def test_a_room_for_two_into_which_a_third_comes_is_a_group(
    server: Synapse, connect: Connect, listen: Listen
) -> None:
    async with connect(allowed=("1001", "1002")) as matrix, listen(matrix) as ear:
        await server.say("one")
        assert (await ear.arrival()).kind == "dm"
        person, other = await server.person(), await server.person("1002")
        room = await person.direct_room(server.bot)
        await person.invite(room, other.user_id)
        await other.join(room)
        await other.say(room, "three of us")
        assert (await ear.arrival()).kind == "group"


async def test_a_deletion_is_told(server: Synapse, connect: Connect, listen: Listen) -> None:
    async with connect() as matrix, listen(matrix) as ear:
        said = await server.say("not this")
        await ear.arrival()
        person = await server.person()
        await person.redact(person.known_direct_room, said)
        while not (items := (await ear.batch()).items):
            pass
    assert items == (Deleted(Address("matrix", person.known_direct_room), said),)


async def test_in_a_group_it_is_told_whether_somebody_means_us(
    server: Synapse, connect: Connect, listen: Listen
) -> None:
    async with connect() as matrix, listen(matrix) as ear:
        room, person = await server.room("1001"), await server.person()
        await person.say(room, "what do you think?")
        assert not (await ear.arrival()).is_addressed
        await person.say(room, "Talaria: what do you think?")
        heard = await ear.arrival()
        assert (heard.kind, heard.is_addressed, heard.text) == ("group", True, "what do you think?")


async def test_a_reply_brings_along_what_it_replies_to(
    server: Synapse, connect: Connect, listen: Listen, words: Words
) -> None:
    async with connect() as matrix, listen(matrix) as ear:
        room, person = await server.room("1001"), await server.person()
        first = await person.say(room, "talaria: begin")
        await ear.arrival()
        ours = await matrix.send(words(room, "Begi"))
        await matrix.edit(ours, words(room, "Begun."))
        await person.say(room, "> <@a:b> x\n\nand now?", more={"m.relates_to": {"m.in_reply_to": {"event_id": ours}}})
        heard = await ear.arrival()
        assert (heard.text, heard.is_addressed, heard.reply_to) == ("and now?", True, Quoted("Begun.", is_ours=True))
        await person.say(room, "mine", more={"m.relates_to": {"m.in_reply_to": {"event_id": first}}})
        heard = await ear.arrival()
        assert (heard.is_addressed, heard.reply_to) == (False, Quoted("talaria: begin", author="1001"))
        await person.say(room, "gone", more={"m.relates_to": {"m.in_reply_to": {"event_id": "$nowhere"}}})
        assert (await ear.arrival()).reply_to is None


async def test_a_thread_is_an_address_of_its_own(
    server: Synapse, connect: Connect, listen: Listen, words: Words
) -> None:
    async with connect() as matrix, listen(matrix) as ear:
        room, person = await server.room("1001"), await server.person()
        root = await person.say(room, "a topic")
        await person.say(room, "in it", root)
        _, heard = await ear.arrivals(2)
        assert (heard.where, heard.is_addressed) == (Address("matrix", room, root), False)
        await matrix.send(words(room, "our answer", thread=root))
        await server.wait_for(1, chat=room)
    assert server.list_messages(chat=room)[0].thread == root


async def test_in_a_thread_that_we_began_everything_is_for_us(
    server: Synapse, connect: Connect, listen: Listen
) -> None:
    async with connect() as matrix, listen(matrix) as ear:
        room, person = await server.room("1001"), await server.person()
        await person.say(room, "hello")
        where = (await ear.arrival()).where
        thread = await matrix.create_thread(where, "Let us talk here")
        assert thread is not None
        await person.say(room, "yes", thread.thread)
        heard = await ear.arrival()
        assert (heard.where, heard.is_addressed, heard.reply_to) == (thread, True, None)
        assert await matrix.create_thread(thread, "deeper") is None


async def test_edits_notices_and_our_own_words_are_not_heard(
    server: Synapse, connect: Connect, listen: Listen, words: Words
) -> None:
    async with connect() as matrix, listen(matrix) as ear:
        said = await server.say("one")
        where = (await ear.arrival()).where
        person = await server.person()
        edit = {"rel_type": "m.replace", "event_id": said}
        await person.say(
            where.chat, "* two", more={"m.new_content": {"msgtype": "m.text", "body": "two"}, "m.relates_to": edit}
        )
        await person.send(where.chat, {"msgtype": "m.notice", "body": "I am a bot"})
        await person.send(where.chat, {"msgtype": "m.key.verification.request", "body": "?"})
        await matrix.send(words(where.chat, "ours"))
        await server.say("three")
        assert (await ear.arrival()).text == "three"


async def test_a_file_arrives_as_an_attachment_and_is_fetched(
    server: Synapse, connect: Connect, listen: Listen, tmp_path: Path
) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(bytes(range(256)) * 1000)
    async with connect() as matrix, listen(matrix) as ear:
        person = await server.person()
        await person.send_file(await person.direct_room(server.bot), picture)
        heard = await ear.arrival()
        (attachment,) = heard.attachments
        assert (heard.text, attachment.kind, attachment.name) == ("", "image", "picture.png")
        assert (attachment.mime, attachment.size_bytes) == ("image/png", 256_000)
        await matrix.fetch(attachment, tmp_path / "got", 256_000)
        assert (tmp_path / "got").read_bytes() == picture.read_bytes()
        with pytest.raises(Rejected, match="larger than 255,999 bytes"):
            await matrix.fetch(attachment, tmp_path / "too large", 255_999)
        gone = msgspec.structs.replace(attachment, ref=attachment.ref.replace("test/", "test/x"))
        with pytest.raises(Rejected, match="gone"):
            await matrix.fetch(gone, tmp_path / "gone", 256_000)
        elsewhere = msgspec.structs.replace(attachment, ref='{"url":"https://evil.example/../x"}')
        with pytest.raises(Rejected, match="no valid address on a Matrix server"):
            await matrix.fetch(elsewhere, tmp_path / "elsewhere", 256_000)
    assert {path.name for path in tmp_path.iterdir()} == {"picture.png", "got", "home"}


async def test_who_takes_the_name_of_somebody_else_is_still_told_apart(
    server: Synapse, connect: Connect, listen: Listen
) -> None:
    async with connect() as matrix, listen(matrix) as ear:
        room = await server.room("1001", "1002")
        other = await server.person("1002")
        await other.rename("1001")
        await other.say(room, "it is me")
        assert (await ear.arrival()).sender.id == other.user_id


@pytest.mark.parametrize(
    ("fault", "expected", "retry_after_s"),
    [
        (Refusal(429, retry_after_s=2.5), NotTaken, 2.5),
        (Refusal(502), NotTaken, None),
        (LostAnswer(), NotTaken, None),
        (Refusal(403), Refused, None),
        (Refusal(400), NotTaken, None),
    ],
)
async def test_a_line_that_breaks_is_told(
    server: Synapse, connect: Connect, fault: Fault, expected: type[Exception], retry_after_s: float | None
) -> None:
    async with connect() as matrix:
        server.fault("sync", fault)
        with pytest.raises(expected) as failure:
            await anext(matrix.receive(None))
        assert getattr(failure.value, "retry_after_s", None) == retry_after_s
        assert len(server.calls("sync")) == 1
        await anext(matrix.receive(None))


async def test_an_invitation_whose_following_fails_is_followed_later(
    server: Synapse, connect: Connect, listen: Listen
) -> None:
    async with connect() as matrix, listen(matrix) as ear:
        server.fault("join", Refusal(503))
        await server.say("hello")
        await ear.batch()
        await (await server.person()).create_room(server.bot)  # something else happens
        assert (await ear.arrival()).text == "hello"


async def test_an_invitation_that_cannot_be_followed_is_given_up(
    server: Synapse, connect: Connect, listen: Listen, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect() as matrix, listen(matrix) as ear:
        server.fault("join", Refusal(403))
        await server.say("hello")
        await ear.batch()
        await server.room("1001")
        await ear.batch()
    assert len(server.calls("join")) == 2
    assert "could not be joined" in caplog.text
