"""The browser's processes: Playwright's driver, and Chromium under it. They end with us, even if we are killed: the
driver ends when its pipe to us closes, and Chromium with the driver.

Which Chromium is used, and what it sees of this machine. It is the system's own; none is ever downloaded.

Inside bubblewrap it sees programs, fonts and certificates, and nothing of the person; its own sandbox works there too,
also for root. Where bubblewrap does not work it runs as it is, and for root without its sandbox, which it would refuse.
What happened beside the calls of a session: dialogs, tabs, downloads, hosts that were refused.
"""

import asyncio
import os
import shlex
import subprocess
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from talaria.core.aio import in_thread, in_threads
from talaria.core.errors import ToolFailed
from talaria.tools.sandbox.system import BWRAP, format_mounts

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright, ProxySettings


PLACES = (
    *("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome-stable", "/usr/bin/google-chrome"),
    *("/opt/google/chrome/chrome", "/run/current-system/sw/bin/chromium"),
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
TRIAL_S = 20.0
MAX_SCRATCH_BYTES = 1 << 30
ENVIRONMENT: Mapping[str, str] = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}  # noqa: S108
"""All of it; outside of bubblewrap its home is the person's."""

_SYSTEM = ("/usr", "/opt", "/nix/store", "/run/current-system", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_ETC = (
    *("alternatives", "ca-certificates", "chromium", "chromium.d", "fonts", "ld.so.cache", "localtime"),
    *("opt/chrome", "pki", "ssl/certs"),
)


def find_executable() -> Path | None:
    return next((Path(place) for place in PLACES if os.access(place, os.X_OK)), None)


def make_confining_wrapper(program: Path, folder: Path) -> Path | None:
    """A program in `folder` that runs this one in bubblewrap; None where that does not work, found out by trying."""
    command = (*confinement(), str(program))
    wrapper = folder / "chromium"
    # Of a repeated option the last one counts: the profile is kept in memory, whatever is said before.
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@" --user-data-dir=/tmp/profile\n')
    wrapper.chmod(0o700)
    try:
        subprocess.run((wrapper, "--version"), capture_output=True, timeout=TRIAL_S, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return wrapper


def confinement() -> tuple[str, ...]:
    """What stands before a command that is to see only this."""
    return (BWRAP, *_view(), "--")


def _view() -> Iterator[str]:
    yield from ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
    yield from ("--uid", "1000", "--gid", "1000", "--cap-drop", "ALL", "--die-with-parent", "--new-session")
    yield from format_mounts(
        filter(os.path.isdir, _SYSTEM), (f"/etc/{name}" for name in _ETC if Path("/etc", name).exists())
    )
    size = str(MAX_SCRATCH_BYTES)
    yield from ("--proc", "/proc", "--dev", "/dev", "--size", size, "--tmpfs", "/dev/shm")  # noqa: S108
    yield from ("--size", size, "--tmpfs", "/tmp", "--chdir", "/tmp", "--remount-ro", "/")  # noqa: S108
    yield "--clearenv"
    for name, value in ENVIRONMENT.items():
        yield from ("--setenv", name, value)


NO_PAGE = "No page is open; open one with browser_navigate."
MAX_NOTES = 10
MAX_CHARS = 300


class Notes:
    def __init__(self) -> None:
        self._notes: list[str] = []
        self.refused: list[str] = []
        """Hosts, since the last `take`."""

    def add(self, text: str) -> None:
        self._notes.append(f"[{' '.join(text.split())[:MAX_CHARS]}]")

    def refuse(self, host: str, port: int, _: str) -> None:
        self.refused.append(host)
        self.add(f"network: {host}:{port} was refused")

    def take(self) -> list[str]:
        """Each one once; they are told only once, too."""
        notes = list(dict.fromkeys(self._notes))
        self._notes.clear()
        self.refused.clear()
        more = len(notes) - MAX_NOTES
        return [*notes[:MAX_NOTES], f"[and {more:,} more of this kind]"] if more > 0 else notes


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
            await try_to_end(ending)


async def answers(browser: "Browser") -> bool:
    """Whether Chromium and the driver are both there; of a driver that is gone nobody is told."""
    from playwright.async_api import Error  # noqa: PLC0415

    try:
        async with asyncio.timeout(STOP_S):
            await (await browser.new_browser_cdp_session()).detach()
    except (Error, TimeoutError):
        return False
    return True


async def try_to_end(ending: Awaitable[Any]) -> None:
    """As far as it can be ended: what is gone already, or does not answer, is not waited for."""
    from playwright.async_api import Error  # noqa: PLC0415

    with suppress(Error, TimeoutError):
        async with asyncio.timeout(STOP_S):
            await ending


async def start() -> RunningBrowser:
    """Raises `ToolFailed`."""
    found = find_executable()
    if found is None:
        raise ToolFailed("There is no Chromium on this machine; Debian and Ubuntu call its package chromium.")
    async with in_threads(TemporaryDirectory(prefix="talaria-browser-", ignore_cleanup_errors=True)) as folder:
        wrapper = await in_thread(lambda: make_confining_wrapper(found, Path(folder)))
        return await _launch(wrapper or found, is_confined=wrapper is not None)


async def _launch(executable: Path, *, is_confined: bool) -> RunningBrowser:
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
