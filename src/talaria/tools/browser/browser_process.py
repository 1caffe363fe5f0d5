"""The browser's processes: Playwright's driver, and Chromium under it. They end with us, even if we are killed: the
driver ends when its pipe to us closes, and Chromium with the driver.

Chromium is the system's own; it is never downloaded. Inside bubblewrap it sees programs, fonts and certificates, but no
data of the person; its own sandbox works there too, even for root. Where bubblewrap does not work it runs directly, for
root without its own sandbox, which it would refuse to use.
"""

import asyncio
import os
import shlex
import subprocess
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from talaria.core.aio import in_thread, in_threads
from talaria.core.errors import ToolFailed
from talaria.tools.sandbox.system import BWRAP, format_mounts

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright, ProxySettings

NO_PAGE = "No page is open; open one with browser_navigate."
PLACES = (
    *("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome-stable", "/usr/bin/google-chrome"),
    *("/opt/google/chrome/chrome", "/run/current-system/sw/bin/chromium"),
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
TRIAL_S = 20.0
MAX_SCRATCH_BYTES = 1 << 30
ENVIRONMENT: Mapping[str, str] = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}  # noqa: S108
"""The whole environment; outside bubblewrap HOME is the person's."""

_SYSTEM = ("/usr", "/opt", "/nix/store", "/run/current-system", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_ETC = (
    *("alternatives", "ca-certificates", "chromium", "chromium.d", "fonts", "ld.so.cache", "localtime"),
    *("opt/chrome", "pki", "ssl/certs"),
)


def find_executable() -> Path | None:
    return next((Path(place) for place in PLACES if os.access(place, os.X_OK)), None)


def make_confining_wrapper(program: Path, folder: Path) -> Path | None:
    """A program in `folder` that runs this one in bubblewrap. It is tried; None if it does not work."""
    command = (*confinement(), str(program))
    wrapper = folder / "chromium"
    # The last of a repeated option counts, so the profile is always kept in memory.
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@" --user-data-dir=/tmp/profile\n')
    wrapper.chmod(0o700)
    try:
        subprocess.run((wrapper, "--version"), capture_output=True, timeout=TRIAL_S, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return wrapper


def confinement() -> tuple[str, ...]:
    """The words before a command that confine it."""
    etc = (f"/etc/{name}" for name in _ETC if Path("/etc", name).exists())
    size = str(MAX_SCRATCH_BYTES)
    return (
        *(BWRAP, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *("--uid", "1000", "--gid", "1000", "--cap-drop", "ALL", "--die-with-parent", "--new-session"),
        *format_mounts(filter(os.path.isdir, _SYSTEM), etc),
        *("--proc", "/proc", "--dev", "/dev", "--size", size, "--tmpfs", "/dev/shm"),  # noqa: S108
        *("--size", size, "--tmpfs", "/tmp", "--chdir", "/tmp", "--remount-ro", "/"),  # noqa: S108
        "--clearenv",
        *(word for name, value in ENVIRONMENT.items() for word in ("--setenv", name, value)),
        "--",
    )


START_MS = 60_000
STOP_S = 5.0
NOWHERE: "ProxySettings" = {"server": "http://127.0.0.1:1", "bypass": "<-loopback>"}
"""For requests that the browser makes by itself, for no session."""
ARGUMENTS = (
    "--disable-quic",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",  # its former name
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)
"""The only traffic is TCP through a proxy of ours, and only that resolves names."""
UNWANTED = ("--disable-popup-blocking", "--disable-ipc-flooding-protection")
"""Defaults of Playwright that are only for tests."""


class RunningBrowser:
    def __init__(self, playwright: "Playwright", browser: "Browser") -> None:
        self._playwright = playwright
        self.browser = browser

    async def stop(self) -> None:
        for ending in (self.browser.close(), self._playwright.stop()):
            await try_to_end(ending)


async def is_responding(browser: "Browser") -> bool:
    """Whether Chromium and the driver are both running; nothing reports that the driver is gone."""
    from playwright.async_api import Error  # noqa: PLC0415

    try:
        async with asyncio.timeout(STOP_S):
            await (await browser.new_browser_cdp_session()).detach()
    except (Error, TimeoutError):
        return False
    return True


async def try_to_end(ending: Awaitable[Any]) -> None:
    """Does not wait for what is gone already or does not respond."""
    from playwright.async_api import Error  # noqa: PLC0415

    with suppress(Error, TimeoutError):
        async with asyncio.timeout(STOP_S):
            await ending


async def start() -> RunningBrowser:
    """Raises `ToolFailed`."""
    found = find_executable()
    if found is None:
        raise ToolFailed("Chromium is not installed on this machine; on Debian and Ubuntu the package is chromium.")
    async with in_threads(TemporaryDirectory(prefix="talaria-browser-", ignore_cleanup_errors=True)) as folder:
        wrapper = await in_thread(lambda: make_confining_wrapper(found, Path(folder)))
        try:
            from playwright.async_api import Error, async_playwright  # noqa: PLC0415  (loaded with the first page)
        except ImportError as fault:
            raise ToolFailed("The browser is not installed: pip install 'talaria-agent[browser]'.") from fault

        playwright = await async_playwright().start()
        try:
            browser = await playwright.chromium.launch(
                executable_path=wrapper or found,
                args=ARGUMENTS,
                ignore_default_args=UNWANTED,
                chromium_sandbox=wrapper is not None or os.geteuid() != 0,
                proxy=NOWHERE,
                env={**ENVIRONMENT, "HOME": str(Path.home())},
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
                timeout=START_MS,
            )
        except Error as fault:
            await try_to_end(playwright.stop())
            raise ToolFailed(f"Chromium does not start: {fault.message.strip().splitlines()[0]}") from fault
        except BaseException:
            await try_to_end(playwright.stop())
            raise
        return RunningBrowser(playwright, browser)
