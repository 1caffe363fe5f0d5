"""Which service searches: the one that the settings name, else the first whose key is set, else DuckDuckGo."""

from collections.abc import Mapping

from talaria.core.errors import MissingCredential
from talaria.core.secret import Secret
from talaria.net.fetch import Fetch
from talaria.net.web_settings import SearchBackend
from talaria.tools.builtin.web_search.base import SearchService

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
            from talaria.tools.builtin.web_search.brave import Brave  # noqa: PLC0415

            return Brave(fetch, Secret(value))
        case "tavily":
            from talaria.tools.builtin.web_search.tavily import Tavily  # noqa: PLC0415

            return Tavily(fetch, Secret(value))
        case "searxng":
            from talaria.tools.builtin.web_search.searxng import SearXNG  # noqa: PLC0415

            return SearXNG(fetch, value)
        case "duckduckgo":
            from talaria.tools.builtin.web_search.duckduckgo import DuckDuckGo  # noqa: PLC0415

            return DuckDuckGo(fetch)


def _first(environment: Mapping[str, str]) -> SearchBackend:
    for name, key in KEYS.items():
        if environment.get(key):
            return name
    return "duckduckgo"
