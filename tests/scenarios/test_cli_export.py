"""A conversation as a file for others: as it reads, and as a page that runs nothing and loads nothing."""

import asyncio
import base64
import json
import re
import struct
import subprocess
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from playwright.async_api import Browser, Page, Request, async_playwright

from talaria.app.build import open_store
from talaria.core.entries import Entry, MessageAdded, Noted, TurnEnded, TurnStarted
from talaria.core.ids import CallId, SessionId, TurnId
from talaria.core.messages import Assistant, Context, Image, Text, Thinking, ToolCall, ToolResult, Usage, User, user
from talaria.store.base import NewSession
from talaria.testing.servers.model_server import ModelServer
from talaria.tools.browser import browser_process

Talaria = Callable[..., subprocess.CompletedProcess[str]]

TURN = TurnId("turn")
SCRIPT = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
HOSTILE = f"""{SCRIPT} & "quoted"

[click](javascript:document.title='taken') [data](data:text/html,x) [file](file:///etc/passwd) [ok](https://example.org)

![spy](http://127.0.0.1:9/spy.png) ![](http://127.0.0.1:9/quiet.png '{SCRIPT}')

<style>body{{display:none}}</style><meta http-equiv="refresh" content="0;url=http://127.0.0.1:9/">

```html" onmouseover="alert(1)
</code></pre>{SCRIPT}
```

| a | b |
|:-:|--:|
| `{SCRIPT}` | $title ${{style}} |
"""


def picture() -> Image:
    """8 by 8, all red."""
    rows = b"".join(b"\0" + b"\xff\0\0" * 8 for _ in range(8))
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    body = b"".join(struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in chunks)
    return Image("image/png", base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode())


def keep(home: Path, title: str, *entries: Entry) -> str:
    """A conversation of one turn."""

    async def work() -> None:
        async with open_store(home) as store:
            owner = await store.owners.join("test")
            await store.sessions.create(NewSession(SessionId("talk"), "cli", "demo:demo", title=title))
            epoch = await store.journal.seize(SessionId("talk"), owner)
            assert isinstance(epoch, int)
            ended = TurnEnded(TURN, "completed", Usage(1200, 34))
            await store.journal.record(SessionId("talk"), epoch, [TurnStarted(TURN, "terminal"), *entries, ended])
            await store.journal.release(SessionId("talk"), epoch)

    asyncio.run(work())
    return "talk"


def hostile(home: Path) -> str:
    call = ToolCall(CallId("c1"), f"tool{SCRIPT}", json.dumps({"x": SCRIPT}))
    return keep(
        home,
        f"Title {SCRIPT}",
        MessageAdded(User((Context("[secret surroundings]"), Text(f"person {HOSTILE}"), picture()))),
        MessageAdded(Assistant((Thinking(f"thought {SCRIPT}"), Text(HOSTILE), call))),
        MessageAdded(ToolResult(CallId("c1"), "tool", f"result {SCRIPT}", is_error=True, images=(picture(),))),
        MessageAdded(Assistant((Text("\u202edone"),))),
        Noted(f"note {SCRIPT}"),
    )


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    executable = browser_process.find_executable()
    if executable is None:
        pytest.skip("no Chromium here")
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield opened
        await opened.close()


async def shown(browser: Browser, file: Path) -> tuple[Page, list[str], list[str]]:
    """The page, what it asked for beside itself, and what the browser complained about."""
    page = await browser.new_page(viewport={"width": 900, "height": 900})
    asked: list[str] = []
    complaints: list[str] = []

    def note(request: Request) -> None:
        if request.url != file.as_uri() and not request.url.startswith("data:"):
            asked.append(request.url)

    page.on("request", note)
    page.on("console", lambda message: complaints.append(message.text))
    await page.goto(file.as_uri(), wait_until="load")
    return page, asked, complaints


async def test_page_of_a_hostile_conversation_runs_nothing_and_loads_nothing(
    talaria: Talaria, home: Path, tmp_path: Path, browser: Browser
) -> None:
    file = tmp_path / "talk.html"
    name = await asyncio.to_thread(hostile, home)
    assert talaria("sessions", "export", name, "--html", "-o", str(file)).returncode == 0

    page, asked, complaints = await shown(browser, file)

    assert (asked, complaints) == ([], [])
    assert await page.title() == f"Title {SCRIPT}"
    assert await page.locator("script, iframe, object, link, base, form, [onerror], [style]").count() == 0
    assert await page.locator("body style, body meta").count() == 0
    links = await page.locator("a").evaluate_all("all => all.map(one => [one.href, one.rel])")
    assert links == [["https://example.org/", "noreferrer noopener"]]
    pictures = await page.locator("img").evaluate_all("all => all.map(one => [one.src.slice(0, 22), one.naturalWidth])")
    assert pictures == [["data:image/png;base64,", 8]] * 2
    assert await page.locator("main").is_visible()


