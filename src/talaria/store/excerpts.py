"""What lists and search results show of a journal, and the text that a search looks at. Shared by all stores."""

import re

from talaria.core.entries import Entry, MessageAdded
from talaria.core.messages import User

PREVIEW_CHARS = 80
SNIPPET_CHARS = 160

_SCRIPTS_WITHOUT_SPACES = re.compile("([\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f])")


def preview(entry: Entry) -> str:
    """The start of what a person wrote; empty for everything else."""
    match entry:
        case MessageAdded(User() as message) if message.author == "person":
            return " ".join(message.text.split())[:PREVIEW_CHARS]
        case _:
            return ""


def role(entry: Entry) -> str:
    return str(entry.message.__struct_config__.tag) if isinstance(entry, MessageAdded) else ""


def text(entry: Entry) -> str:
    return entry.message.text if isinstance(entry, MessageAdded) else ""


def spaced(words: str) -> str:
    """Scripts that do not part words with spaces are indexed sign by sign, and found as phrases."""
    return _SCRIPTS_WITHOUT_SPACES.sub(r" \1 ", words)


def wanted(query: str) -> list[str]:
    """The words that a person looks for; nothing they type is search syntax."""
    return query.replace('"', " ").replace("\0", " ").split()


def snippet(whole: str, query: str) -> str:
    """The surroundings of the query's first word."""
    flat = " ".join(whole.split())
    words = wanted(query)
    at = flat.lower().find(words[0].lower()) if words else -1
    start = max(0, at - SNIPPET_CHARS // 3)
    piece = flat[start : start + SNIPPET_CHARS]
    return f"{'…' if start else ''}{piece}{'…' if start + SNIPPET_CHARS < len(flat) else ''}"
