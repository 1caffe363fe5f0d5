"""Pages that ask, hang, crash or flood: a clear sentence, and the next call works."""

import os
import signal
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from aiohttp import web
from tests.scenarios.browser.conftest import PUBLIC, Names, Site, Visitor, is_alive, processes, ref, works
from tests.waiting import until

from talaria.core.errors import ToolFailed
from talaria.core.ids import SessionId
from talaria.testing.manual_clock import ManualClock
from talaria.tools.browser.browser import IDLE_S, Browser
from talaria.tools.browser.tabs import MAX_DIALOGS, MAX_TABS


async def test_dialogs_are_answered_and_told(visitor: Visitor, site: Site) -> None:
    site.pages["/"] = """<button onclick="alert('one'); document.title = confirm('two') + ':' + prompt('three')">Ask
        </button>"""
    opened = await visitor.open(site.url())
    assert (await visitor.call("click", ref=ref(opened, "Ask"))).splitlines()[1:] == [
        "[alert was dismissed: one]",
        "[confirm was dismissed: two]",
        "[prompt was dismissed: three]",
    ]
    assert "Title: false:null" in await visitor.call("snapshot")


async def test_page_that_does_not_want_to_be_left_is_left(visitor: Visitor, site: Site) -> None:
    site.pages["/"] = "<script>onbeforeunload = event => event.preventDefault()</script><button>Touch</button>"
    opened = await visitor.open(site.url())
    await visitor.call("click", ref=ref(opened, "Touch"))
    site.pages["/b"] = "<p>left</p>"
    left = await visitor.open(site.url("/b"))
    assert "left" in left
    assert left.splitlines()[-1].startswith("[beforeunload was accepted:")


async def test_page_that_asks_without_end_is_closed(visitor: Visitor, site: Site) -> None:
    site.pages["/"] = "<button onclick='for (;;) alert(1)'>Ask</button>"
    opened = await visitor.open(site.url())
    assert (await visitor.call("click", ref=ref(opened, "Ask"))).splitlines() == [
        f"Clicked {ref(opened, 'Ask')}. No page is open; open one with browser_navigate.",
        "[alert was dismissed: 1]",
        f"[the page opened more than {MAX_DIALOGS} dialogs and was closed]",
    ]
    await works(visitor, site)


async def test_new_tab_is_looked_at_and_the_old_one_when_it_closes(visitor: Visitor, site: Site) -> None:
    site.pages |= {
        "/": "<button onclick=\"window.open('/tab')\">Tab</button><p>page one</p>",
        "/tab": "<p>page two</p><button onclick='window.close()'>Close</button>",
    }
    opened = await visitor.open(site.url())
    said = await visitor.seen("page two", await visitor.call("click", ref=ref(opened, "Tab")))
    assert "[a new tab was opened and is now the current one]" in said
    await visitor.call("click", ref=ref(said, "Close"))
    await visitor.seen("page one")


async def test_of_many_tabs_the_oldest_are_closed(visitor: Visitor, site: Site) -> None:
    site.pages["/"] = """<button onclick="window.open('/')">Tab</button>
        <script>onpagehide = () => navigator.sendBeacon('/closed')</script>"""
    await visitor.open(site.url())
    for _ in range(2 * MAX_TABS):
        await visitor.call("click", ref=ref(await visitor.seen("Tab"), "Tab"))
        if ("/closed", {}) in site.heard:
            break
    assert [path for path, _ in site.heard].count("/") > MAX_TABS
    assert ("/closed", {}) in site.heard


async def test_tabs_that_nobody_asked_for_are_not_opened(visitor: Visitor, site: Site) -> None:
    site.pages["/"] = "<script>for (let i = 0; i < 50; i++) open('/tab')</script><p>one</p>"
    assert "one" in await visitor.open(site.url())
    assert "one" in await visitor.call("snapshot")
    assert [path for path, _ in site.heard if path == "/tab"] == []


async def test_page_that_hangs_is_closed(impatient: Visitor, site: Site) -> None:
    site.pages["/"] = "<script>for (;;);</script>"
    with pytest.raises(ToolFailed) as told:
        await impatient.open(site.url())
    assert str(told.value) == f"{site.url()} hangs; it was closed. No page is open; open one with browser_navigate."
    with pytest.raises(ToolFailed, match=r"^No page is open"):
        await impatient.call("snapshot")
    await works(impatient, site)


async def test_site_that_does_not_answer_is_given_up(impatient: Visitor, site: Site) -> None:
    await works(impatient, site)
    with socket.create_server((PUBLIC, 0)) as silent:
        with pytest.raises(ToolFailed, match=f"{PUBLIC} did not answer in full within 1.5 s"):
            await impatient.open(f"http://{PUBLIC}:{silent.getsockname()[1]}/")
        assert "it works" in await impatient.call("snapshot")


