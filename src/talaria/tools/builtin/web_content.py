"""Makes a fetched answer readable: a web page, a feed, plain text, or a note that it cannot be shown as text.

RSS and Atom become a list of entries. They are read as tags, so XML entities and document types have no effect.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from talaria.net.fetch import FetchedPage
from talaria.tools.builtin.html_tokens import Tag, strip_invisible, strip_tags, tokenize
from talaria.tools.builtin.web_pages import convert_page

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


def format_feed(text: str) -> str:
    head = _Entry()
    entries: list[str] = []
    for entry in _parse_entries(text, head):
        if len(entries) == MAX_ENTRIES:
            entries.append(f"[only the first {MAX_ENTRIES} entries are shown]")
            break
        title = strip_tags(entry.get("title")) or "(untitled)"
        link = entry.get("link") or entry.get("id")
        heading = f"## [{title}]({link})" if link.startswith(("http://", "https://")) else f"## {title}"
        summary = strip_tags(entry.get("summary"))
        if len(summary) > MAX_SUMMARY_CHARS:
            summary = f"{summary[:MAX_SUMMARY_CHARS]}…"
        entries.append("\n".join(filter(None, (heading, entry.get("date"), summary))))
    title = strip_tags(head.get("title"))
    return "\n\n".join([*([f"# {title}"] if title else []), *entries])


def _parse_entries(text: str, head: _Entry) -> Iterator[_Entry]:
    """Fills `head` on the way. Only the first field of each kind counts."""
    entry = head
    name = ""  # the field that text belongs to
    for token in tokenize(text, is_xml=True):
        if isinstance(token, str):
            if name:
                entry.texts[name].append(token)
        elif token.name in _ENTRIES:
            if entry is not head:
                yield entry
            entry = head if token.is_end else _Entry()
            name = ""
        elif (wanted := _FIELDS.get(token.name)) is not None:
            name = ""
            if token.is_end or wanted in entry.texts:
                continue
            if "href" not in token.attributes:
                entry.texts[wanted] = []
                name = "" if token.is_closed else wanted
            elif token.attributes.get("rel", "alternate") == "alternate":
                entry.texts[wanted] = [token.attributes["href"]]


_SNIFFED_BYTES = 8_192
_HTML = ("text/html", "application/xhtml+xml")
_UNKNOWN = ("", "application/octet-stream", "application/x-unknown-content-type", "unknown/unknown")
_TEXTUAL = re.compile(
    r"text/.+|application/(.+\+)?(json|xml|yaml|javascript|ecmascript|toml|sql|x-sh|x-ndjson|x-yaml)|.*\+(json|xml)"
)
_LOOKS_LIKE_HTML = re.compile(
    rb"\s*(?:<!--.{0,500}?-->\s*)?<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class ReadableText:
    text: str
    is_cut: bool = False


def make_readable(fetched: FetchedPage) -> ReadableText:
    """Takes a while: call it in a thread. Never raises."""
    start, media_type = fetched.body[:_SNIFFED_BYTES], fetched.media_type
    is_pdf = media_type == "application/pdf" or start.startswith(b"%PDF-")
    is_html = media_type in _HTML or (media_type in _UNKNOWN and _LOOKS_LIKE_HTML.match(start))
    is_text = media_type in _UNKNOWN or _TEXTUAL.fullmatch(media_type)
    has_nul = b"\0" in start and not fetched.charset.startswith(("utf-16", "utf-32"))
    if is_html and not is_pdf:
        page = convert_page(fetched.text(), fetched.url)
        text = page.markdown
        if page.title and text.partition("\n")[0].lstrip("# ") != page.title:
            text = f"# {page.title}\n\n{text}".strip()
        return ReadableText(strip_invisible(text), page.is_cut or fetched.is_cut)
    if is_text and not is_pdf and not has_nul:
        text = fetched.text()
        if media_type.endswith("xml"):
            tags = (token.name for token in tokenize(text[:4_000], is_xml=True) if isinstance(token, Tag))
            if next(tags, "") in ("rss", "feed", "rdf:rdf"):
                text = format_feed(text)
        return ReadableText(strip_invisible(text).strip(), fetched.is_cut)
    size = f"{'more than ' if fetched.is_cut else ''}{len(fetched.body):,} bytes"
    what = "PDF document" if is_pdf else media_type or "unknown type"
    return ReadableText(f"[{what}, {size}: cannot be shown as text]")
