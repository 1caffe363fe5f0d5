"""Search in memory: reads every message at every question, with the words of the SQLite index."""

import unicodedata
from collections.abc import Callable, Sequence

from talaria.store import excerpts
from talaria.store.base import SearchHit
from talaria.store.memory.tables import MemoryDatabase


class Search:
    def __init__(self, memory: MemoryDatabase) -> None:
        self._memory = memory

    async def search(self, query: str, limit: int = 20, person: str | None = None) -> Sequence[SearchHit]:
        phrases = [phrase for word in excerpts.wanted(query) if (phrase := _words(word))]
        if not phrases:
            return []
        found: list[tuple[int, SearchHit]] = []
        for row in self._memory.tables.sessions.values():
            if person not in (None, row.session.person):
                continue
            for place, recorded in zip(row.places, row.entries, strict=True):
                text = excerpts.text(recorded.entry)
                if all(_holds(_words(text), phrase) for phrase in phrases):
                    role, piece = excerpts.role(recorded.entry), excerpts.snippet(text, query)
                    found.append((place, SearchHit(row.session.id, row.session.title, recorded.at, role, piece)))
        return [hit for _, hit in sorted(found, key=lambda pair: pair[0], reverse=True)[:limit]]

    async def rebuild(self, progress: Callable[[int, int], None] | None = None) -> int:  # noqa: ARG002  (it is quick)
        rows = self._memory.tables.sessions.values()
        return sum(excerpts.text(recorded.entry) != "" for row in rows for recorded in row.entries)


def _words(text: str) -> list[str]:
    """Runs of letters and digits, without case and diacritics."""
    plain = unicodedata.normalize("NFD", excerpts.spaced(text).casefold())
    kept = (sign if sign.isalnum() else " " for sign in plain if not unicodedata.combining(sign))
    return "".join(kept).split()


def _holds(words: Sequence[str], phrase: Sequence[str]) -> bool:
    return any(words[at : at + len(phrase)] == phrase for at in range(len(words) - len(phrase) + 1))
