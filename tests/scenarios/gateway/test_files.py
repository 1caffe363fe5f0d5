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


def folder(harness: Harness) -> Path:
    return harness.home.parent / "people" / f"telegram-{OWNER}"


def parts(harness: Harness) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] | str = last_request(harness.model)[-1]["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def words(harness: Harness) -> str:
    return "\n".join(part.get("text", "") for part in parts(harness))


async def test_a_photo_is_shown_to_the_model(harness: Harness) -> None:
    photo = harness.telegram.keep_file(PIXEL)
    size = {"file_id": photo, "file_unique_id": "u", "width": 1, "height": 1, "file_size": len(PIXEL)}
    harness.model.say("A pixel.")
    async with harness.serve():
        await harness.telegram.post({"photo": [size], "caption": "what is this?"})
        await harness.wait_for_messages(1)
    assert any(part["type"] == "image_url" for part in parts(harness))
    assert "what is this?" in words(harness)
    assert [file.read_bytes() for file in folder(harness).glob("attachments/*")] == [PIXEL]


async def test_a_document_is_kept_where_the_tools_find_it(harness: Harness) -> None:
    document = harness.telegram.keep_file(b"a,b\n1,2\n")
    given = {"file_id": document, "file_unique_id": "u", "file_name": "../../table.csv", "file_size": 8}
    harness.model.say("A table.")
    async with harness.serve():
        await harness.telegram.post({"document": given, "caption": "read it"})
        await harness.wait_for_messages(1)
    (kept,) = folder(harness).glob("attachments/*")
    assert kept.read_bytes() == b"a,b\n1,2\n"
    assert str(kept) in words(harness)
    assert not list(harness.home.parent.glob("table.csv"))


async def test_a_voice_note_is_named(harness: Harness) -> None:
    voice = harness.telegram.keep_file(b"OggS")
    harness.model.say("I cannot hear it.")
    async with harness.serve():
        await harness.telegram.post({"voice": {"file_id": voice, "file_unique_id": "u", "duration": 1}})
        await harness.wait_for_messages(1)
    assert "[Attached voice:" in words(harness)


async def test_what_is_too_large_is_told_and_not_fetched(harness: Harness) -> None:
    given = {"file_id": "any", "file_unique_id": "u", "file_name": "film.mkv", "file_size": 3 * 2**30}
    harness.model.say("Too much.")
    async with harness.serve():
        await harness.telegram.post({"document": given, "caption": "watch"})
        await harness.wait_for_messages(1)
    assert "larger than 20 MB" in words(harness)


async def test_what_cannot_be_fetched_is_told(harness: Harness) -> None:
    given = {"file_id": "gone", "file_unique_id": "u", "file_name": "x.txt", "file_size": 3}
    harness.model.say("Gone.")
    async with harness.serve():
        await harness.telegram.post({"document": given, "caption": "read"})
        assert [one.text for one in await harness.wait_for_messages(1)] == ["Gone."]
    assert "could not be fetched" in words(harness)


async def test_an_album_is_one_message(harness: Harness) -> None:
    harness.model.say("Two pixels.")
    async with harness.serve():
        for number in range(2):
            photo = harness.telegram.keep_file(PIXEL)
            size = {"file_id": photo, "file_unique_id": f"u{number}", "width": 1, "height": 1}
            await harness.telegram.post({"photo": [size], "media_group_id": "album"})
        await harness.wait_for_messages(1)
    assert len([part for part in parts(harness) if part["type"] == "image_url"]) == 2


async def test_a_reply_tells_the_model_what_it_replies_to(harness: Harness) -> None:
    harness.model.say("The first.", "That one.")
    async with harness.serve():
        await harness.telegram.say("hi")
        (first,) = await harness.wait_for_messages(1)
        await harness.telegram.say("what did you mean?", reply_to=first.id)
        await harness.wait_for_messages(2)
    assert "[In reply to your message: The first.]" in words(harness)


async def test_a_file_that_the_model_names_is_sent(harness: Harness) -> None:
    folder(harness).mkdir(parents=True)
    report = folder(harness) / "report.txt"
    report.write_text("all is well")
    harness.model.say(f"Here it is.\nMEDIA:{report}")
    async with harness.serve():
        await harness.telegram.say("the report, please")
        text, file = await harness.wait_for_messages(2)
    assert text.text == "Here it is."
    assert file.file == "report.txt"
    assert harness.telegram.file("report.txt") == b"all is well"


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


async def test_files_are_shown_as_what_they_are(harness: Harness) -> None:
    """On Telegram, within its limits."""
    folder(harness).mkdir(parents=True)
    for look in LOOKS:
        (folder(harness) / look.name).write_bytes(look.content)
    harness.model.say("\n".join(f"MEDIA:{look.name}" for look in LOOKS))
    async with harness.serve():
        await harness.telegram.say("show me")
        await harness.wait_for_messages(len(LOOKS))
        assert [one.file for one in harness.telegram.list_messages()] == [look.name for look in LOOKS]
    methods = {look.method for look in LOOKS}
    used = {method: [one[method[4:].lower()] for one in harness.telegram.calls(method)] for method in methods}
    assert used == {method: [look.name for look in LOOKS if look.method == method] for method in methods}


@pytest.mark.parametrize(
    ("name", "method", "words"),
    [("a.png", "sendPhoto", "IMAGE_PROCESS_FAILED"), ("a.ogg", "sendVoice", "VOICE_MESSAGES_FORBIDDEN")],
)
async def test_what_telegram_does_not_show_is_sent_as_a_file(
    harness: Harness, name: str, method: str, words: str
) -> None:
    folder(harness).mkdir(parents=True)
    (folder(harness) / name).write_bytes(next(look.content for look in LOOKS if look.name == name))
    harness.telegram.fault(method, Refusal(400, words=f"Bad Request: {words}"))
    harness.model.say(f"MEDIA: {name}")
    async with harness.serve():
        await harness.telegram.say("show me")
        assert [one.file for one in await harness.wait_for_messages(1)] == [name]
    assert len(harness.telegram.calls("sendDocument")) == 1


@pytest.mark.parametrize("where", ["outside", "link"])
async def test_a_file_outside_of_the_working_directory_is_not_sent(harness: Harness, where: str) -> None:
    folder(harness).mkdir(parents=True)
    secret = harness.home.parent / "secret.txt"
    secret.write_text("canary")
    link = folder(harness) / "innocent.txt"
    link.symlink_to(secret)
    named = secret if where == "outside" else link
    harness.model.say(f"Here.\nMEDIA:{named}")
    async with harness.serve():
        await harness.telegram.say("send it")
        (only,) = await harness.wait_for_messages(1)
    assert only.text == f"Here.\n({named.name} was not sent: it is outside the folder of this conversation.)"
    assert not only.file
    assert not harness.telegram.calls("sendDocument")


async def test_files_that_cannot_be_sent_are_named_with_the_reason_beside_one_that_can(harness: Harness) -> None:
    folder(harness).mkdir(parents=True)
    (folder(harness) / "some folder").mkdir()
    (folder(harness) / "my notes.txt").write_text("all is well")
    with (folder(harness) / "film.bin").open("wb") as film:
        film.truncate(50 * 2**20 + 1)
    harness.model.say(
        f"These:\nMEDIA: my notes.txt\n\nMEDIA: gone.txt\nMEDIA:film.bin\nMEDIA: {folder(harness)}/some folder\n"
        "MEDIA: /etc/shadow\nMEDIA: is how a file is named.\nBye."
    )
    async with harness.serve():
        await harness.telegram.say("all of them")
        text, file = await harness.wait_for_messages(2)
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
    assert (file.file, harness.telegram.file("my notes.txt")) == ("my notes.txt", b"all is well")


async def test_a_file_that_is_named_in_a_code_block_is_only_text(harness: Harness) -> None:
    folder(harness).mkdir(parents=True)
    (folder(harness) / "a.txt").write_text("in the block")
    (folder(harness) / "b.txt").write_text("after it")
    harness.model.say("Write it so:\n```\nMEDIA: a.txt\n~~~\n```\nMEDIA: b.txt")
    async with harness.serve():
        await harness.telegram.say("how?")
        text, file = await harness.wait_for_messages(2)
    assert "MEDIA: a.txt" in text.text
    assert "b.txt" not in text.text
    assert file.file == "b.txt"


async def test_a_file_is_looked_for_where_the_conversation_works(harness: Harness) -> None:
    """One that began at the terminal works in another folder than the person's own."""
    project = harness.home.parent / "project"
    project.mkdir()
    (project / "plan.txt").write_text("step one")
    async with open_application(harness.settings()) as app:
        harness.model.say("Noted.")
        await app.session(None, id=SessionId("s1"), cwd=project, origin="terminal").ask(user("remember"))
    harness.model.say("MEDIA: plan.txt")
    async with harness.serve():
        await harness.telegram.say("/resume s1")
        await harness.wait_for_messages(1)
        await harness.telegram.say("the plan, please")
        assert (await harness.wait_for_messages(2))[-1].file == "plan.txt"


async def test_a_file_that_the_chat_service_refuses_is_told_in_the_chat(harness: Harness) -> None:
    folder(harness).mkdir(parents=True)
    (folder(harness) / "a.txt").write_text("x")
    harness.telegram.fault("sendDocument", Refusal(400, words="Bad Request: not this one"))
    harness.model.say("MEDIA: a.txt")
    async with harness.serve():
        await harness.telegram.say("send it")
        (only,) = await harness.wait_for_messages(1)
    assert only.text.startswith("(a.txt was not sent: Telegram does not accept this")


async def test_while_an_answer_is_written_the_names_of_files_are_not_shown(harness: Harness) -> None:
    folder(harness).mkdir(parents=True)
    (folder(harness) / "a.txt").write_text("x")
    harness.gateway_clock = QuickClock()
    harness.model.say(Reply("One two three.\nMEDIA: a.txt\nFour five six.", faults=Faults(chunk_delay_s=0.1)))
    async with harness.serve():
        await harness.telegram.say("slowly")
        await harness.until(lambda: any(one.file for one in harness.telegram.list_messages()))
        assert harness.telegram.list_messages()[0].text == "One two three.\nFour five six."
    shown = [one["text"] for method in ("sendMessage", "editMessageText") for one in harness.telegram.calls(method)]
    assert len(shown) > 1
    assert not any("MED" in text for text in shown)
