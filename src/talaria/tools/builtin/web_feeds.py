"""RSS and Atom as a list of entries. Read as tags, so entities and document types of XML do nothing."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from talaria.tools.builtin.html_tokens import Tag, plain, tokens

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
