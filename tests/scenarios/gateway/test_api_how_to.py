"""Somebody does what the how-tos about the HTTP API say, word for word, with the demo model."""

import asyncio
import json
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.ports import reserved_port

from talaria.api.api_settings import check_api_settings, read_api_settings
from talaria.app.settings import read_settings
from talaria.testing.patience import PATIENCE_S

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to"
CURL, OPENAI, OPEN_WEBUI = "use-the-http-api.md", "use-the-openai-client.md", "connect-open-webui.md"
EXAMPLE_PORT = "8642"


def blocks(file: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (HOW_TO / file).read_text("utf-8"), re.DOTALL)


class Somebody:
    """With a shell, whose variables stay, and the API on a port of this test."""

    def __init__(self, environment: Mapping[str, str], workspace: Path, port: str) -> None:
        self.workspace = workspace
        self._folder = Path(environment["PWD"])
        program = self._folder / "bin" / "talaria"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m talaria.cli.main "$@"\n')
        program.chmod(0o755)
        self._environment = {**environment, "PATH": f"{program.parent}:{environment['PATH']}"}
        self._port = port
        self._api: Process | None = None
        (self._folder / "variables").touch()

    async def does(self, script: str) -> str:
        """In a shell that stops at the first mistake; what it printed."""
        own = script.replace(EXAMPLE_PORT, self._port)
        kept = f". ./variables\n{own}\nset | grep '^[a-z]*=' > variables || true\n"
        process = await self._spawn("sh", "-euc", kept)
        async with asyncio.timeout(PATIENCE_S):
            out, err = await process.communicate()
        assert process.returncode == 0, f"{own}\n{err.decode()}"
        return out.decode()

    async def reads(self, path: str) -> Any:
        return json.loads(await self.does(f'curl -sS "$url/{path}" -H "$token"'))

    async def starts_api(self, command: str) -> None:
        """Returns when it has said where programs reach it."""
        self._api = await self._spawn(*command.split())
        assert self._api.stderr is not None
        async with asyncio.timeout(PATIENCE_S):
            while f"http://127.0.0.1:{self._port}/v1" not in (line := (await self._api.stderr.readline()).decode()):
                assert line, "it has ended"

    async def kills_api(self) -> None:
        if self._api is not None:
            self._api.send_signal(signal.SIGKILL)
            await self._api.communicate()
            self._api = None

    async def runs_python(self, script: str, **variables: str) -> str:
        own = script.replace(EXAMPLE_PORT, self._port)
        process = await self._spawn(sys.executable, "-W", "error", "-c", own, **variables)
        async with asyncio.timeout(PATIENCE_S):
            out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        return out.decode()

    async def _spawn(self, *command: str, **variables: str) -> Process:
        environment = {**self._environment, **variables}
        return await asyncio.create_subprocess_exec(
            *command, env=environment, cwd=self._folder, stdin=DEVNULL, stdout=PIPE, stderr=PIPE
        )


@pytest.fixture
def port() -> Iterator[str]:
    with reserved_port() as reserved:
        yield str(reserved)


@pytest.fixture
async def somebody(tmp_path: Path, environment: dict[str, str], port: str) -> AsyncIterator[Somebody]:
    home = Path(environment["TALARIA_HOME"])
    home.mkdir(mode=0o700)
    people = tmp_path / "people"
    (home / "config.yaml").write_text(
        f"model: {{provider: demo}}\ngateway: {{workspace: '{people}'}}\napi: {{port: {port}}}\n"
    )
    one = Somebody(environment, people, port)
    yield one
    await one.kills_api()


def read_documents(printed: str) -> list[Any]:
    """JSON documents, one after the other."""
    decoder, found, rest = json.JSONDecoder(), list[Any](), printed.strip()
    while rest:
        document, end = decoder.raw_decode(rest)
        found.append(document)
        rest = rest[end:].strip()
    return found


def read_events(printed: str) -> list[Any]:
    return [json.loads(line[6:]) for line in printed.splitlines() if line.startswith("data: {")]


def content_of(completion: Any) -> str:
    return completion["choices"][0]["message"]["content"]


