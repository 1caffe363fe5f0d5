"""Services that search the web: Brave, Tavily, SearXNG and DuckDuckGo.

The settings name one; otherwise it is the first whose key is set, and DuckDuckGo if there is none.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

import msgspec

from talaria.core.aio import in_thread
from talaria.core.errors import MissingCredential, ToolFailed
from talaria.core.secret import Secret
from talaria.net.fetch import Fetch, FetchedPage
from talaria.net.urls import parse_url
from talaria.net.web_settings import SearchBackend
from talaria.tools.builtin.web_text import strip_invisible

MAX_HITS = 20
MAX_QUERY_CHARS = 400
"""The least of what the services take."""
MAX_TITLE_CHARS = 200
MAX_SNIPPET_CHARS = 500

T = TypeVar("T")


class WebHit(msgspec.Struct, frozen=True):
    """One line each; whatever the service sent."""

    title: str
    url: str
    snippet: str


class SearchResult(msgspec.Struct, frozen=True):
    """As most services send it."""

    url: str
    title: str = ""
    content: str | None = None


class SearchResults(msgspec.Struct, frozen=True):
    results: tuple[SearchResult, ...]

    def hits(self, limit: int) -> list[WebHit]:
        return make_hits(((one.title, one.url, one.content or "") for one in self.results), limit)


class SearchService(Protocol):
    @property
    def name(self) -> str: ...
    async def search(self, query: str, limit: int) -> Sequence[WebHit]:
        """Raises `ToolFailed`."""
        ...


def make_hits(found: Iterable[tuple[str, str, str]], limit: int) -> list[WebHit]:
    """From (title, address, snippet), as plain text. What is no address of a page is left out."""
    kept: list[WebHit] = []
    for title, url, snippet in found:
        if len(kept) == limit:
            break
        address = _parse_address(url)
        if address:
            kept.append(
                WebHit(
                    _shorten_line(title, MAX_TITLE_CHARS) or address, address, _shorten_line(snippet, MAX_SNIPPET_CHARS)
                )
            )
    return kept


def decode_answer(answer: FetchedPage, type: type[T], service: str) -> T:
    """Raises `ToolFailed`, also for an answer that is a refusal."""
    check_answer(answer, service)
    try:
        return msgspec.json.decode(answer.body, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
        raise ToolFailed(f"The answer of {service} cannot be read.") from fault


def check_answer(answer: FetchedPage, service: str) -> None:
    match answer.status:
        case 200:
            return
        case 401 | 402 | 403 | 422 | 432 | 433:
            raise ToolFailed(f"{service} refused the search (HTTP {answer.status}): its key or plan does not allow it.")
        case 429:
            raise ToolFailed(f"{service} received too many searches; try again later.")
        case status:
            raise ToolFailed(f"{service} answered HTTP {status}; try again later.")


def _parse_address(url: str) -> str:
    try:
        return str(parse_url(url))
    except ToolFailed:
        return ""


def _shorten_line(text: str, limit: int) -> str:
    line = " ".join(strip_invisible(text[: limit * 10]).split())
    return line if len(line) <= limit else f"{line[:limit]}…"


KEYS: Mapping[SearchBackend, str] = {
    "brave": "BRAVE_API_KEY",
    "tavily": "TAVILY_API_KEY",
    "searxng": "SEARXNG_URL",
}


def choose_service(fetch: Fetch, environment: Mapping[str, str], wanted: SearchBackend | None = None) -> SearchService:
    """Raises `MissingCredential`."""
    chosen = wanted or _first_with_key(environment)
    value = environment.get(KEYS.get(chosen, ""), "")
    if not value and chosen in KEYS:
        raise MissingCredential(f"web.search_backend is {chosen}, but {KEYS[chosen]} is not set; add it to .env.")
    match chosen:  # only the chosen one is loaded
        case "brave":
            return Brave(fetch, Secret(value))
        case "tavily":
            return Tavily(fetch, Secret(value))
        case "searxng":
            return SearXNG(fetch, value)
        case "duckduckgo":
            return DuckDuckGo(fetch)


def _first_with_key(environment: Mapping[str, str]) -> SearchBackend:
    for name, key in KEYS.items():
        if environment.get(key):
            return name
    return "duckduckgo"


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
        answer = decode_answer(await self._fetch.call(f"{self._url}?{asked}", headers=headers), _Answer, self.name)
        return make_hits(map(_strip_markup, answer.web.results if answer.web else ()), limit)


def _strip_markup(result: _Result) -> tuple[str, str, str]:
    """Words that were searched for stand in `<strong>`."""
    from talaria.tools.builtin.html_tokens import strip_tags  # noqa: PLC0415  (loaded with the first answer)

    return strip_tags(result.title), result.url, strip_tags(result.description)


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
        check_answer(answer, self.name)
        return await in_thread(lambda: make_hits(_parse_results(page), limit))


def _parse_results(page: str) -> Iterator[tuple[str, str, str]]:
    """A result is a link of class `result__a`, and then perhaps one of class `result__snippet`."""
    from talaria.tools.builtin.html_tokens import Tag, tokenize  # noqa: PLC0415  (loaded with the first answer)

    url = ""
    texts: dict[str, list[str]] = {"title": [], "snippet": []}
    reading = ""
    for token in tokenize(page):
        if not isinstance(token, Tag):
            if reading:
                texts[reading].append(token)
        elif token.name == "a" and token.is_end:
            reading = ""
        elif "result__a" in (classes := token.attributes.get("class", "").split()):
            if url:
                yield "".join(texts["title"]), url, "".join(texts["snippet"])
            url = _find_target(token.attributes.get("href", ""))
            texts = {"title": [], "snippet": []}
            reading = "title"
        elif "result__snippet" in classes:
            reading = "snippet"
    if url:
        yield "".join(texts["title"]), url, "".join(texts["snippet"])


def _find_target(href: str) -> str:
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
        return decode_answer(answer, SearchResults, self.name).hits(limit)


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
        return decode_answer(
            await self._fetch.call(self._url, headers=headers, body=body), SearchResults, self.name
        ).hits(limit)