async def test_page_shows_who_said_what_with_calls_folded(
    talaria: Talaria, home: Path, tmp_path: Path, browser: Browser
) -> None:
    file = tmp_path / "talk.html"
    name = await asyncio.to_thread(hostile, home)
    talaria("sessions", "export", name, "--html", "-o", str(file))

    page, _, _ = await shown(browser, file)

    heads = [re.sub(r"\s*\d{4}-.*", "", one) for one in await page.locator("article > h2").all_inner_texts()]
    assert heads == ["You", "Talaria"]
    said = await page.locator("article.person").inner_text()
    assert "person <script>" in said
    assert "secret surroundings" not in await page.content()
    result = page.get_by_text("result <script>")
    assert not await result.is_visible()
    await page.locator("details.call > summary").click()
    assert await result.is_visible()
    assert "failed" in await page.locator("details.call > summary").inner_text()
    assert await page.locator("details.thinking").count() == 1
    assert await page.locator(".text pre code").inner_text() == f"</code></pre>{SCRIPT}\n"
    assert "$title ${style}" in await page.locator("td").nth(1).inner_text()
    assert await page.get_by_text("\\u202edone", exact=True).count() == 1
    facts = await page.locator(".facts").inner_text()
    assert "demo:demo" in facts
    assert "1,234 tokens" in facts


async def test_page_is_dark_where_people_want_it_dark(
    talaria: Talaria, home: Path, tmp_path: Path, browser: Browser
) -> None:
    file = tmp_path / "talk.html"
    name = await asyncio.to_thread(hostile, home)
    talaria("sessions", "export", name, "--html", "-o", str(file))
    page, _, _ = await shown(browser, file)
    colours: list[list[int]] = []
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)
        colour = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        colours.append([int(part) for part in re.findall(r"\d+", colour)])
    light, dark = colours
    assert min(light) > 200
    assert max(dark) < 60


def test_picture_that_is_none_is_not_shown(talaria: Talaria, home: Path) -> None:
    evil = Image('image/svg+xml" onload="x', "PHN2Zz4="), Image("image/png", '"><script>')
    keep(home, "t", MessageAdded(User(evil)))
    told = talaria("sessions", "export", "talk", "--html").stdout
    assert told.count("A picture that cannot be shown.") == 2
    assert "<script>" not in told
    assert "onload" not in told


def test_markdown_reads_as_the_conversation_did(talaria: Talaria, home: Path, tmp_path: Path) -> None:
    call = ToolCall(CallId("c1"), "terminal", '{"command":"ls"}')
    keep(
        home,
        "Garden\nplans",
        MessageAdded(user("What is here?")),
        MessageAdded(Assistant((Text("I look."), call))),
        MessageAdded(ToolResult(CallId("c1"), "terminal", "```\nfence\n```\x1b[2J")),
        Noted("Something happened."),
        MessageAdded(user("for the model only", author="host")),
    )
    file = tmp_path / "talk.md"
    ended = talaria("sessions", "export", "talk", "--markdown", "-o", str(file))
    assert ended.stderr == f"Wrote 7 entries to {file}.\n"
    written = file.read_text()
    assert written.startswith("# Garden plans\n\ntalk · demo:demo · 20")
    assert written.partition("## You")[2] == (
        "\n\nWhat is here?\n\n## Talaria\n\nI look.\n\nCall of `terminal`:\n\n"
        '```\n{"command":"ls"}\n```\n\nResult of `terminal`:\n\n````\n```\nfence\n```\\x1b[2J\n````\n\n'
        "*Something happened.*\n"
    )


def test_page_goes_to_standard_output_unless_a_file_is_named(talaria: Talaria, home: Path) -> None:
    keep(home, "t", MessageAdded(user("hello")))
    ended = talaria("sessions", "export", "talk", "--html")
    assert ended.stdout.startswith("<!doctype html>")
    assert ended.stderr == ""


def texts(value: Any) -> Iterator[str]:
    """All that are anywhere in it."""
    match value:
        case str():
            yield value
        case dict():
            for one in cast("dict[str, Any]", value).values():
                yield from texts(one)
        case list():
            for one in cast("list[Any]", value):
                yield from texts(one)
        case _:
            pass


HIDDEN = "a\x9b31mb\u202ec\u200bd"


def test_what_acts_on_a_terminal_is_shown_as_escapes_in_every_form(talaria: Talaria, home: Path) -> None:
    keep(home, "t", MessageAdded(user(HIDDEN)))
    for option in ((), ("--markdown",), ("--html",)):
        written = talaria("sessions", "export", "talk", *option).stdout
        assert not set("\x9b\u202e\u200b") & set(written), option
        assert "u202ec" in written
    lines = talaria("sessions", "export", "talk").stdout.splitlines()
    assert HIDDEN in [value for line in lines for value in texts(json.loads(line))]


def test_what_acts_on_a_terminal_is_escaped_in_answers_for_programs(talaria: Talaria, server: ModelServer) -> None:
    for format in ("json", "stream-json"):
        server.say(HIDDEN)
        written = talaria("-q", "x", "--output-format", format).stdout
        assert not set("\x9b\u202e\u200b") & set(written)
        assert json.loads(written.splitlines()[-1])["text"] == HIDDEN