async def test_api_does_what_the_how_to_says(somebody: Somebody) -> None:
    (start,) = blocks(CURL, "console")
    first_token, ask, stream, named, keyed, background, again, steered, asking, answered, sessions, files, wrong = (
        blocks(CURL, "sh")
    )
    await somebody.starts_api(start.strip())
    await somebody.does(first_token)

    (answer,) = read_documents(await somebody.does(ask))
    assert "search_files says" in content_of(answer)
    assert "search_files" in answer["choices"][0]["message"]["reasoning_content"]

    chunks = read_events(await somebody.does(stream))
    pieces = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert len(pieces) > 3
    assert "Linux" in "".join(pieces)

    written, read = read_documents(await somebody.does(named))
    assert "Wrote 5 bytes" in content_of(written)
    assert "api-laptop/list.txt" in content_of(written)
    assert "1|milk" in content_of(read)

    first, second = read_documents(await somebody.does(keyed))
    assert first == second
    (people,) = somebody.workspace.glob("api-laptop/orders.txt")
    assert len(people.read_text().splitlines()) == 1

    (begun,) = read_documents(await somebody.does(background))
    assert begun["status"] in ("queued", "in_progress")
    await somebody.kills_api()
    await somebody.starts_api(start.strip())
    events = read_events(await somebody.does(again))
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["id"] == begun["id"]

    runs, _, stopped = read_documents(await somebody.does(steered))
    assert [runs["data"][1]["response_id"], runs["data"][0]["id"]] == [begun["id"], stopped["id"]]
    async with asyncio.timeout(PATIENCE_S):
        while (await somebody.reads(f"runs/{stopped['id']}"))["status"] != "cancelled":
            await asyncio.sleep(0.05)

    await somebody.does(asking)
    (signal_given,) = read_documents(await somebody.does(answered))
    assert signal_given["state"] == "obeyed"

    listed, found, _, renamed, forked, deleted = read_documents(await somebody.does(sessions))
    assert len(listed["data"]) == 5
    assert "milk" in found["data"][0]["snippet"]
    assert (renamed["title"], forked["parent"], deleted["id"]) == ("Things to buy", renamed["id"], renamed["id"])

    (shown,) = read_documents(await somebody.does(files))
    assert re.search(r"attachments/\S+-list\.txt", content_of(shown))

    errors = [one["error"] for one in read_documents(await somebody.does(wrong))]
    assert [one["code"] for one in errors] == ["invalid_value", "invalid_token", "missing_scope"]


async def test_openai_client_does_what_the_how_to_says(somebody: Somebody) -> None:
    await somebody.starts_api("talaria api")
    (creating,) = blocks(OPENAI, "sh")
    token = (await somebody.does(f'{creating}\nprintf %s "$TALARIA_TOKEN"')).strip()
    (script,) = blocks(OPENAI, "python")
    printed = await somebody.runs_python(script, TALARIA_TOKEN=token)
    for expected in (
        "search_files says",
        "Wrote 5 bytes",
        "1|milk",
        "finished",
        "0 response.created",
        "response.completed",
        "invalid_value messages",
    ):
        assert expected in printed


async def test_token_of_the_how_to_for_open_webui_may_only_chat(somebody: Somebody) -> None:
    await somebody.starts_api("talaria api")
    (creating,) = blocks(OPEN_WEBUI, "sh")
    token = (await somebody.does(creating)).strip()
    listed = json.loads(await somebody.does("talaria api token list --json"))
    assert [(one["person"], one["scopes"]) for one in listed] == [("api:open-webui", ["chat"])]
    chat = f"""curl -sS http://127.0.0.1:{EXAMPLE_PORT}/v1/chat/completions -H 'Authorization: Bearer {token}' \\
        -H 'X-OpenWebUI-Chat-Id: 5b6c' -d '{{"model": "talaria", "messages": [{{"role": "user", "content": "%s"}}]}}'
    """
    (written,) = read_documents(await somebody.does(chat % "write milk to list.txt"))
    assert "Wrote 5 bytes" in content_of(written)
    (sent,) = read_documents(await somebody.does(chat.replace('"messages"', '"tools": [{}], "messages"') % "hello"))
    told = " ".join((HOW_TO / OPEN_WEBUI).read_text("utf-8").split())
    assert sent["error"]["message"].startswith("Tools of the client are not called here")
    assert "Tools of the client are not called here" in told


@pytest.mark.parametrize("file", [CURL, OPEN_WEBUI])
def test_settings_of_the_how_tos_may_be_used(tmp_path: Path, file: str) -> None:
    shown = blocks(file, "yaml")
    assert shown
    for text in shown:
        (tmp_path / "config.yaml").write_text(text)
        settings = read_settings(tmp_path)
        check_api_settings(read_api_settings(settings.config.api, {}))
