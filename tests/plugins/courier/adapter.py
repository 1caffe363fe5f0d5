"""Courier gateway adapter: REST for what goes out, a WebSocket for what comes in."""

from __future__ import annotations

import asyncio
import logging
import mimetypes
from pathlib import Path
from typing import Any, Dict, Optional

import aiohttp
from gateway.config import Platform
from gateway.platforms.base import (
    BasePlatformAdapter,
    MessageEvent,
    MessageType,
    ProcessingOutcome,
    SendResult,
    cache_document_from_bytes,
    cache_image_from_bytes,
    resolve_channel_prompt,
)
from gateway.platforms.helpers import MessageDeduplicator

logger = logging.getLogger(__name__)


class CourierAdapter(BasePlatformAdapter):
    def __init__(self, config, **kwargs):
        super().__init__(config=config, platform=Platform("courier"))
        extra = getattr(config, "extra", {}) or {}
        self._base_url = extra.get("url", "").rstrip("/")
        self._token = config.token or extra.get("token", "")
        self._lock = asyncio.Lock()
        self._session: Any = None
        self._ws: Any = None
        self._ws_task: Optional[asyncio.Task] = None
        self._dedup = MessageDeduplicator()
        self._bot_id = ""

    async def connect(self, *, is_reconnect: bool = False) -> bool:
        if not self._acquire_platform_lock("courier-token", self._token, "Courier token"):
            return False
        self._session = aiohttp.ClientSession(headers={"X-Token": self._token})
        async with self._session.get(f"{self._base_url}/api/me") as resp:
            if resp.status == 401:
                self._set_fatal_error("auth", f"Courier refused the token {self._token}", retryable=False)
                return False
            self._bot_id = (await resp.json())["id"]
        self._ws = await self._session.ws_connect(f"{self._base_url}/live")
        self._ws_task = asyncio.create_task(self._listen())
        self._mark_connected()
        return True

    async def disconnect(self) -> None:
        if self._ws_task and not self._ws_task.done():
            self._ws_task.cancel()
            try:
                await self._ws_task
            except (asyncio.CancelledError, Exception):
                pass
        if self._ws:
            await self._ws.close()
        if self._session:
            await self._session.close()
        self._release_platform_lock()
        self._mark_disconnected()

    async def _listen(self) -> None:
        async for msg in self._ws:
            if msg.type != aiohttp.WSMsgType.TEXT:
                continue
            try:
                post = msg.json()
                await self._handle_post(post)
                await self._ws.send_json({"got": post["id"]})
            except Exception:
                logger.exception("Courier: cannot handle a post")
        self._set_fatal_error("closed", "the server closed the connection", retryable=True)
        await self._notify_fatal_error()

    async def _handle_post(self, post: Dict[str, Any]) -> None:
        if post["user"] == self._bot_id or self._dedup.is_duplicate(post["id"]):
            return
        text = post["text"]
        if post["type"] != "dm":
            if f"@{self._bot_id}" not in text:
                return
            text = text.replace(f"@{self._bot_id}", "").strip()
        media_urls, media_types = [], []
        msg_type = MessageType.COMMAND if text.startswith("/") else MessageType.TEXT
        for file in post.get("files", ()):
            async with self._session.get(f"{self._base_url}{file}") as resp:
                data = await resp.read()
                if resp.content_type.startswith("image/"):
                    path = cache_image_from_bytes(data, mimetypes.guess_extension(resp.content_type) or ".png")
                    msg_type = MessageType.PHOTO
                else:
                    path = cache_document_from_bytes(data, Path(file).name)
                    msg_type = MessageType.DOCUMENT
                media_urls.append(path)
                media_types.append(resp.content_type)
        source = self.build_source(
            chat_id=post["room"],
            chat_name=post.get("room_name"),
            chat_type=post["type"],
            user_id=post["user"],
            user_name=post["user"],
            thread_id=post.get("thread"),
        )
        await self.handle_message(
            MessageEvent(
                text=text,
                message_type=msg_type,
                source=source,
                raw_message=post,
                message_id=post["id"],
                media_urls=media_urls if media_urls else None,
                media_types=media_types if media_types else None,
                reply_to_message_id=post.get("quotes"),
                reply_to_text=post.get("quoted"),
                reply_to_is_own_message=post.get("quotes_bot", False),
                channel_prompt=resolve_channel_prompt(self.config.extra, post["room"], None),
            )
        )

    async def _post(self, path: str, payload: Dict[str, Any]) -> SendResult:
        try:
            async with self._session.post(f"{self._base_url}/api/{path}", json=payload) as resp:
                if resp.status == 429:
                    return SendResult(
                        success=False,
                        error="Too Many Requests",
                        retryable=True,
                        retry_after=float(resp.headers["Retry-After"]),
                    )
                if resp.status >= 400:
                    return SendResult(success=False, error=f"{resp.status}: {await resp.text()}")
                return SendResult(success=True, message_id=(await resp.json())["id"])
        except aiohttp.ClientConnectorError as exc:
            return SendResult(success=False, error=f"Cannot connect: {exc}", retryable=True)
        except aiohttp.ClientError as exc:
            return SendResult(success=False, error=f"{type(exc).__name__}: {exc}")

    async def send(
        self,
        chat_id: str,
        content: str,
        reply_to: Optional[str] = None,
        metadata: Optional[Dict[str, Any]] = None,
    ) -> SendResult:
        result = SendResult(success=True)
        for chunk in self.truncate_message(self.format_message(content), 2000):
            payload = {"room": chat_id, "text": chunk, "quotes": reply_to, "thread": (metadata or {}).get("thread_id")}
            async with self._lock:
                result = await self._post("send", payload)
            if not result.success:
                return result
        return result

    async def edit_message(self, chat_id: str, message_id: str, content: str, *, finalize: bool = False) -> SendResult:
        return await self._post("edit", {"room": chat_id, "id": message_id, "text": content})

    async def delete_message(self, chat_id: str, message_id: str) -> bool:
        return (await self._post("delete", {"room": chat_id, "id": message_id})).success

    async def send_typing(self, chat_id: str, metadata=None) -> None:
        await self._ws.send_json({"typing": chat_id})

    async def create_handoff_thread(self, parent_chat_id: str, name: str) -> Optional[str]:
        result = await self._post("thread", {"room": parent_chat_id, "name": name})
        return result.message_id if result.success else None

    async def send_document(
        self,
        chat_id: str,
        file_path: str,
        caption: Optional[str] = None,
        file_name: Optional[str] = None,
        reply_to: Optional[str] = None,
        metadata: Optional[Dict[str, Any]] = None,
    ) -> SendResult:
        content = Path(file_path).read_text()
        return await self._post("send", {"room": chat_id, "text": caption or "", "file": file_name, "content": content})

    async def get_chat_info(self, chat_id: str) -> Dict[str, Any]:
        return {"name": chat_id, "type": "dm"}

    async def on_processing_start(self, event: MessageEvent) -> None:
        await self._post("react", {"id": event.message_id, "emoji": "👀"})

    async def on_processing_complete(self, event: MessageEvent, outcome: ProcessingOutcome) -> None:
        emoji = "✅" if outcome == ProcessingOutcome.SUCCESS else "❌"
        await self._post("react", {"id": event.message_id, "emoji": emoji})
