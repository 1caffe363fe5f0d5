"""Brave Search: https://api.search.brave.com."""

from collections.abc import Sequence
from urllib.parse import urlencode

import msgspec

from talaria.core.secret import Secret
from talaria.net.fetch import Fetch
from talaria.tools.builtin.web_search.base import WebHit, decoded, hits

BASE_URL = "https://api.search.brave.com"


class _Result(msgspec.Struct, frozen=True):
    url: str
    title: str = ""
    description: str = ""


class _Web(msgspec.Struct, frozen=True):
    results: tuple[_Result, ...] = ()


class _Answer(msgspec.Struct, frozen=True):
    web: _Web | None = None
    """Left out when nothing was found."""


class Brave:
    name = "Brave"

    def __init__(self, fetch: Fetch, key: Secret, base_url: str = BASE_URL) -> None:
        self._fetch = fetch
        self._key = key
        self._url = f"{base_url}/res/v1/web/search"

    async def search(self, query: str, limit: int) -> Sequence[WebHit]:
        asked = urlencode({"q": query, "count": limit})
        headers = {"Accept": "application/json", "X-Subscription-Token": self._key.reveal()}
        answer = decoded(await self._fetch.call(f"{self._url}?{asked}", headers=headers), _Answer, self.name)
        return hits(map(_plain, answer.web.results if answer.web else ()), limit)


def _plain(result: _Result) -> tuple[str, str, str]:
    """Words that were searched for stand in `<strong>`."""
    from talaria.tools.builtin.html_tokens import plain  # noqa: PLC0415  (loaded with the first answer)

    return plain(result.title), result.url, plain(result.description)
