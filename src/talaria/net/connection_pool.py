"""The connections to one address. A retired pool closes itself once, when its last response ends."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from talaria.net import tls

with tls.certificates_unread():
    import aiohttp


class ConnectionPool:
    def __init__(self, proxy: str | None) -> None:
        self.proxy = proxy
        """Looked up once: that goes through the whole environment."""
        self._session: aiohttp.ClientSession | None = None
        self._in_use = 0
        self._is_retired = False

    @asynccontextmanager
    async def lease(self) -> AsyncGenerator[aiohttp.ClientSession]:
        """The session to send with; it stays open for as long as the lease."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar()
            )
        self._in_use += 1
        try:
            yield self._session
        finally:
            self._in_use -= 1
            if self._is_retired and not self._in_use:
                await self.close()

    async def retire(self) -> None:
        """Take no more requests; those under way come to their end."""
        self._is_retired = True
        if not self._in_use:
            await self.close()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()
