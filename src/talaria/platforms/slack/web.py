"""Slack's Web API: the SDK's methods by name, with our failures. The SDK repeats nothing by itself."""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp
import msgspec
from slack_sdk.web.async_client import AsyncWebClient

from talaria.net.proxies import proxy_for
from talaria.platforms.base import PlatformFailure
from talaria.platforms.slack.config import Settings
from talaria.platforms.slack.failures import FAULTS, failure, failure_to_read

_TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=10)

T = TypeVar("T", bound=msgspec.Struct)


def sdk_log() -> logging.Logger:
    """What the SDK logs may hold tickets and what people say; what matters of it reaches us as an exception."""
    log = logging.getLogger(f"{__name__}.sdk")
    log.setLevel(logging.CRITICAL)
    return log


class Web:
    def __init__(self, settings: Settings, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.client = AsyncWebClient(
            settings.bot_token.reveal(),
            base_url=settings.api_url,
            session=session,
            retry_handlers=[],
            logger=sdk_log(),
        )
        self.client.proxy = proxy_for(settings.api_url)  # the SDK's own reading of the environment knows no NO_PROXY

    async def write(self, method: str, answer: type[T], **arguments: Any) -> T:
        """The answer of `chat_postMessage` and the like. Raises `PlatformFailure`."""
        return await self._call(method, answer, arguments, failure)

    async def read(self, method: str, answer: type[T], **arguments: Any) -> T:
        """As `write`, of a method that nobody notices: never `Unsure`."""
        return await self._call(method, answer, arguments, failure_to_read)

    async def _call(
        self, method: str, answer: type[T], arguments: dict[str, Any], meaning: Callable[[Exception], PlatformFailure]
    ) -> T:
        try:
            told = await getattr(self.client, method)(**arguments)
            return msgspec.convert(told.data, answer)
        except FAULTS as fault:
            raise meaning(fault) from fault


@asynccontextmanager
async def open_web(settings: Settings) -> AsyncGenerator[Web]:
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
        yield Web(settings, session)
