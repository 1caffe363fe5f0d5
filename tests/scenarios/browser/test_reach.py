"""Where a page can lead the browser, and where not: whatever its scripts try, nothing of this machine or of the
networks around it hears of it.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import pytest_asyncio
from aiohttp import web
from tests.scenarios.browser.conftest import (
    PRIVATE,
    PUBLIC,
    Canary,
    Names,
    Site,
    Visitor,
    below,
    is_alive,
    ref,
    until,
)

from talaria.core.errors import ToolFailed
from talaria.core.ids import SessionId
from talaria.tools.browser.browser import Browser

TRIES = """
<title>trying</title>
<script>
const fixed = at => `<link rel="stylesheet" href="http://${at}/css"><link rel="prefetch" href="http://${at}/prefetch">
<link rel="preconnect" href="http://${at}"><link rel="dns-prefetch" href="//${at}"><img src="http://${at}/img">
<video src="http://${at}/video"></video><iframe src="http://${at}/frame"></iframe><embed src="http://${at}/embed">`;
const limit = new Promise(done => setTimeout(done, 1000));
const socket = url => new Promise(done => { const one = new WebSocket(url); one.onerror = one.onopen = done });
const events = url => new Promise(done => { const one = new EventSource(url); one.onerror = one.onmessage = done });
const request = url => new Promise(done => {
    const one = new XMLHttpRequest(); one.onloadend = done; one.open("GET", url); one.send() });
const worker = url => new Promise(done => {
    const one = new Worker(URL.createObjectURL(new Blob([`importScripts("${url}")`]))); one.onerror = done });
const peer = async urls => {
    const one = new RTCPeerConnection({iceServers: [{urls, username: "u", credential: "c"}]});
    one.createDataChannel("a"); await one.setLocalDescription(await one.createOffer());
    await new Promise(done => one.onicegatheringstatechange = () => one.iceGatheringState == "complete" && done()) };
const transport = async url => { await new WebTransport(url).ready };
const tries = at => {
    document.body.insertAdjacentHTML("beforeend", fixed(at));
    navigator.sendBeacon(`http://${at}/beacon`, "a");
    return [
        fetch(`http://${at}/fetch`), fetch(`http://${at}/opaque`, {mode: "no-cors"}), fetch(`https://${at}/tls`),
        fetch(`http://${at}/post`, {method: "POST", body: "a", mode: "no-cors"}), request(`http://${at}/xhr`),
        socket(`ws://${at}/ws`), socket(`wss://${at}/ws`), events(`http://${at}/events`), import(`http://${at}/module`),
        worker(`http://${at}/worker`), ...[`stun:${at}`, `turn:${at}?transport=tcp`, `turn:${at}?transport=udp`].map(
            url => Promise.race([limit, peer(url)])), Promise.race([limit, transport(`https://${at}/wt`)])] };
addEventListener("load", () => Promise.allSettled(PLACES.flatMap(tries)).then(all => {
    document.body.textContent = `tried ${all.length}` }));
