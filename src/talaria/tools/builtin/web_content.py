"""What a fetched answer is for a reader: a page, a feed, text, or a thing that cannot be read here.

RSS and Atom as a list of entries. Read as tags, so entities and document types of XML do nothing.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from talaria.net.fetch import Fetched
from talaria.tools.builtin import web_pages
from talaria.tools.builtin.html_tokens import Tag, plain, tokens
from talaria.tools.builtin.web_text import clean

MAX_ENTRIES = 200
MAX_SUMMARY_CHARS = 500

_ENTRIES = ("item", "entry")
_FIELDS = {
    "title": "title",
    "link": "link",
    "id": "id",
    "guid": "id",
    "pubdate": "date",
    "published": "date",
    "updated": "date",
    "dc:date": "date",
    "description": "summary",
    "summary": "summary",
    "content": "summary",
    "content:encoded": "summary",
}


@dataclass(slots=True)
class _Entry:
    texts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def get(self, name: str) -> str:
        return " ".join("".join(self.texts.get(name, ())).split())


def is_feed(text: str) -> bool:
    """By its first element."""
    names = (token.name for token in tokens(text[:4_000], is_xml=True) if isinstance(token, Tag))
    return next(names, "") in ("rss", "feed", "rdf:rdf")


def feed(text: str) -> str:
    head = _Entry()
    entries: list[str] = []
    for entry in _entries(text, head):
        if len(entries) == MAX_ENTRIES:
            entries.append(f"[only the first {MAX_ENTRIES} entries are shown]")
            break
        entries.append(_shown(entry))
    title = plain(head.get("title"))
    return "\n\n".join([*([f"# {title}"] if title else []), *entries])


def _entries(text: str, head: _Entry) -> Iterator[_Entry]:
    entry = head
    name = ""
    for token in tokens(text, is_xml=True):
        if isinstance(token, str):
            if name:
                entry.texts[name].append(token)
        elif token.name in _ENTRIES:
            if entry is not head:
                yield entry
            entry = head if token.is_end else _Entry()
            name = ""
        else:
            name = _field(token, entry, name)


def _field(tag: Tag, entry: _Entry, name: str) -> str:
    """Which field the text after this tag belongs to; the first of a kind counts."""
    wanted = _FIELDS.get(tag.name)
    if wanted is None:
        return name
    if tag.is_end or wanted in entry.texts:
        return ""
    if "href" in tag.attributes:
        if tag.attributes.get("rel", "alternate") == "alternate":
            entry.texts[wanted] = [tag.attributes["href"]]
        return ""
    entry.texts[wanted] = []
    return "" if tag.is_closed else wanted


def _shown(entry: _Entry) -> str:
    title = plain(entry.get("title")) or "(untitled)"
    link = entry.get("link") or entry.get("id")
    heading = f"## [{title}]({link})" if link.startswith(("http://", "https://")) else f"## {title}"
    summary = plain(entry.get("summary"))
    cut = f"{summary[:MAX_SUMMARY_CHARS]}…" if len(summary) > MAX_SUMMARY_CHARS else summary
    return "\n".join(filter(None, (heading, entry.get("date"), cut)))


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
        if fetched.media_type.endswith("xml") and is_feed(text):
            text = feed(text)
        return Readable(clean(text).strip(), fetched.is_cut)
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
