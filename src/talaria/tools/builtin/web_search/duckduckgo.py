"""DuckDuckGo's page for browsers without JavaScript. Needs no key, and now and then takes us for the program we are."""

from collections.abc import Iterator, Sequence
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

from talaria.core.errors import ToolFailed
from talaria.net.fetch import Fetch
from talaria.tools.builtin.web_search.base import WebHit, check, hits
from talaria.waiting import in_thread

BASE_URL = "https://html.duckduckgo.com"
_CHALLENGES = ("anomaly-modal", "challenge-form")


class DuckDuckGo:
    name = "DuckDuckGo"

    def __init__(self, fetch: Fetch, base_url: str = BASE_URL) -> None:
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
        parts = urlsplit(urljoin(BASE_URL, href))
    except ValueError:
        return ""
    if parts.path == "/l/":
        return parse_qs(parts.query).get("uddg", [""])[0]
    return "" if parts.path == "/y.js" else parts.geturl()
