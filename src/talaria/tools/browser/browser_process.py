"""The browser's processes: Playwright's driver, and Chromium under it. They end with us, even if we are killed: the
driver ends when its pipe to us closes, and Chromium with the driver.
"""

import asyncio
import os
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from talaria.core.errors import ToolFailed
from talaria.tools.blocking import in_threads
from talaria.tools.browser import chromium
from talaria.waiting import in_thread

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright, ProxySettings

START_MS = 60_000
STOP_S = 5.0
NOWHERE: "ProxySettings" = {"server": "http://127.0.0.1:1", "bypass": "<-loopback>"}
"""Where the browser asks by itself, in no session's name."""
ARGUMENTS = (
    "--disable-quic",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",  # so it was called before
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)
"""All that moves is TCP through a proxy of ours, which alone looks names up."""
UNWANTED = ("--disable-popup-blocking", "--disable-ipc-flooding-protection")
"""What Playwright would do for the sake of tests."""


class RunningBrowser:
    def __init__(self, playwright: "Playwright", browser: "Browser") -> None:
        self._playwright = playwright
        self.browser = browser

    async def stop(self) -> None:
        for ending in (self.browser.close(), self._playwright.stop()):
            await ended(ending)


async def answers(browser: "Browser") -> bool:
    """Whether Chromium and the driver are both there; of a driver that is gone nobody is told."""
    from playwright.async_api import Error  # noqa: PLC0415

    try:
        async with asyncio.timeout(STOP_S):
            await (await browser.new_browser_cdp_session()).detach()
    except (Error, TimeoutError):
        return False
    return True


async def ended(ending: Awaitable[Any]) -> None:
    """As far as it can be ended: what is gone already, or does not answer, is not waited for."""
    from playwright.async_api import Error  # noqa: PLC0415

    with suppress(Error, TimeoutError):
        async with asyncio.timeout(STOP_S):
            await ending


async def start() -> RunningBrowser:
    """Raises `ToolFailed`."""
    found = chromium.installed()
    if found is None:
        raise ToolFailed("There is no Chromium on this machine; Debian and Ubuntu call its package chromium.")
    async with in_threads(TemporaryDirectory(prefix="talaria-browser-", ignore_cleanup_errors=True)) as folder:
        wrapper = await in_thread(lambda: chromium.confined(found, Path(folder)))
        return await _started(wrapper or found, is_confined=wrapper is not None)


async def _started(executable: Path, *, is_confined: bool) -> RunningBrowser:
    try:
        from playwright.async_api import Error, async_playwright  # noqa: PLC0415  (who opens no page does not pay)
    except ImportError as fault:
        raise ToolFailed("The browser is not installed: pip install 'talaria-agent[browser]'.") from fault

    playwright = await async_playwright().start()
    try:
        browser = await playwright.chromium.launch(
            executable_path=executable,
            args=ARGUMENTS,
            ignore_default_args=UNWANTED,
            chromium_sandbox=is_confined or os.geteuid() != 0,
            proxy=NOWHERE,
            env={**chromium.ENVIRONMENT, "HOME": str(Path.home())},
            handle_sigint=False,
            handle_sigterm=False,
            handle_sighup=False,
            timeout=START_MS,
        )
    except Error as fault:
        await ended(playwright.stop())
        raise ToolFailed(f"Chromium does not start: {fault.message.strip().splitlines()[0]}") from fault
    except BaseException:
        await ended(playwright.stop())
        raise
    return RunningBrowser(playwright, browser)
