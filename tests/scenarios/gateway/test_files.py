"""Pictures, documents and voice notes come in; files go out."""

import base64
from pathlib import Path
from typing import Any

import pytest
from tests.scenarios.gateway.house import OWNER, House
from tests.scenarios.gateway.test_conversing import last_request

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def folder(house: House) -> Path:
    return house.home.parent / "people" / f"telegram-{OWNER}"


def parts(house: House) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] | str = last_request(house.model)[-1]["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def words(house: House) -> str:
    return "\n".join(part.get("text", "") for part in parts(house))


async def test_a_photo_is_shown_to_the_model(house: House) -> None:
    photo = house.telegram.keep_file(PIXEL)
    size = {"file_id": photo, "file_unique_id": "u", "width": 1, "height": 1, "file_size": len(PIXEL)}
    house.model.say("A pixel.")
    async with house.open():
        await house.telegram.post({"photo": [size], "caption": "what is this?"})
        await house.said(1)
    assert any(part["type"] == "image_url" for part in parts(house))
    assert "what is this?" in words(house)
    assert [file.read_bytes() for file in folder(house).glob("attachments/*")] == [PIXEL]


async def test_a_document_is_kept_where_the_tools_find_it(house: House) -> None:
    document = house.telegram.keep_file(b"a,b\n1,2\n")
    given = {"file_id": document, "file_unique_id": "u", "file_name": "../../table.csv", "file_size": 8}
    house.model.say("A table.")
    async with house.open():
        await house.telegram.post({"document": given, "caption": "read it"})
        await house.said(1)
    (kept,) = folder(house).glob("attachments/*")
    assert kept.read_bytes() == b"a,b\n1,2\n"
    assert str(kept) in words(house)
    assert not list(house.home.parent.glob("table.csv"))


async def test_a_voice_note_is_named(house: House) -> None:
    voice = house.telegram.keep_file(b"OggS")
    house.model.say("I cannot hear it.")
    async with house.open():
        await house.telegram.post({"voice": {"file_id": voice, "file_unique_id": "u", "duration": 1}})
        await house.said(1)
    assert "[Attached voice:" in words(house)


async def test_what_is_too_large_is_told_and_not_fetched(house: House) -> None:
    given = {"file_id": "any", "file_unique_id": "u", "file_name": "film.mkv", "file_size": 3 * 2**30}
    house.model.say("Too much.")
    async with house.open():
        await house.telegram.post({"document": given, "caption": "watch"})
        await house.said(1)
    assert "larger than 20 MB" in words(house)


async def test_what_cannot_be_fetched_is_told(house: House) -> None:
    given = {"file_id": "gone", "file_unique_id": "u", "file_name": "x.txt", "file_size": 3}
    house.model.say("Gone.")
    async with house.open():
        await house.telegram.post({"document": given, "caption": "read"})
        assert [one.text for one in await house.said(1)] == ["Gone."]
    assert "could not be fetched" in words(house)


async def test_an_album_is_one_message(house: House) -> None:
    house.model.say("Two pixels.")
    async with house.open():
        for number in range(2):
            photo = house.telegram.keep_file(PIXEL)
            size = {"file_id": photo, "file_unique_id": f"u{number}", "width": 1, "height": 1}
            await house.telegram.post({"photo": [size], "media_group_id": "album"})
        await house.said(1)
    assert len([part for part in parts(house) if part["type"] == "image_url"]) == 2


async def test_a_reply_tells_the_model_what_it_replies_to(house: House) -> None:
    house.model.say("The first.", "That one.")
    async with house.open():
        await house.telegram.say("hi")
        (first,) = await house.said(1)
        await house.telegram.say("what did you mean?", reply_to=first.id)
        await house.said(2)
    assert "[In reply to your message: The first.]" in words(house)


async def test_a_file_that_the_model_names_is_sent(house: House) -> None:
    folder(house).mkdir(parents=True)
    report = folder(house) / "report.txt"
    report.write_text("all is well")
    house.model.say(f"Here it is.\nMEDIA:{report}")
    async with house.open():
        await house.telegram.say("the report, please")
        text, file = await house.said(2)
    assert text.text == "Here it is."
    assert file.file == "report.txt"
    assert house.telegram.file("report.txt") == b"all is well"


@pytest.mark.parametrize("where", ["outside", "link"])
async def test_a_file_outside_of_the_working_directory_is_not_sent(house: House, where: str) -> None:
    folder(house).mkdir(parents=True)
    secret = house.home.parent / "secret.txt"
    secret.write_text("canary")
    link = folder(house) / "innocent.txt"
    link.symlink_to(secret)
    house.model.say(f"Here.\nMEDIA:{secret if where == 'outside' else link}")
    async with house.open():
        await house.telegram.say("send it")
        (only,) = await house.said(1)
    assert not only.file
    assert not house.telegram.calls("sendDocument")
