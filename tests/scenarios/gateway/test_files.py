"""Pictures, documents and voice notes come in; files go out."""

import base64
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.contracts.faults.platform_stage import QuickClock
from tests.scenarios.gateway.test_conversing import last_request

from talaria.app.build import open_application
from talaria.core.ids import SessionId
from talaria.core.messages import user
from talaria.testing import Reply
from talaria.testing.harness import OWNER, Harness
from talaria.testing.servers.chat_service import Refusal
from talaria.testing.servers.scripted_replies import Faults

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def folder(house: Harness) -> Path:
    return house.home.parent / "people" / f"telegram-{OWNER}"


def parts(house: Harness) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] | str = last_request(house.model)[-1]["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def words(house: Harness) -> str:
    return "\n".join(part.get("text", "") for part in parts(house))


async def test_a_photo_is_shown_to_the_model(house: Harness) -> None:
    photo = house.telegram.keep_file(PIXEL)
    size = {"file_id": photo, "file_unique_id": "u", "width": 1, "height": 1, "file_size": len(PIXEL)}
    house.model.say("A pixel.")
    async with house.serve():
        await house.telegram.post({"photo": [size], "caption": "what is this?"})
        await house.wait_for_messages(1)
    assert any(part["type"] == "image_url" for part in parts(house))
    assert "what is this?" in words(house)
    assert [file.read_bytes() for file in folder(house).glob("attachments/*")] == [PIXEL]


async def test_a_document_is_kept_where_the_tools_find_it(house: Harness) -> None:
    document = house.telegram.keep_file(b"a,b\n1,2\n")
    given = {"file_id": document, "file_unique_id": "u", "file_name": "../../table.csv", "file_size": 8}
    house.model.say("A table.")
    async with house.serve():
        await house.telegram.post({"document": given, "caption": "read it"})
        await house.wait_for_messages(1)
    (kept,) = folder(house).glob("attachments/*")
    assert kept.read_bytes() == b"a,b\n1,2\n"
    assert str(kept) in words(house)
    assert not list(house.home.parent.glob("table.csv"))


async def test_a_voice_note_is_named(house: Harness) -> None:
    voice = house.telegram.keep_file(b"OggS")
    house.model.say("I cannot hear it.")
    async with house.serve():
        await house.telegram.post({"voice": {"file_id": voice, "file_unique_id": "u", "duration": 1}})
        await house.wait_for_messages(1)
    assert "[Attached voice:" in words(house)


async def test_what_is_too_large_is_told_and_not_fetched(house: Harness) -> None:
    given = {"file_id": "any", "file_unique_id": "u", "file_name": "film.mkv", "file_size": 3 * 2**30}
    house.model.say("Too much.")
    async with house.serve():
        await house.telegram.post({"document": given, "caption": "watch"})
        await house.wait_for_messages(1)
    assert "larger than 20 MB" in words(house)


async def test_what_cannot_be_fetched_is_told(house: Harness) -> None:
    given = {"file_id": "gone", "file_unique_id": "u", "file_name": "x.txt", "file_size": 3}
    house.model.say("Gone.")
    async with house.serve():
        await house.telegram.post({"document": given, "caption": "read"})
        assert [one.text for one in await house.wait_for_messages(1)] == ["Gone."]
    assert "could not be fetched" in words(house)


async def test_an_album_is_one_message(house: Harness) -> None:
    house.model.say("Two pixels.")
    async with house.serve():
        for number in range(2):
            photo = house.telegram.keep_file(PIXEL)
            size = {"file_id": photo, "file_unique_id": f"u{number}", "width": 1, "height": 1}
            await house.telegram.post({"photo": [size], "media_group_id": "album"})
        await house.wait_for_messages(1)
    assert len([part for part in parts(house) if part["type"] == "image_url"]) == 2


async def test_a_reply_tells_the_model_what_it_replies_to(house: Harness) -> None:
    house.model.say("The first.", "That one.")
    async with house.serve():
        await house.telegram.say("hi")
        (first,) = await house.wait_for_messages(1)
        await house.telegram.say("what did you mean?", reply_to=first.id)
        await house.wait_for_messages(2)
    assert "[In reply to your message: The first.]" in words(house)


async def test_a_file_that_the_model_names_is_sent(house: Harness) -> None:
    folder(house).mkdir(parents=True)
    report = folder(house) / "report.txt"
    report.write_text("all is well")
    house.model.say(f"Here it is.\nMEDIA:{report}")
    async with house.serve():
        await house.telegram.say("the report, please")
        text, file = await house.wait_for_messages(2)
    assert text.text == "Here it is."
    assert file.file == "report.txt"
    assert house.telegram.file("report.txt") == b"all is well"


class Look(msgspec.Struct, frozen=True):
    """A file that the model makes, and the method by which Telegram should be sent it."""

    name: str
    content: bytes
    method: str


LOOKS = [
    Look("a.png", PIXEL, "sendPhoto"),
    Look("no-ending", PIXEL, "sendPhoto"),
    Look("a.webp", b"RIFF\x1a\0\0\0WEBPVP8L" + bytes(18), "sendPhoto"),
    Look("a.gif", b"GIF89a\1\0\1\0" + bytes(9), "sendAnimation"),
    Look("a.ogg", b"OggS" + bytes(24) + b"OpusHead" + bytes(9), "sendVoice"),
    Look("a.mp3", b"ID3" + bytes(20), "sendAudio"),
    Look("a.mp4", bytes(4) + b"ftypisom" + bytes(20), "sendVideo"),
    Look("page.png", b"<html>not a picture</html>", "sendDocument"),
    Look("a.svg", b"<svg/>", "sendDocument"),
    Look("large.png", PIXEL + bytes(10 * 2**20), "sendDocument"),
    Look("wide.png", PIXEL[:16] + struct.pack(">II", 4200, 200) + PIXEL[24:], "sendDocument"),
    Look("huge.png", PIXEL[:16] + struct.pack(">II", 5001, 5000) + PIXEL[24:], "sendDocument"),
]


async def test_files_are_shown_as_what_they_are(house: Harness) -> None:
    """On Telegram, within its limits."""
    folder(house).mkdir(parents=True)
    for look in LOOKS:
        (folder(house) / look.name).write_bytes(look.content)
    house.model.say("\n".join(f"MEDIA:{look.name}" for look in LOOKS))
    async with house.serve():
        await house.telegram.say("show me")
        await house.wait_for_messages(len(LOOKS))
        assert [one.file for one in house.telegram.list_messages()] == [look.name for look in LOOKS]
    methods = {look.method for look in LOOKS}
    used = {method: [one[method[4:].lower()] for one in house.telegram.calls(method)] for method in methods}
    assert used == {method: [look.name for look in LOOKS if look.method == method] for method in methods}


@pytest.mark.parametrize(
    ("name", "method", "words"),
    [("a.png", "sendPhoto", "IMAGE_PROCESS_FAILED"), ("a.ogg", "sendVoice", "VOICE_MESSAGES_FORBIDDEN")],
)
async def test_what_telegram_does_not_show_is_sent_as_a_file(
    house: Harness, name: str, method: str, words: str
) -> None:
    folder(house).mkdir(parents=True)
    (folder(house) / name).write_bytes(next(look.content for look in LOOKS if look.name == name))
    house.telegram.fault(method, Refusal(400, words=f"Bad Request: {words}"))
    house.model.say(f"MEDIA: {name}")
    async with house.serve():
        await house.telegram.say("show me")
        assert [one.file for one in await house.wait_for_messages(1)] == [name]
    assert len(house.telegram.calls("sendDocument")) == 1


@pytest.mark.parametrize("where", ["outside", "link"])
async def test_a_file_outside_of_the_working_directory_is_not_sent(house: Harness, where: str) -> None:
    folder(house).mkdir(parents=True)
    secret = house.home.parent / "secret.txt"
    secret.write_text("canary")
    link = folder(house) / "innocent.txt"
    link.symlink_to(secret)
    named = secret if where == "outside" else link
    house.model.say(f"Here.\nMEDIA:{named}")
    async with house.serve():
        await house.telegram.say("send it")
        (only,) = await house.wait_for_messages(1)
    assert only.text == f"Here.\n({named.name} was not sent: it is outside the folder of this conversation.)"
    assert not only.file
    assert not house.telegram.calls("sendDocument")


async def test_files_that_cannot_be_sent_are_named_with_the_reason_beside_one_that_can(house: Harness) -> None:
    folder(house).mkdir(parents=True)
    (folder(house) / "some folder").mkdir()
    (folder(house) / "my notes.txt").write_text("all is well")
    with (folder(house) / "film.bin").open("wb") as film:
        film.truncate(50 * 2**20 + 1)
    house.model.say(
        f"These:\nMEDIA: my notes.txt\n\nMEDIA: gone.txt\nMEDIA:film.bin\nMEDIA: {folder(house)}/some folder\n"
        "MEDIA: /etc/shadow\nMEDIA: is how a file is named.\nBye."
    )
    async with house.serve():
        await house.telegram.say("all of them")
        text, file = await house.wait_for_messages(2)
    assert text.text.splitlines() == [
        "These:",
        "",
        "(gone.txt was not sent: there is no such file.)",
        "(film.bin was not sent: it is larger than 50 MB.)",
        "(some folder was not sent: it is not a file.)",
        "(shadow was not sent: it is outside the folder of this conversation.)",
        "MEDIA: is how a file is named.",
        "Bye.",
    ]
    assert (file.file, house.telegram.file("my notes.txt")) == ("my notes.txt", b"all is well")


async def test_a_file_that_is_named_in_a_code_block_is_only_text(house: Harness) -> None:
    folder(house).mkdir(parents=True)
    (folder(house) / "a.txt").write_text("in the block")
    (folder(house) / "b.txt").write_text("after it")
    house.model.say("Write it so:\n```\nMEDIA: a.txt\n~~~\n```\nMEDIA: b.txt")
    async with house.serve():
        await house.telegram.say("how?")
        text, file = await house.wait_for_messages(2)
    assert "MEDIA: a.txt" in text.text
    assert "b.txt" not in text.text
    assert file.file == "b.txt"


async def test_a_file_is_looked_for_where_the_conversation_works(house: Harness) -> None:
    """One that began at the terminal works in another folder than the person's own."""
    project = house.home.parent / "project"
    project.mkdir()
    (project / "plan.txt").write_text("step one")
    async with open_application(house.settings()) as app:
        house.model.say("Noted.")
        await app.session(None, id=SessionId("s1"), cwd=project, origin="terminal").ask(user("remember"))
    house.model.say("MEDIA: plan.txt")
    async with house.serve():
        await house.telegram.say("/resume s1")
        await house.wait_for_messages(1)
        await house.telegram.say("the plan, please")
        assert (await house.wait_for_messages(2))[-1].file == "plan.txt"


async def test_a_file_that_the_chat_service_refuses_is_told_in_the_chat(house: Harness) -> None:
    folder(house).mkdir(parents=True)
    (folder(house) / "a.txt").write_text("x")
    house.telegram.fault("sendDocument", Refusal(400, words="Bad Request: not this one"))
    house.model.say("MEDIA: a.txt")
    async with house.serve():
        await house.telegram.say("send it")
        (only,) = await house.wait_for_messages(1)
    assert only.text.startswith("(a.txt was not sent: Telegram does not accept this")


async def test_while_an_answer_is_written_the_names_of_files_are_not_shown(house: Harness) -> None:
    folder(house).mkdir(parents=True)
    (folder(house) / "a.txt").write_text("x")
    house.gateway_clock = QuickClock()
    house.model.say(Reply("One two three.\nMEDIA: a.txt\nFour five six.", faults=Faults(chunk_delay_s=0.1)))
    async with house.serve():
        await house.telegram.say("slowly")
        await house.until(lambda: any(one.file for one in house.telegram.list_messages()))
        assert house.telegram.list_messages()[0].text == "One two three.\nFour five six."
    shown = [one["text"] for method in ("sendMessage", "editMessageText") for one in house.telegram.calls(method)]
    assert len(shown) > 1
    assert not any("MED" in text for text in shown)
