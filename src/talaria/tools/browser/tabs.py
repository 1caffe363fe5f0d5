"""The tabs of one session, and all that can go wrong with one: it hangs, it crashes, it asks without end. That becomes
a sentence, and the next call works again.

What we run inside pages. A page can make it lie, so nothing depends on it but the page's own picture.
What a page looks like to the model: the tree of what can be read and used, short enough to be read.
"""

import asyncio
import re
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
from playwright.async_api import BrowserContext, Dialog, Download, Error, Frame, Page
from playwright.async_api import TimeoutError as Overdue

from talaria.core.errors import ToolFailed
from talaria.tools.browser.browser_process import NO_PAGE, Notes, answers, try_to_end

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
"""What stands in the middle is moved by most of its height; answers where it is now, its height, and all there is."""


T = TypeVar("T")

MAX_TABS = 5
"""Of more the oldest is closed."""
MAX_DIALOGS = 20
"""In one call; a page that asks more often is closed."""
ANSWER_S = 2.0
"""A page that takes longer to add nothing to nothing hangs."""
GRACE_S = 3.0
"""The driver keeps the limits itself; only if that fails we do."""
LOST = "The browser broke down, and what was open is lost. The next browser_navigate starts it anew."
_MOVED = re.compile(
    r"Execution context was destroyed|interrupted by another navigation|frame was detached", re.IGNORECASE
)
_WHY = re.compile(r"element is (?:not \w+|outside of the viewport)|<[^\n]{1,200} intercepts pointer events")


class PageChanged(ToolFailed):
    """The page became another one meanwhile."""


class Closed(ToolFailed):
    """The page was closed meanwhile."""


class Tabs:
    def __init__(self, context: BrowserContext, notes: Notes, limit_s: float) -> None:
        self._context = context
        self._notes = notes
        self._limit_s = limit_s
        self._crashed: set[Page] = set()
        self._dialogs = 0
        context.set_default_timeout(limit_s * 1000)
        context.on("dialog", self._answer)
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
        self, page: Page, work: Coroutine[Any, Any, T], limit_s: float | None = None, told: str = "It was not done"
    ) -> T:
        """Raises `ToolFailed`, with `PageChanged` and `Closed`; `told` is said of what takes too long."""
        self._dialogs = 0
        limit_s = limit_s or self._limit_s
        try:
            async with asyncio.timeout(limit_s + GRACE_S):
                return await work
        except (Overdue, TimeoutError) as fault:
            reasons = _WHY.findall(str(fault))
            why = f": {reasons[-1]}" if reasons else ""
            raise await self._give_up(page, f"{told} within {limit_s:g} s{why}.") from fault
        except Error as fault:
            raise await self._explain(page, fault) from fault

    async def _give_up(self, page: Page, sentence: str) -> ToolFailed:
        if await self._answers(page):
            return ToolFailed(sentence)
        url = page.url
        await try_to_end(page.close())
        return ToolFailed(f"{url} hangs; it was closed. {NO_PAGE}")

    async def _answers(self, page: Page) -> bool:
        """Once it does not wait for anything any more."""
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
        return self._context.browser is not None and await answers(self._context.browser)

    async def _explain(self, page: Page | None, fault: Error) -> ToolFailed:
        if not await self._is_running():
            return ToolFailed(LOST)
        if page in self._crashed:
            return ToolFailed(f"The page crashed. {NO_PAGE}")
        if page is not None and page.is_closed():
            return Closed("The page was closed meanwhile.")
        if _MOVED.search(fault.message):
            return PageChanged("The page became another one meanwhile; look at it again with browser_snapshot.")
        return ToolFailed(fault.message.partition("\n")[0].partition(": ")[2] or fault.message)

    async def _watch_page(self, page: Page) -> None:
        page.on("crash", self._crash)
        page.on("download", self._download)
        tabs = self._context.pages
        if len(tabs) > 1:
            self._notes.add("a new tab was opened, and is looked at now")
        if len(tabs) > MAX_TABS:
            await try_to_end(tabs[0].close())

    def _crash(self, page: Page) -> None:
        self._crashed.add(page)

    def _download(self, download: Download) -> None:
        self._notes.add(f"a download was refused: {download.url}")

    async def _answer(self, dialog: Dialog) -> None:
        """No, except to the question whether one wants to leave."""
        self._dialogs += 1
        is_leaving = dialog.type == "beforeunload"
        self._notes.add(f"{dialog.type} was {'accepted' if is_leaving else 'dismissed'}: {dialog.message}")
        if self._dialogs > MAX_DIALOGS and dialog.page is not None:
            self._notes.add(f"the page asked more than {MAX_DIALOGS} times and was closed")
            await try_to_end(dialog.page.close())
        else:
            await try_to_end(dialog.accept() if is_leaving else dialog.dismiss())


PAGE_CHARS = 16_000
MAX_LINE_CHARS = 300
MAX_ELEMENTS = 20_000
MAX_CHARS = 1_000_000
"""A page with more is not made a tree of: it would hold up everybody."""
MAX_FRAMES = 50
FRAME_S = 0.5
SILENT_MS = 2_000
"""How long a frame that does not answer is waited for; the tree is then made without it."""
_NOISE = re.compile(r" \[cursor=pointer\]")


async def snapshot(tabs: Tabs, page: Page, offset: int) -> str:
    """From line `offset` on. Raises `ToolFailed`."""
    size = await evaluate_script(tabs, page, SIZE, None, tuple[int, int])
    sizes = [size, *await asyncio.gather(*(_size(frame) for frame in page.frames[1:MAX_FRAMES]))]
    elements, chars = (sum(size[column] for size in sizes if size) for column in (0, 1))
    if elements > MAX_ELEMENTS or chars > MAX_CHARS:
        text = await evaluate_script(tabs, page, BEGINNING, PAGE_CHARS, str)
        return f"[too large to be shown as a tree: {elements:,} elements; its text begins so:]\n{text}"
    title = await evaluate_script(tabs, page, TITLE, MAX_LINE_CHARS, str)
    limit_ms = None if all(sizes) else SILENT_MS
    tree = _piece(await tabs.do(page, page.aria_snapshot(mode="ai", timeout=limit_ms)), offset)
    return f"Title: {title}\n{tree}" if title else tree


async def evaluate_script(tabs: Tabs, page: Page, script: str, argument: object, kind: type[T]) -> T:
    """What a script of ours answers; a page can make it answer anything. Raises `ToolFailed`."""
    answer = await tabs.do(page, page.evaluate(script, argument))
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as fault:
        raise ToolFailed("The page does not let itself be looked at.") from fault


async def _size(frame: Frame) -> tuple[int, int] | None:
    """Elements and characters; None of a frame that does not answer."""
    try:
        async with asyncio.timeout(FRAME_S):
            return msgspec.convert(await frame.evaluate(SIZE), tuple[int, int])
    except (Error, TimeoutError, msgspec.ValidationError):
        return None


def _piece(tree: str, offset: int) -> str:
    lines = [short(_NOISE.sub("", line)) for line in tree.splitlines()]
    end, size = offset, 0
    while end < len(lines) and size + len(lines[end]) < PAGE_CHARS:
        size += len(lines[end]) + 1
        end += 1
    left = len(lines) - end
    if not lines[offset:end]:
        return "[nothing]" if not lines else f"[it ends at offset={len(lines)}]"
    more = [f"[… {left:,} more lines; continue with browser_snapshot, offset={end}]"] if left else []
    return "\n".join([*lines[offset:end], *more])


def short(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]}…"
