"""Encrypted rooms, with the package for them and without it."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.contracts.platforms.matrix.conftest import Connect, Listen, Words
from tests.servers.synapse import Synapse
from tests.servers.synapse_person import SynapseUser

from talaria.platforms.base import Arrival, File, NotTaken, Platform, Rejected
from talaria.testing.servers.chat_service import Refusal

STRANGE = {
    "algorithm": "m.megolm.v1.aes-sha2",
    "ciphertext": "AwgAEnAC",
    "device_id": "NONE",
    "sender_key": "NsYCxGgDZ6wQPwIPPIPZXUPWMVsmzsQCmVt6WSC3nSU",
    "session_id": "s0lpX1Nm1rPDV2lUoHRkOWDAYWmLlHoAd2ZoZtxvNzg",
}

WITHOUT_PACKAGE = """
import asyncio, json, sys
sys.modules["vodozemac"] = None
from pathlib import Path
from talaria.core.clock import SystemClock
from talaria.core.secret import Secret
from talaria.platforms.base import Address, Kit, Outbound, Rejected
from talaria.platforms.matrix.config import MatrixSettings
from talaria.platforms.matrix.platform import open as open_matrix

async def main(home, cursor, settings):
    settings = MatrixSettings(**{**settings, "password": Secret(settings["password"])})
    async with open_matrix(settings, Kit(Path(home), SystemClock(), lambda _: True)) as matrix:
        stream = matrix.receive(cursor or None)
        while True:
            batch = await anext(stream)
            assert not batch.items
            print(batch.cursor, flush=True)
            sys.stdin.readline()

asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
"""


def notices(person: SynapseUser, room: str) -> list[str]:
    contents = [event["content"] for event in person.events(room)]
    return [content["body"] for content in contents if content.get("msgtype") == "m.notice"]


async def test_an_encrypted_room_is_read_and_written(
    server: Synapse, connect: Connect, listen: Listen, words: Words, tmp_path: Path
) -> None:
    async with connect() as matrix, listen(matrix) as ear:
        person, other = await server.person(), await server.second_device()
        room = await person.direct_room(server.bot, is_encrypted=True)
        await server.say("a secret")
        heard = await ear.arrival()
        assert (heard.text, heard.kind) == ("a secret", "dm")
        sent = await matrix.send(words(room, "an *answer*", reply_to=heard.message_id))
        await matrix.edit(sent, words(room, "a *better* answer"))
        await matrix.send(words(room, "end", key="key-2"))
        seen = (await server.wait_for(2))[0]
        assert (seen.text, seen.edits, seen.reply_to) == ("a better answer", 1, heard.message_id)
        assert (await other.until(room, 2, server.bot))[0].text == "a better answer"
    for call in server.calls("send"):
        assert "answer" not in json.dumps(call["body"])
    async with connect() as matrix:  # the room is not known yet, and is not taken for an open one
        await matrix.send(words(room, "after a restart", key="key-3"))
        assert (await server.wait_for(3))[-1].text == "after a restart"
    said = [
        event for event in person.events(room) if event["sender"] == server.bot and event["type"] != "m.room.member"
    ]
    assert [event["decrypted"] for event in said] == [True] * 4


async def test_what_was_said_in_an_encrypted_room_during_an_absence_is_read(
    server: Synapse, connect: Connect, listen: Listen
) -> None:
    async with connect() as matrix, listen(matrix) as ear:
        await (await server.person()).direct_room(server.bot, is_encrypted=True)
        await server.say("one")
        await ear.arrival()
    for number in range(55):
        await server.say(str(number))
    async with connect() as matrix, listen(matrix, ear.cursor) as later:
        assert [heard.text for heard in await later.arrivals(55)] == [str(number) for number in range(55)]


async def test_the_same_key_is_the_same_message_in_an_encrypted_room(
    server: Synapse, connect: Connect, listen: Listen, words: Words
) -> None:
    async with connect() as matrix, listen(matrix) as ear:
        room = await (await server.person()).direct_room(server.bot, is_encrypted=True)
        await server.say("hello")
        await ear.arrival()
        first = await matrix.send(words(room, "once"))
    async with connect() as matrix:
        assert await matrix.send(words(room, "once")) == first


async def test_files_go_both_ways_through_an_encrypted_room(
    server: Synapse, connect: Connect, listen: Listen, words: Words, tmp_path: Path
) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(bytes(range(256)) * 1000)
    async with connect() as matrix, listen(matrix) as ear:
        person = await server.person()
        room = await person.direct_room(server.bot, is_encrypted=True)
        await person.send_file(room, picture, is_encrypted=True)
        (attachment,) = (await ear.arrival()).attachments
        await matrix.fetch(attachment, tmp_path / "got", 10**6)
        assert (tmp_path / "got").read_bytes() == picture.read_bytes()
        changed = attachment.ref.replace('"sha256":"', '"sha256":"AAAA')
        with pytest.raises(Rejected, match="altered on its way"):
            await matrix.fetch(type(attachment)("image", changed, "x"), tmp_path / "changed", 10**6)
        await matrix.send(words(room, "", file=File(picture, "picture.png", "image/png")))
        await server.wait_for(1)
        content = person.events(room)[-1]["content"]
        assert await person.download(content) == picture.read_bytes()
    assert "picture" not in str(server.calls("upload")[0]["query"])
    assert not (tmp_path / "changed").exists()


async def test_a_message_whose_keys_could_not_be_shared_is_not_sent(
    server: Synapse, connect: Connect, listen: Listen, words: Words
) -> None:
    async with connect() as matrix, listen(matrix) as ear:
        room = await (await server.person()).direct_room(server.bot, is_encrypted=True)
        await server.say("hello")
        await ear.arrival()
        server.fault("sendToDevice", Refusal(500))
        with pytest.raises(NotTaken):
            await matrix.send(words(room, "an answer"))
        assert not server.calls("send")
        await matrix.send(words(room, "an answer"))
        assert (await server.wait_for(1))[0].text == "an answer"


async def test_two_messages_at_once_share_the_keys_once(
    server: Synapse, connect: Connect, listen: Listen, words: Words
) -> None:
    async with connect() as matrix, listen(matrix) as ear:
        room = await (await server.person()).direct_room(server.bot, is_encrypted=True)
        await server.say("hello")
        await ear.arrival()
        await asyncio.gather(*[matrix.send(words(room, "x", key=f"key-{number}")) for number in range(3)])
        assert [seen.text for seen in await server.wait_for(3)] == ["x", "x", "x"]
    assert len(server.calls("sendToDevice")) == 1


async def test_a_message_that_cannot_be_read_is_told_of_once(server: Synapse, connect: Connect, listen: Listen) -> None:
    async with connect() as matrix, listen(matrix) as ear:
        person = await server.person()
        room = await person.direct_room(server.bot, is_encrypted=True)
        await server.say("hello")
        await ear.arrival()
        await person.redact(room, await person.say(room, "regretted"))
        await ear.batch()
        assert not server.calls("send")
        for content in (STRANGE, {**STRANGE, "sender_key": ""}, {"algorithm": "none"}):
            await person.send_in_clear(room, content, "m.room.encrypted")
        await server.say("readable")
        assert (await ear.arrival()).text == "readable"
        await server.wait_for(1)
        await person.send_in_clear(room, STRANGE, "m.room.encrypted")
        await ear.batch()
        await server.wait_for(2)
    assert [words[:16] for words in notices(person, room)] == ["I could not read"] * 2


async def test_what_cannot_be_read_of_people_who_are_not_allowed_is_not_told_of(
    server: Synapse, connect: Connect, listen: Listen
) -> None:
    async with connect() as matrix, listen(matrix) as ear:
        room = await server.room("1001", "stranger", is_encrypted=True)
        stranger, person = await server.person("stranger"), await server.person()
        await stranger.send_in_clear(room, STRANGE, "m.room.encrypted")
        await person.say(room, "hello")
        await ear.arrival()
    assert not server.calls("send")


async def test_a_message_of_a_device_that_cannot_be_looked_up_yet_is_read_later(
    server: Synapse, connect: Connect, listen: Listen
) -> None:
    async with connect() as matrix, listen(matrix) as ear:
        person = await server.person()
        server.fault("keys_query", *[Refusal(500)] * 4)
        await person.direct_room(server.bot, is_encrypted=True)
        await server.say("hello")
        while not (heard := (await ear.batch()).items):
            await person.create_room(server.bot)  # something else happens
        assert [item.text for item in heard if isinstance(item, Arrival)] == ["hello"]
        assert len(server.calls("keys_query")) > 4  # not before it was known whose it is


async def test_without_the_package_an_encrypted_room_is_told_so_once(server: Synapse, tmp_path: Path) -> None:
    person = await server.person()
    room = await person.direct_room(server.bot, is_encrypted=True)
    settings = json.dumps(dict(server.settings))
    cursor = ""
    for said, batches in (("hello", 2), ("again", 1)):  # at first we only hear of the invitation
        await server.say(said)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WITHOUT_PACKAGE, str(tmp_path / "home"), cursor, settings,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(batches):
            cursor = (await process.stdout.readline()).decode().strip()
            process.stdin.write(b"\n")
        process.kill()
        await process.wait()
    await server.wait_for(1)
    (notice,) = notices(person, room)
    assert "not installed" in notice


async def test_with_encryption_turned_off_an_encrypted_room_is_told_so_and_nothing_is_sent_in_clear(
    server: Synapse, connect: Connect, listen: Listen, words: Words
) -> None:
    async with connect(encryption="off") as matrix, listen(matrix) as ear:
        person = await server.person()
        room = await person.direct_room(server.bot, is_encrypted=True)
        await server.say("hello")
        while not server.calls("send"):
            assert (await ear.batch()).items == ()
        await server.wait_for(1)
        with pytest.raises(Rejected, match="encrypted"):
            await matrix.send(words(room, "in clear"))
    assert "off in my settings" in notices(person, room)[0]
    assert len(server.calls("send")) == 1


async def test_a_message_of_full_length_fits_into_an_encrypted_room(
    server: Synapse, connect: Connect, listen: Listen, words: Words
) -> None:
    async with connect() as matrix, listen(matrix) as ear:
        room = await (await server.person()).direct_room(server.bot, is_encrypted=True)
        await server.say("hello")
        await ear.arrival()
        for number, text in enumerate(full_length(matrix)):
            sent = await matrix.send(words(room, text, key=f"key-{number}"))
            await matrix.edit(sent, words(room, f"{text[:-1]}.", key=f"key-{number}"))


def full_length(matrix: Platform) -> list[str]:
    limit, length = matrix.capabilities.max_chars, matrix.capabilities.length
    return [unit * (limit // length(unit)) for unit in ("a", "*a* ", "<&", "ü", "漢", "😀", "\n\n- x", '"\\')]
