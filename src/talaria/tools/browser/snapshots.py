"""What a page looks like to the model: the tree of what can be read and used, short enough to be read."""

import asyncio
import re
from typing import TypeVar

import msgspec
from playwright.async_api import Error, Frame, Page

from talaria.core.errors import ToolFailed
from talaria.tools.browser import scripts
from talaria.tools.browser.tabs import Tabs

T = TypeVar("T")

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
    size = await asked(tabs, page, scripts.SIZE, None, tuple[int, int])
    sizes = [size, *await asyncio.gather(*(_size(frame) for frame in page.frames[1:MAX_FRAMES]))]
    elements, chars = (sum(size[column] for size in sizes if size) for column in (0, 1))
    if elements > MAX_ELEMENTS or chars > MAX_CHARS:
        text = await asked(tabs, page, scripts.BEGINNING, PAGE_CHARS, str)
        return f"[too large to be shown as a tree: {elements:,} elements; its text begins so:]\n{text}"
    title = await asked(tabs, page, scripts.TITLE, MAX_LINE_CHARS, str)
    limit_ms = None if all(sizes) else SILENT_MS
    tree = _piece(await tabs.do(page, page.aria_snapshot(mode="ai", timeout=limit_ms)), offset)
    return f"Title: {title}\n{tree}" if title else tree


async def asked(tabs: Tabs, page: Page, script: str, argument: object, kind: type[T]) -> T:
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
            return msgspec.convert(await frame.evaluate(scripts.SIZE), tuple[int, int])
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
