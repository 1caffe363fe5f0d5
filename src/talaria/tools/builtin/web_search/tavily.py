"""Tavily: https://api.tavily.com."""

from collections.abc import Sequence

import msgspec

from talaria.core.secret import Secret
from talaria.net.fetch import Fetch
from talaria.tools.builtin.web_search.base import Results, WebHit, decoded

BASE_URL = "https://api.tavily.com"


class Tavily:
    name = "Tavily"

    def __init__(self, fetch: Fetch, key: Secret, base_url: str = BASE_URL) -> None:
        self._fetch = fetch
        self._key = key
        self._url = f"{base_url}/search"

    async def search(self, query: str, limit: int) -> Sequence[WebHit]:
        body = msgspec.json.encode({"query": query, "max_results": limit})
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key.reveal()}"}
        return decoded(await self._fetch.call(self._url, headers=headers, body=body), Results, self.name).hits(limit)
