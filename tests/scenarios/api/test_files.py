"""Files over the API: sent as data URLs, and handed over by signed links."""

import base64
import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import openai
import pytest
from tests.scenarios.api.served_api import ServedApi, said_by

from talaria.testing import Reply, call

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
MB = 1 << 20


def data_url(content: bytes, mime: str) -> str:
    return f"data:{mime};base64,{base64.b64encode(content).decode()}"


async def send(client: openai.AsyncOpenAI, *parts: dict[str, Any]) -> Any:
    content: Any = [{"type": "text", "text": "What is this?"}, *parts]
    return await client.chat.completions.create(model="talaria", messages=[{"role": "user", "content": content}])


def people(api: ServedApi) -> Path:
    return api.harness.home.parent / "people"


def kept(api: ServedApi, content: bytes) -> list[Path]:
    """Where the conversations have it."""
    return [
        file
        for file in people(api).rglob("*")
        if file.is_file() and file.stat().st_size == len(content) and file.read_bytes() == content
    ]


async def test_image_reaches_the_model(api: ServedApi) -> None:
    api.model.say("A pixel.", "A pixel, again.")
    async with api.openai() as client:
        image = {"type": "image_url", "image_url": {"url": data_url(PIXEL, "image/png")}}
        assert (await send(client, image)).choices[0].message.content == "A pixel."
        sent = api.sent()[-1]["content"]
        assert any(part["type"] == "image_url" for part in sent)
        response = await client.responses.create(
            model="talaria",
            input=[
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "And this?"},
                        {"type": "input_image", "image_url": data_url(PIXEL, "image/png"), "detail": "auto"},
                    ],
                }
            ],
        )
        assert response.output_text == "A pixel, again."
        assert any(part["type"] == "image_url" for part in api.sent()[-1]["content"])


async def test_file_reaches_the_folder_of_the_conversation(api: ServedApi) -> None:
    content = os.urandom(3000)
    api.model.say("Numbers.")
    async with api.openai() as client:
        file = {"type": "file", "file": {"filename": "../../num bers.bin", "file_data": data_url(content, "x/y")}}
        await send(client, file)
    (found,) = kept(api, content)
    assert found.name in str(api.sent()[-1]["content"])
    assert people(api) in found.parents


async def test_file_of_20_mb_is_taken_and_a_larger_one_refused(api: ServedApi) -> None:
    content = os.urandom(MB) * 20
    api.model.say("Much.")
    async with api.openai() as client:
        await send(client, {"type": "file", "file": {"filename": "a.bin", "file_data": data_url(content, "x/y")}})
        assert len(kept(api, content)) == 1
        for files in ([content + b"x"], [content, b"x"], [content] * 2):
            parts = [{"type": "file", "file": {"filename": "a", "file_data": data_url(one, "x/y")}} for one in files]
            with pytest.raises(openai.APIStatusError) as refused:
                await send(client, *parts)
            assert refused.value.status_code == 413
    assert len(api.model.requests) == 1


@pytest.mark.parametrize(
    "url", ["https://example.org/x.png", "file:///etc/passwd", "data:image/png,abc", "data:image/png;base64,a*b", "/x"]
)
async def test_nothing_is_fetched_from_other_addresses(api: ServedApi, url: str) -> None:
    async with api.openai() as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await send(client, {"type": "image_url", "image_url": {"url": url}})
    assert refused.value.param == "messages[0].content[1]"
    assert api.model.requests == []


