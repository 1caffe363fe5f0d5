"""SearXNG at the address in `SEARXNG_URL`, usually the person's own. Its settings must allow the format json."""

from collections.abc import Sequence
from urllib.parse import urlencode

from talaria.core.errors import ToolFailed
from talaria.net.fetch import Fetch
from talaria.tools.builtin.web_search.base import Results, WebHit, decoded


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