</script><body>
"""
HOSTS = (
    *(PRIVATE, "localhost", "127.1", "0x7f000003", "2130706435", "[::ffff:127.0.0.3]", "0.0.0.0", "[::1]", "[::]"),
    *("169.254.169.254", "metadata.example", "rebinding.example", "a.localhost"),
)


async def tried(visitor: Visitor, site: Site, *places: str) -> str:
    """What was said until all was tried at all these places."""
    site.pages["/"] = TRIES.replace("PLACES", json.dumps(places))
    return await visitor.seen(f"tried {14 * len(places)}", await visitor.open(site.url()))


@pytest_asyncio.fixture(loop_scope="session")
async def nowhere(canary: Canary, names: Names) -> Canary:
    names.say("metadata.example", ["169.254.169.254"])
    for host in ("rebinding.example", "localhost", "a.localhost"):
        names.say(host, [PRIVATE])
    return canary


async def test_script_reaches_nothing_private(visitor: Visitor, site: Site, nowhere: Canary) -> None:
    said = await tried(visitor, site, *(f"{host}:{nowhere.port}" for host in HOSTS))
    assert nowhere.heard == 0
    for host in (PRIVATE, "localhost", "169.254.169.254", "rebinding.example"):
        assert f"[network: {host}:{nowhere.port} was refused]" in said


async def test_without_bubblewrap_script_reaches_nothing_private_either(
    impatient: Visitor, site: Site, nowhere: Canary
) -> None:
    await tried(impatient, site, f"{PRIVATE}:{nowhere.port}")
    assert nowhere.heard == 0


async def test_script_reaches_what_is_public(visitor: Visitor, site: Site) -> None:
    """The same tries: what keeps them from a private address is the address."""
    await tried(visitor, site, f"pages.example:{site.port}")
    heard = {path for path, _ in site.heard}
    assert {"/fetch", "/opaque", "/post", "/xhr", "/ws", "/events", "/worker", "/img", "/frame", "/beacon"} <= heard


@pytest.mark.parametrize("host", [PRIVATE, "169.254.169.254", "rebinding.example", "[::1]"])
async def test_private_address_is_not_opened(visitor: Visitor, nowhere: Canary, host: str) -> None:
    for scheme in ("http", "https"):
        with pytest.raises(ToolFailed, match="is not on the public internet; the browser does not go there"):
            await visitor.open(f"{scheme}://{host}:{nowhere.port}/")
    assert nowhere.heard == 0


@pytest.mark.parametrize("way", ["redirect", "script", "refresh", "link"])
async def test_page_does_not_lead_to_a_private_address(visitor: Visitor, site: Site, nowhere: Canary, way: str) -> None:
    target = f"http://{PRIVATE}:{nowhere.port}/latest"

    async def redirect(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": target})

    site.handlers["/redirect"] = redirect
    site.pages |= {
        "/script": f"<script>location.href = '{target}'</script>",
        "/refresh": f"<meta http-equiv=refresh content='0;url={target}'>",
        "/link": f"<a href='{target}'>Go</a>",
    }
    said = await visitor.open(site.url(f"/{way}"))
    if way == "link":
        said += await visitor.call("click", ref=ref(said, "Go"))
    await visitor.seen(f"[network: {PRIVATE}:{nowhere.port} was refused]", said)
    assert nowhere.heard == 0


async def test_name_that_changes_its_address_is_looked_up_anew_and_refused(
    visitor: Visitor, site: Site, nowhere: Canary, names: Names
) -> None:
    names.say("rebinding.example", [PUBLIC], [PRIVATE])
    site.pages["/"] = "<link rel=icon href='data:,'><p>public</p>"
    assert "public" in await visitor.open(site.url("/", "rebinding.example"))
    with pytest.raises(ToolFailed, match="is not on the public internet"):
        await visitor.open(f"http://rebinding.example:{nowhere.port}/")
    assert nowhere.heard == 0


@pytest.mark.parametrize(
    "url",
    [
        *("file:///etc/passwd", "chrome://version", "about:blank", "data:text/html,a", "javascript:alert(1)"),
        *("view-source:http://pages.example/", "ftp://pages.example/", "http://a@pages.example/", "pages.example", ""),
    ],
)
async def test_only_pages_of_the_web_are_opened(visitor: Visitor, url: str) -> None:
    with pytest.raises(ToolFailed):
        await visitor.open(url)
    assert visitor.browser.host(visitor.session) == ""


async def test_page_does_not_lead_to_files_or_to_the_inside_of_the_browser(visitor: Visitor, site: Site) -> None:
    links = ["file:///etc/passwd", "chrome://version", "view-source:http://a.example/", "data:text/html,inside"]
    site.pages["/"] = "".join(f"<a href='{link}'>{link.partition(':')[0]}</a>" for link in links)
    site.pages["/frame"] = "<iframe src='file:///etc/passwd'></iframe><p>after</p>"
    opened = await visitor.open(site.url())
    for link in links:
        said = await visitor.call("click", ref=ref(opened, link.partition(":")[0]))
        assert f"The page is {site.url()}" in said
    framed = await visitor.open(site.url("/frame"))
    assert "after" in framed
    assert "root:" not in framed


async def test_two_sessions_do_not_share_cookies(
    visitor: Visitor, browser: Browser, site: Site, tmp_path: Path
) -> None:
    async def cookies(request: web.BaseRequest) -> web.StreamResponse:
        response = web.Response(text=f"<p>has {request.cookies.get('who', 'none')}", content_type="text/html")
        response.set_cookie("who", request.query.get("who", "anybody"))
        return response

    site.handlers["/"] = cookies
    other = Visitor(browser, SessionId("other"), tmp_path)
    assert "has none" in await visitor.open(site.url("/?who=first"))
    assert "has none" in await other.open(site.url("/?who=second"))
    assert "has first" in await visitor.open(site.url("/?who=first"))
    await browser.close(other.session)
    assert "has none" in await other.open(site.url())
    await browser.close(other.session)


PROGRAM = """
import asyncio, sys
from pathlib import Path
from talaria.core.clock import SystemClock
from talaria.core.ids import CallId, SessionId
from talaria.net.settings import WebSettings
from talaria.tools.base import Run, Scope
from talaria.tools.browser.browser import Browser
from talaria.tools.browser.browser_tools import browser_tools

async def main():
    browser = Browser(WebSettings(allow_private=("127.0.0.2",)), SystemClock())
    scope = Scope(SessionId("s"), Path(), Path())
    navigate = browser_tools(browser)[0].prepare('{"url": "%s"}' % sys.argv[1], scope)
    print(await navigate.run(Run(CallId("c"), scope)), "end", sep="\\n", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_nothing_is_left_when_we_are_killed(needs_chromium: None, site: Site) -> None:
    site.pages["/"] = "<p>page</p>"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", dedent(PROGRAM), site.url(), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(30):
        assert b"page" in await process.stdout.readuntil(b"\nend\n")
    started = below(process.pid)
    assert len(started) > 3
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    await until(lambda: not any(is_alive(pid) for pid in started))
