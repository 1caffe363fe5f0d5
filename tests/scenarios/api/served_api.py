"""The HTTP API of a gateway in this process, and clients of it."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai

from talaria.api.api_tokens import digest_of, make_token
from talaria.app.build import open_store
from talaria.app.gateway_app import GatewayApp
from talaria.core.ids import SessionId
from talaria.store.api_ports import ApiToken, Scope
from talaria.store.base import Session, Store
from talaria.testing import PATIENCE_S, ModelServer
from talaria.testing.harness import Harness

SCOPES: tuple[Scope, ...] = ("chat", "runs", "sessions", "metrics")
"""All that a program needs that is asked nothing."""
EVERY_SCOPE: tuple[Scope, ...] = (*SCOPES, "approve", "admin")


def api_harness(folder: Path, model: ModelServer) -> Harness:
    at_model = {"default": "scripted", "provider": "custom", "base_url": model.url, "api_key": "key"}
    return Harness(
        folder,
        model_server=model,
        store=open_store,
        model={**at_model, "wire": "openai_chat"},
        gateway={"workspace": str(folder / "people")},
        api={"port": 0},
    )


class ServedApi:
    def __init__(self, harness: Harness, app: GatewayApp) -> None:
        self.harness = harness
        self.app = app
        self.token = ""
        """Of `me`, who may do everything but approve."""

    @classmethod
    @asynccontextmanager
    async def serve(cls, harness: Harness, token: str = "") -> AsyncGenerator["ServedApi"]:
        """`token`: the one of `me` that is there."""
        async with harness.serve(is_api_only=True) as app:
            served = cls(harness, app)
            served.token = token or await served.add_token()
            yield served

    @property
    def model(self) -> ModelServer:
        return self.harness.model

    @property
    def store(self) -> Store:
        return self.app.app.store

    @property
    def port(self) -> int:
        platform = self.app.gateway.state.links.find("api")
        assert platform is not None
        port: int = getattr(platform, "port")  # noqa: B009  (only this platform listens)
        return port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def add_token(self, name: str = "me", scopes: Sequence[Scope] = SCOPES, **more: Any) -> str:
        token = make_token()
        assert await self.store.api_tokens.add(
            ApiToken(name=name, digest=digest_of(token), scopes=tuple(scopes), **more)
        )
        return token

    def openai(self, token: str = "", **options: Any) -> openai.AsyncOpenAI:
        """Close it with `async with`. It does not retry unless told to."""
        settings: dict[str, Any] = {"max_retries": 0, "timeout": PATIENCE_S, **options}
        return openai.AsyncOpenAI(api_key=token or self.token, base_url=f"{self.url}/v1", **settings)

    def http(self, token: str | None = None, **headers: str) -> httpx2.AsyncClient:
        """Close it with `async with`. With an empty token, it sends none."""
        shown = self.token if token is None else token
        own = {"Authorization": f"Bearer {shown}"} if shown else {}
        return httpx2.AsyncClient(base_url=self.url, headers={**own, **headers}, timeout=PATIENCE_S, trust_env=False)

    async def sessions(self, person: str | None = None) -> Sequence[Session]:
        return await self.store.sessions.list(100, person)

    async def session(self, id: str) -> Session:
        row = await self.store.sessions.get(SessionId(id))
        assert row is not None
        return row

    def sent(self, number: int = -1) -> list[dict[str, Any]]:
        """The messages of a request to the model."""
        return list(self.model.requests[number].json["messages"])

    async def wait_for_model(self, count: int) -> None:
        """Until the model was asked that often."""
        await asyncio.to_thread(self.model.wait_for_requests, count)


def chat_body(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": "talaria", "messages": [{"role": "user", "content": text}], **more}


async def events_of(response: httpx2.Response) -> AsyncIterator[tuple[str, Mapping[str, Any]]]:
    """The name and content of each event of a stream."""
    name = ""
    async for line in response.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: ") and line != "data: [DONE]":
            yield name, json.loads(line.removeprefix("data: "))


def said_by(role: str, messages: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(one["content"]) for one in messages if one["role"] == role]
