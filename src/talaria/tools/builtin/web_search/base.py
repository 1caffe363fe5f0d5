"""The port of search services, and what their answers have in common.

Which service searches: the one that the settings name, else the first whose key is set, else DuckDuckGo.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from talaria.core.errors import MissingCredential, ToolFailed
from talaria.core.secret import Secret
from talaria.net.fetch import Fetch, Fetched
from talaria.net.settings import SearchBackend
from talaria.net.urls import parse
from talaria.tools.builtin.web_text import clean

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


class Result(msgspec.Struct, frozen=True):
    """As most services send it."""

    url: str
    title: str = ""
    content: str | None = None


class Results(msgspec.Struct, frozen=True):
    results: tuple[Result, ...]

    def hits(self, limit: int) -> list[WebHit]:
        return hits(((one.title, one.url, one.content or "") for one in self.results), limit)


class SearchService(Protocol):
    @property
    def name(self) -> str: ...
    async def search(self, query: str, limit: int) -> Sequence[WebHit]:
        """Raises `ToolFailed`."""
        ...


def hits(found: Iterable[tuple[str, str, str]], limit: int) -> list[WebHit]:
    """From (title, address, snippet), as plain text. What is no address of a page is left out."""
    kept: list[WebHit] = []
    for title, url, snippet in found:
        if len(kept) == limit:
            break
        address = _address(url)
        if address:
            kept.append(WebHit(_line(title, MAX_TITLE_CHARS) or address, address, _line(snippet, MAX_SNIPPET_CHARS)))
    return kept


def decoded(answer: Fetched, type: type[T], service: str) -> T:
    """Raises `ToolFailed`, also for an answer that is a refusal."""
    check(answer, service)
    try:
        return msgspec.json.decode(answer.body, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
        raise ToolFailed(f"The answer of {service} cannot be read.") from fault


def check(answer: Fetched, service: str) -> None:
    match answer.status:
        case 200:
            return
        case 401 | 402 | 403 | 422 | 432 | 433:
            raise ToolFailed(f"{service} refused the search (HTTP {answer.status}): its key or plan does not allow it.")
        case 429:
            raise ToolFailed(f"{service} has had too many searches; try again later.")
        case status:
            raise ToolFailed(f"{service} answered HTTP {status}; try again later.")


def _address(url: str) -> str:
    try:
        return str(parse(url))
    except ToolFailed:
        return ""


def _line(text: str, limit: int) -> str:
    line = " ".join(clean(text[: limit * 10]).split())
    return line if len(line) <= limit else f"{line[:limit]}…"


KEYS: Mapping[SearchBackend, str] = {
    "brave": "BRAVE_API_KEY",
    "tavily": "TAVILY_API_KEY",
    "searxng": "SEARXNG_URL",
}


def choose(fetch: Fetch, environment: Mapping[str, str], wanted: SearchBackend | None = None) -> SearchService:
    """Raises `MissingCredential`."""
    chosen = wanted or _first(environment)
    value = environment.get(KEYS.get(chosen, ""), "")
    if not value and chosen in KEYS:
        raise MissingCredential(f"web.search_backend is {chosen}, but {KEYS[chosen]} is not set; add it to .env.")
    match chosen:  # only the chosen one is loaded
        case "brave":
            from talaria.tools.builtin.web_search.engines import Brave  # noqa: PLC0415

            return Brave(fetch, Secret(value))
        case "tavily":
            from talaria.tools.builtin.web_search.engines import Tavily  # noqa: PLC0415

            return Tavily(fetch, Secret(value))
        case "searxng":
            from talaria.tools.builtin.web_search.engines import SearXNG  # noqa: PLC0415

            return SearXNG(fetch, value)
        case "duckduckgo":
            from talaria.tools.builtin.web_search.engines import DuckDuckGo  # noqa: PLC0415

            return DuckDuckGo(fetch)


def _first(environment: Mapping[str, str]) -> SearchBackend:
    for name, key in KEYS.items():
        if environment.get(key):
            return name
    return "duckduckgo"