async def test_page_that_crashes_is_told_and_replaced(visitor: Visitor, site: Site) -> None:
    site.pages["/"] = "<p>page</p>"
    await visitor.open(site.url())
    for pid in processes("--type=renderer"):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(ToolFailed, match=r"The page crashed\. No page is open"):
        await visitor.call("snapshot")
    await works(visitor, site)


@pytest.mark.parametrize("part", ["--remote-debugging-pipe", "run-driver"])
async def test_browser_that_breaks_down_is_told_and_starts_anew(visitor: Visitor, site: Site, part: str) -> None:
    await works(visitor, site)
    (*broken,) = processes(part)
    for pid in broken:
        with suppress(ProcessLookupError):  # it may go with another of them
            os.kill(pid, signal.SIGKILL)
    await until(lambda: not any(is_alive(pid) for pid in broken))
    with pytest.raises(ToolFailed, match="The browser crashed, and its pages are lost"):
        await visitor.call("snapshot")
    await works(visitor, site)


async def test_host_that_cannot_be_reached_is_told(visitor: Visitor, names: Names, site: Site) -> None:
    names.say("closed.example", [PUBLIC])
    with socket.socket() as closed:
        closed.bind((PUBLIC, 0))
        place = f"closed.example:{closed.getsockname()[1]}"
        with pytest.raises(ToolFailed, match=r"closed\.example is unknown or cannot be reached"):
            await visitor.open(f"https://{place}/")
        opened = await visitor.open(f"http://{place}/")
    assert "(HTTP 502)" in opened
    assert "closed.example cannot be reached: Connection refused." in opened
    with pytest.raises(ToolFailed, match=f"{PUBLIC} cannot be opened: ssl protocol error"):
        await visitor.open(f"https://{PUBLIC}:{site.port}/")


async def test_download_is_refused_and_told(visitor: Visitor, site: Site) -> None:
    sent: list[int] = []

    async def file(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Disposition": "attachment; filename=a.bin"})
        await response.prepare(request)
        sent.append(0)
        with suppress(ConnectionError):
            for _ in range(500):
                await response.write(bytes(100_000))
                sent[-1] += 1
        return response

    site.handlers["/file"] = file
    site.pages["/"] = "<a href='/file'>Get</a>"
    opened = await visitor.open(site.url())
    said = await visitor.call("click", ref=ref(opened, "Get"))
    await visitor.seen(f"[a download was refused: {site.url('/file')}]", said)
    with pytest.raises(ToolFailed, match="Download is starting"):
        await visitor.open(site.url("/file"))
    assert len(sent) == 2
    assert max(sent) < 500


async def test_permissions_are_denied(visitor: Visitor, site: Site) -> None:
    site.pages["/"] = """<script>(async () => {
        const asked = await Promise.all(['geolocation', 'notifications', 'camera', 'microphone', 'clipboard-read'].map(
            name => navigator.permissions.query({name})));
        document.body.append(asked.map(one => one.state).join() + ';' + await Notification.requestPermission())
        })()</script><body>"""
    await visitor.open(site.url())
    assert "denied,denied,denied,denied,denied;denied" in await visitor.call("snapshot")


@pytest.mark.parametrize("page", ["<li>item</li>" * 21_000, "word " * 210_000], ids=["elements", "text"])
async def test_page_that_is_too_large_is_shown_by_its_beginning(visitor: Visitor, site: Site, page: str) -> None:
    site.pages["/"] = f"<p>beginning</p>{page}"
    opened = await visitor.open(site.url())
    assert "[too large to be shown as a tree: " in opened
    assert "beginning" in opened
    assert len(opened) < 20_000


async def test_pages_of_a_session_end_with_it(visitor: Visitor, site: Site, names: Names, tmp_path: Path) -> None:
    await works(visitor, site)
    before = len(processes("--type=renderer"))
    others = [Visitor(visitor.browser, SessionId(f"{number}.example"), tmp_path) for number in range(3)]
    for other in others:
        names.say(other.session, [PUBLIC])
        await other.open(site.url("/works", other.session))
    await until(lambda: len(processes("--type=renderer")) >= before + 2)
    for other in others:
        await visitor.browser.close(other.session)
    await until(lambda: len(processes("--type=renderer")) <= before + 1)


async def test_window_that_nobody_uses_is_closed_and_with_the_last_one_the_browser(
    bare_browser: Browser, impatient: Visitor, site: Site, clock: ManualClock, tmp_path: Path
) -> None:
    late = Visitor(bare_browser, SessionId("late"), tmp_path)
    await works(impatient, site)
    running = set(processes("run-driver"))
    clock.advance(IDLE_S / 2)
    await works(late, site)
    clock.advance(IDLE_S / 2)
    await until(lambda: not bare_browser.host(impatient.session))
    assert bare_browser.host(late.session) == PUBLIC
    clock.advance(IDLE_S / 2)
    await until(lambda: set(processes("run-driver")) < running)
    assert bare_browser.host(late.session) == ""
    await works(late, site)
