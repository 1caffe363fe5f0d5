"""Brave Search: https://api.search.brave.com.

DuckDuckGo's page for browsers without JavaScript. Needs no key, and now and then takes us for the program we are.
SearXNG at the address in `SEARXNG_URL`, usually the person's own. Its settings must allow the format json.
Tavily: https://api.tavily.com.
"""

from collections.abc import Iterator, Sequence
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

import msgspec

from talaria.core.aio import in_thread
from talaria.core.errors import ToolFailed
from talaria.core.secret import Secret
from talaria.net.fetch import Fetch
from talaria.tools.builtin.web_search.base import Results, WebHit, check, decoded, hits

BRAVE_URL = "https://api.search.brave.com"


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

    def __init__(self, fetch: Fetch, key: Secret, base_url: str = BRAVE_URL) -> None:
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


DUCKDUCKGO_URL = "https://html.duckduckgo.com"
_CHALLENGES = ("anomaly-modal", "challenge-form")


class DuckDuckGo:
    name = "DuckDuckGo"

    def __init__(self, fetch: Fetch, base_url: str = DUCKDUCKGO_URL) -> None:
        self._fetch = fetch
        self._url = f"{base_url}/html/"

    async def search(self, query: str, limit: int) -> Sequence[WebHit]:
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Referer": self._url}
        answer = await self._fetch.call(self._url, headers=headers, body=urlencode({"q": query}).encode())
        page = answer.text()
        if answer.status == 202 or any(sign in page for sign in _CHALLENGES):
            raise ToolFailed("DuckDuckGo wants to be sure that a person is searching; try again later.")
        check(answer, self.name)
        return await in_thread(lambda: hits(_results(page), limit))


def _results(page: str) -> Iterator[tuple[str, str, str]]:
    """A result is a link of class `result__a`, and then perhaps one of class `result__snippet`."""
    from talaria.tools.builtin.html_tokens import Tag, tokens  # noqa: PLC0415  (loaded with the first answer)

    url = ""
    texts: dict[str, list[str]] = {"title": [], "snippet": []}
    reading = ""
    for token in tokens(page):
        if not isinstance(token, Tag):
            if reading:
                texts[reading].append(token)
        elif token.name == "a" and token.is_end:
            reading = ""
        elif "result__a" in (classes := token.attributes.get("class", "").split()):
            if url:
                yield "".join(texts["title"]), url, "".join(texts["snippet"])
            url = _target(token.attributes.get("href", ""))
            texts = {"title": [], "snippet": []}
            reading = "title"
        elif "result__snippet" in classes:
            reading = "snippet"
    if url:
        yield "".join(texts["title"]), url, "".join(texts["snippet"])


def _target(href: str) -> str:
    """Links lead through `/l/?uddg=…`; those through `/y.js` are advertisements."""
    try:
        parts = urlsplit(urljoin(DUCKDUCKGO_URL, href))
    except ValueError:
        return ""
    if parts.path == "/l/":
        return parse_qs(parts.query).get("uddg", [""])[0]
    return "" if parts.path == "/y.js" else parts.geturl()


class SearXNG:
    name = "SearXNG"

    def __init__(self, fetch: Fetch, base_url: str) -> None:
        self._fetch = fetch
        self._url = f"{base_url.rstrip('/')}/search"

    async def search(self, query: str, limit: int) -> Sequence[WebHit]:
        asked = urlencode({"q": query, "format": "json"})
        answer = await self._fetch.call(f"{self._url}?{asked}", headers={"Accept": "application/json"})
        if answer.status == 403:
            raise ToolFailed("SearXNG refused the search: its settings do not allow the format json.")
        return decoded(answer, Results, self.name).hits(limit)


TAVILY_URL = "https://api.tavily.com"


class Tavily:
    name = "Tavily"

    def __init__(self, fetch: Fetch, key: Secret, base_url: str = TAVILY_URL) -> None:
        self._fetch = fetch
        self._key = key
        self._url = f"{base_url}/search"

    async def search(self, query: str, limit: int) -> Sequence[WebHit]:
        body = msgspec.json.encode({"query": query, "max_results": limit})
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key.reveal()}"}
        return decoded(await self._fetch.call(self._url, headers=headers, body=body), Results, self.name).hits(limit)