async def test_file_of_the_agent_is_fetched_by_its_link_without_a_token(api: ServedApi) -> None:
    words = "Here it is:\nMEDIA:report.txt\nThat was all."
    api.model.say(Reply(calls=(call("terminal", command="echo done > report.txt"),)), words, "Goodbye.")
    async with api.openai() as client, api.http("") as stranger:
        stream = await client.chat.completions.create(
            model="talaria", messages=[{"role": "user", "content": "write"}], stream=True
        )
        text = "".join([one.choices[0].delta.content or "" async for one in stream if one.choices])
        before, link, after = text.splitlines()
        assert (before, after) == ("Here it is:", "That was all.")
        assert link.startswith("[report.txt](http://127.0.0.1:")
        url = link.partition("(")[2].removesuffix(")")
        file = await stranger.get(url)
        assert (file.status_code, file.content) == (200, b"done\n")
        assert file.headers["Content-Disposition"] == 'attachment; filename="report.txt"'
        assert file.headers["Content-Security-Policy"].startswith("sandbox")
        # The link in the history is the line that the model wrote.
        history: Any = [{"role": "user", "content": "write"}, {"role": "assistant", "content": text}]
        await client.chat.completions.create(model="talaria", messages=[*history, {"role": "user", "content": "bye"}])
    assert len(await api.sessions()) == 1
    assert said_by("assistant", api.sent())[-1] == words


async def a_link(api: ServedApi) -> tuple[str, dict[str, str]]:
    """The address of a file, and the parts of its query."""
    api.model.say(Reply(calls=(call("terminal", command="echo done > a.txt; echo no > b.txt"),)), "MEDIA:a.txt")
    async with api.openai() as client:
        response = await client.responses.create(model="talaria", input="write")
    url = urlsplit(response.output_text.partition("(")[2].removesuffix(")"))
    return url.path, {name: values[0] for name, values in parse_qs(url.query).items()}


async def test_altered_links_are_refused(api: ServedApi) -> None:
    path, query = await a_link(api)
    changes: list[dict[str, str]] = [
        {"signature": "0" * 64},
        {"signature": ""},
        {"signature": "ü"},
        {"signature": query["signature"].upper() if not query["signature"].isdecimal() else "x"},
        {"path": "b.txt"},
        {"path": "./a.txt"},
        {"expires": str(int(query["expires"]) + 1)},
        {"expires": "0"},
        {"expires": "²"},
        {"expires": "-1"},
    ]
    async with api.http("") as stranger, api.http() as http:
        assert (await stranger.get(path, params=query)).status_code == 200
        for change in changes:
            assert (await stranger.get(path, params=query | change)).status_code == 401, change
        elsewhere = path[:-1] + ("0" if path[-1] != "0" else "1")
        assert (await stranger.get(elsewhere, params=query)).status_code == 401
        assert (await stranger.get(path)).status_code == 401
        assert (await stranger.delete(path, params=query)).status_code == 401
        with_token = await http.get(path, params={"path": "b.txt"})
        assert (with_token.status_code, with_token.content) == (200, b"no\n")
        foreign = await stranger.get(path, params=query, headers={"Host": "evil.example"})
        assert foreign.status_code == 403


async def test_file_outside_the_folder_is_not_there(api: ServedApi) -> None:
    path, _ = await a_link(api)
    secret = api.harness.home / "secret.txt"
    secret.write_text("secret")
    (row,) = await api.sessions()
    (Path(row.cwd) / "way.txt").symlink_to(secret)
    (Path(row.cwd) / "folder").mkdir()
    async with api.http() as http:
        for asked in (
            *(str(secret), "../../home/secret.txt", "way.txt", "/etc/passwd", "folder", "", "none", "\0", "x" * 5000),
            *("/dev/zero", "/proc/self/environ", "~/secret.txt"),
        ):
            refused = await http.get(path, params={"path": asked})
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "file_not_found"), asked
            assert "secret\n" not in refused.text


async def test_link_to_a_file_outside_the_folder_leads_nowhere(api: ServedApi) -> None:
    api.model.say("MEDIA:/etc/passwd")
    async with api.openai() as client, api.http("") as stranger:
        response = await client.responses.create(model="talaria", input="show")
        url = response.output_text.partition("(")[2].removesuffix(")")
        assert (await stranger.get(url)).status_code == 404


async def test_links_survive_a_restart_and_die_with_their_conversation(api: ServedApi) -> None:
    path, query = await a_link(api)
    (row,) = await api.sessions()
    async with api.http("") as stranger, api.http() as http:
        assert (await stranger.get(path, params=query)).status_code == 200
        assert (await http.delete(f"/v1/sessions/{row.id}")).status_code == 200
        assert (await stranger.get(path, params=query)).status_code == 404
