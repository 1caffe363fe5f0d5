"""Slack's Web API: the SDK's methods by name, with our failures. The SDK repeats nothing by itself."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp
import msgspec
from slack_sdk.web.async_client import AsyncWebClient

from talaria.net.proxies import proxy_for
from talaria.platforms.base import Unsure
from talaria.platforms.failures import harmless
from talaria.platforms.slack.config import SlackSettings
from talaria.platforms.slack.failures import FAULTS, failure

_TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=10)

T = TypeVar("T", bound=msgspec.Struct)


def sdk_log() -> logging.Logger:
    """What the SDK logs may hold tickets and what people say; what matters of it reaches us as an exception."""
    log = logging.getLogger(f"{__name__}.sdk")
    log.setLevel(logging.CRITICAL)
    return log


class Web:
    def __init__(self, settings: SlackSettings, session: aiohttp.ClientSession) -> None:
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
        try:
            told = await getattr(self.client, method)(**arguments)
            return msgspec.convert(told.data, answer)
        except FAULTS as fault:
            raise failure(fault) from fault

    async def read(self, method: str, answer: type[T], **arguments: Any) -> T:
        """As `write`, of a method that nobody notices: never `Unsure`."""
        try:
            return await self.write(method, answer, **arguments)
        except Unsure as lost:
            raise harmless(lost) from lost


@asynccontextmanager
async def open_web(settings: SlackSettings) -> AsyncGenerator[Web]:
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
        yield Web(settings, session)
