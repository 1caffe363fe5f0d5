"""The tabs of one session, and what the model sees of a page: a tree of the elements to read and use, short enough.

A tab may hang, crash or ask questions without end. That becomes a sentence, and the next call works again. A page can
tamper with the scripts that we run in it, so only what is shown of that page depends on them.
"""

import asyncio
import re
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
from playwright.async_api import BrowserContext, Dialog, Download, Error, Frame, Page
from playwright.async_api import TimeoutError as Overdue

from talaria.core.errors import ToolFailed
from talaria.tools.browser.browser_process import NO_PAGE, is_responding, try_to_end

SIZE = "() => [document.getElementsByTagName('*').length, (document.documentElement?.textContent ?? '').length]"

TITLE = "size => document.title.slice(0, size)"

BEGINNING = "size => (document.documentElement?.textContent ?? '').slice(0, size)"

SCROLL = """
sign => {
  let box = document.elementFromPoint(innerWidth / 2, innerHeight / 2);
  const scrolls = (one) => one.scrollHeight > one.clientHeight && /auto|scroll/.test(getComputedStyle(one).overflowY);
  while (box && !scrolls(box)) box = box.parentElement;
  box ??= document.scrollingElement;
  box.scrollBy({top: sign * box.clientHeight * 0.8, behavior: 'instant'});
  return [box.scrollTop, box.clientHeight, box.scrollHeight];
}
"""
"""Scrolls what is in the middle by most of its height. Returns its position, visible height and total height."""

T = TypeVar("T")

MAX_TABS = 5
"""If there are more, the oldest is closed."""
MAX_DIALOGS = 20
"""In one call; a page that opens more is closed."""
ANSWER_S = 2.0
"""A page that needs longer for a trivial script hangs."""
GRACE_S = 3.0
"""The driver enforces the limits; we do only if it fails to."""
LOST = "The browser crashed, and its pages are lost. The next browser_navigate restarts it."
_MOVED = re.compile(
    r"Execution context was destroyed|interrupted by another navigation|frame was detached", re.IGNORECASE
)
_WHY = re.compile(r"element is (?:not \w+|outside of the viewport)|<[^\n]{1,200} intercepts pointer events")


MAX_NOTES = 10
MAX_NOTE_CHARS = 300


class Notes:
    """What happened besides the calls of a session: dialogs, tabs, downloads, refused hosts."""

    def __init__(self) -> None:
        self._notes: list[str] = []
        self.refused: list[str] = []
        """Hosts, since the last `take`."""

    def add(self, text: str) -> None:
        self._notes.append(f"[{' '.join(text.split())[:MAX_NOTE_CHARS]}]")

    def refuse(self, host: str, port: int, _: str) -> None:
        self.refused.append(host)
        self.add(f"network: {host}:{port} was refused")

    def take(self) -> list[str]:
        """Without duplicates, and each of them only once."""
        notes = list(dict.fromkeys(self._notes))
        self._notes.clear()
        self.refused.clear()
        more = len(notes) - MAX_NOTES
        return [*notes[:MAX_NOTES], f"[and {more:,} more]"] if more > 0 else notes


class PageChanged(ToolFailed):
    """The page was replaced by another one meanwhile."""


class PageClosed(ToolFailed):
    """The page was closed meanwhile."""


