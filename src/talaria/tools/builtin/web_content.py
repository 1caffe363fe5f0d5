"""What a fetched answer is for a reader: a page, a feed, text, or a thing that cannot be read here."""

import re
from dataclasses import dataclass

from talaria.net.fetch import Fetched
from talaria.tools.builtin import web_feeds, web_pages
from talaria.tools.builtin.web_text import clean

_SNIFFED_BYTES = 8_192
_HTML = ("text/html", "application/xhtml+xml")
_UNSAID = ("", "application/octet-stream", "application/x-unknown-content-type", "unknown/unknown")
_TEXTUAL = re.compile(
    r"text/.+|application/(.+\+)?(json|xml|yaml|javascript|ecmascript|toml|sql|x-sh|x-ndjson|x-yaml)|.*\+(json|xml)"
)
_LOOKS_LIKE_HTML = re.compile(
    rb"\s*(?:<!--.{0,500}?-->\s*)?<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Readable:
    text: str
    is_cut: bool = False


def readable(fetched: Fetched) -> Readable:
    """For a thread. Never raises."""
    kind = _kind(fetched)
    if kind == "html":
        page = web_pages.page(fetched.text(), fetched.url)
        return Readable(clean(_titled(page)), page.is_cut or fetched.is_cut)
    if kind == "text":
        text = fetched.text()
        is_feed = fetched.media_type.endswith("xml") and web_feeds.is_feed(text)
        return Readable(clean(web_feeds.feed(text) if is_feed else text).strip(), fetched.is_cut)
    size = f"{'more than ' if fetched.is_cut else ''}{len(fetched.body):,} bytes"
    what = "a PDF document" if kind == "pdf" else f"no text ({fetched.media_type or 'of unknown kind'})"
    return Readable(f"[This is {what} of {size}; it cannot be shown as text.]")


def _kind(fetched: Fetched) -> str:
    start = fetched.body[:_SNIFFED_BYTES]
    if fetched.media_type == "application/pdf" or start.startswith(b"%PDF-"):
        return "pdf"
    if fetched.media_type in _HTML:
        return "html"
    if fetched.media_type in _UNSAID and _LOOKS_LIKE_HTML.match(start):
        return "html"
    is_textual = fetched.media_type in _UNSAID or _TEXTUAL.fullmatch(fetched.media_type)
    has_nul = b"\0" in start and not fetched.charset.startswith(("utf-16", "utf-32"))
    return "text" if is_textual and not has_nul else "binary"


def _titled(page: web_pages.WebPage) -> str:
    """Its title first, unless the text begins with it."""
    first = page.markdown.partition("\n")[0].lstrip("# ")
    if not page.title or first == page.title:
        return page.markdown
    return f"# {page.title}\n\n{page.markdown}".strip()