class Tabs:
    def __init__(self, context: BrowserContext, notes: Notes, limit_s: float) -> None:
        self._context = context
        self._notes = notes
        self._limit_s = limit_s
        self._crashed: set[Page] = set()
        self._dialogs = 0
        context.set_default_timeout(limit_s * 1000)
        context.on("dialog", self._answer_dialog)
        context.on("page", self._watch_page)

    @property
    def newest(self) -> Page | None:
        pages = self._context.pages
        return pages[-1] if pages else None

    async def current(self) -> Page:
        """Raises `ToolFailed`."""
        page = self.newest
        if page is None:
            raise ToolFailed(NO_PAGE if await self._is_running() else LOST)
        return page

    async def any(self) -> Page:
        """The newest one that works, or a new one. Raises `ToolFailed`."""
        page = self.newest
        if page is not None and page not in self._crashed:
            return page
        if page is not None:
            await try_to_end(page.close())
        try:
            return await self._context.new_page()
        except Error as fault:
            raise await self._explain(page, fault) from fault

    async def do(
        self, page: Page, work: Coroutine[Any, Any, T], limit_s: float | None = None, failure: str = "It was not done"
    ) -> T:
        """Raises `ToolFailed`, which includes `PageChanged` and `PageClosed`; `failure` begins the sentence if it takes
        too long."""
        self._dialogs = 0
        limit_s = limit_s or self._limit_s
        try:
            async with asyncio.timeout(limit_s + GRACE_S):
                return await work
        except (Overdue, TimeoutError) as fault:
            reasons = _WHY.findall(str(fault))
            why = f": {reasons[-1]}" if reasons else ""
            if not await self._stop_loading(page):
                url = page.url
                await try_to_end(page.close())
                raise ToolFailed(f"{url} hangs; it was closed. {NO_PAGE}") from fault
            raise ToolFailed(f"{failure} within {limit_s:g} s{why}.") from fault
        except Error as fault:
            raise await self._explain(page, fault) from fault

    async def _stop_loading(self, page: Page) -> bool:
        """False: it hangs."""
        try:
            async with asyncio.timeout(ANSWER_S):
                session = await self._context.new_cdp_session(page)
                await session.send("Page.stopLoading")  # pyright: ignore[reportUnknownMemberType]
                await session.detach()
                await page.evaluate("0")
        except (Error, TimeoutError):
            return False
        return True

    async def _is_running(self) -> bool:
        return self._context.browser is not None and await is_responding(self._context.browser)

    async def _explain(self, page: Page | None, fault: Error) -> ToolFailed:
        if not await self._is_running():
            return ToolFailed(LOST)
        if page in self._crashed:
            return ToolFailed(f"The page crashed. {NO_PAGE}")
        if page is not None and page.is_closed():
            return PageClosed("The page was closed meanwhile.")
        if _MOVED.search(fault.message):
            return PageChanged("The page has changed to another one; look at it again with browser_snapshot.")
        return ToolFailed(fault.message.partition("\n")[0].partition(": ")[2] or fault.message)

    async def _watch_page(self, page: Page) -> None:
        def note_crash(page: Page) -> None:
            self._crashed.add(page)

        def note_download(download: Download) -> None:
            self._notes.add(f"a download was refused: {download.url}")

        page.on("crash", note_crash)
        page.on("download", note_download)
        tabs = self._context.pages
        if len(tabs) > 1:
            self._notes.add("a new tab was opened and is now the current one")
        if len(tabs) > MAX_TABS:
            await try_to_end(tabs[0].close())

    async def _answer_dialog(self, dialog: Dialog) -> None:
        """No, except to the question whether to leave the page."""
        self._dialogs += 1
        is_leaving = dialog.type == "beforeunload"
        self._notes.add(f"{dialog.type} was {'accepted' if is_leaving else 'dismissed'}: {dialog.message}")
        if self._dialogs > MAX_DIALOGS and dialog.page is not None:
            self._notes.add(f"the page opened more than {MAX_DIALOGS} dialogs and was closed")
            await try_to_end(dialog.page.close())
        else:
            await try_to_end(dialog.accept() if is_leaving else dialog.dismiss())


PAGE_CHARS = 16_000
MAX_LINE_CHARS = 300
MAX_ELEMENTS = 20_000
MAX_CHARS = 1_000_000
"""For a larger page no tree is built: it would block everybody."""
MAX_FRAMES = 50
FRAME_S = 0.5
SILENT_MS = 2_000
"""The wait for frames that do not respond; the tree is then built without them."""
_NOISE = re.compile(r" \[cursor=pointer\]")


async def snapshot(tabs: Tabs, page: Page, offset: int) -> str:
    """From line `offset` on. Raises `ToolFailed`."""
    size = await evaluate_script(tabs, page, SIZE, None, tuple[int, int])
    sizes = [size, *await asyncio.gather(*(_measure_frame(frame) for frame in page.frames[1:MAX_FRAMES]))]
    elements, chars = (sum(size[column] for size in sizes if size) for column in (0, 1))
    if elements > MAX_ELEMENTS or chars > MAX_CHARS:
        text = await evaluate_script(tabs, page, BEGINNING, PAGE_CHARS, str)
        return f"[too large to be shown as a tree: {elements:,} elements; its text begins:]\n{text}"
    title = await evaluate_script(tabs, page, TITLE, MAX_LINE_CHARS, str)
    limit_ms = None if all(sizes) else SILENT_MS
    tree = await tabs.do(page, page.aria_snapshot(mode="ai", timeout=limit_ms))
    lines = [shorten_line(_NOISE.sub("", line)) for line in tree.splitlines()]
    end, length = offset, 0
    while end < len(lines) and length + len(lines[end]) < PAGE_CHARS:
        length += len(lines[end]) + 1
        end += 1
    shown = lines[offset:end]
    if not shown:
        shown = [f"[it ends at offset={len(lines)}]" if lines else "[nothing]"]
    elif left := len(lines) - end:
        shown.append(f"[… {left:,} more lines; continue with browser_snapshot, offset={end}]")
    return "\n".join([*([f"Title: {title}"] if title else []), *shown])


async def evaluate_script(tabs: Tabs, page: Page, script: str, argument: object, kind: type[T]) -> T:
    """The result of a script of ours; a page can make it anything. Raises `ToolFailed`."""
    answer = await tabs.do(page, page.evaluate(script, argument))
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as fault:
        raise ToolFailed("The page cannot be examined: it interferes with scripts.") from fault


async def _measure_frame(frame: Frame) -> tuple[int, int] | None:
    """Elements and characters; None for a frame that does not respond."""
    try:
        async with asyncio.timeout(FRAME_S):
            return msgspec.convert(await frame.evaluate(SIZE), tuple[int, int])
    except (Error, TimeoutError, msgspec.ValidationError):
        return None


def shorten_line(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]}…"
