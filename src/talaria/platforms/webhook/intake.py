"""Reads requests as arrivals, and queues them for the gateway. A request waits until its arrival is on our disk."""

import asyncio
import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import BadInput
from talaria.net.stall import StallWatch
from talaria.platforms.base import Address, Arrival, Batch, Sender
from talaria.platforms.webhook.config import WebhookRoute

PLATFORM = "webhook"
GITHUB_EVENT = "X-GitHub-Event"
MAX_EVENT_CHARS = 50_000
MAX_WAITING = 256
MAX_BATCH = 32
DURABLE_S = 20.0
PULSE_S = 30.0
_EVENT = re.compile(r"[a-z_]{1,64}", re.ASCII)

T = TypeVar("T")
_Name = Annotated[str, msgspec.Meta(max_length=200)]


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] | Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    text: str
    chat: _Name = ""
    thread: _Name = ""


_message = msgspec.json.Decoder(_Message)
_event = msgspec.json.Decoder(dict[str, msgspec.Raw])


def arrival(name: str, route: WebhookRoute, body: bytes, headers: Mapping[str, str], sent_at: float) -> Arrival:
    """`name` is the route's. Raises `BadInput`."""
    if route.kind == "github":
        _decode(_event, body)
        event = headers.get(GITHUB_EVENT, "")
        if not _EVENT.fullmatch(event):
            raise BadInput(f"{GITHUB_EVENT} must name the event.")
        text = body.decode("utf-8", "replace")
        shown = text if len(text) <= MAX_EVENT_CHARS else f"{text[:MAX_EVENT_CHARS]} … (cut)"
        # the id is a hash: GitHub does not sign its own ids, so anybody could repeat an event under another one
        message = _Message(hashlib.sha256(body).hexdigest(), f"{route.prompt}\n\n{event}: {shown}")
    else:
        message = _decode(_message, body)
    if not message.text.strip():
        raise BadInput("The text is blank.")
    return Arrival(
        message_id=str(message.id),
        where=Address(PLATFORM, chat_of(name, message.chat), message.thread),
        kind="dm",
        sender=Sender(name, route.user or name),
        text=message.text,
        sent_at=sent_at,
    )


def chat_of(route: str, chat: str) -> str:
    """Separates the chats of routes: no chat name of one route means a chat of another."""
    return f"{route}/{chat}" if chat else route


def _decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except RecursionError as fault:
        raise BadInput("The body is nested too deeply.") from fault
    except ValueError as fault:  # also msgspec's
        raise BadInput(f"The body does not have the expected form: {fault}.") from fault


@dataclass(frozen=True, slots=True)
class _Pending:
    arrival: Arrival
    is_durable: asyncio.Future[bool]


class Intake:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: asyncio.Queue[_Pending] = asyncio.Queue(MAX_WAITING)
        self._handed: dict[str, tuple[_Pending, ...]] = {}
        self._batches = 0
        self._is_open = True

    async def take(self, arrival: Arrival) -> bool:
        """True once it is on our disk. False if that is not certain; it may be posted again."""
        if not self._is_open or self._waiting.full():
            return False
        pending = _Pending(arrival, asyncio.get_running_loop().create_future())
        self._waiting.put_nowait(pending)
        try:
            async with StallWatch(self._clock, DURABLE_S) as watch, watch.limit(DURABLE_S):
                return await pending.is_durable
        except TimeoutError:
            return False

    async def batch(self) -> Batch | None:
        """The waiting arrivals. None if nothing came for a while."""
        try:
            async with StallWatch(self._clock, math.inf) as watch, watch.limit(PULSE_S):
                gathered = [await self._waiting.get()]
        except TimeoutError:
            return None
        while len(gathered) < MAX_BATCH and not self._waiting.empty():
            gathered.append(self._waiting.get_nowait())
        batch = tuple(pending for pending in gathered if not pending.is_durable.done())
        self._handed = {
            token: handed
            for token, handed in self._handed.items()
            if not all(pending.is_durable.done() for pending in handed)
        }
        self._batches += 1
        self._handed[str(self._batches)] = batch
        return Batch(tuple(pending.arrival for pending in batch), token=str(self._batches))

    def acknowledge(self, batch: Batch) -> None:
        self._settle(self._handed.pop(batch.token, ()), is_durable=True)

    def close(self) -> None:
        self._is_open = False
        while not self._waiting.empty():
            self._settle((self._waiting.get_nowait(),), is_durable=False)
        while self._handed:
            self._settle(self._handed.popitem()[1], is_durable=False)

    def _settle(self, batch: tuple[_Pending, ...], *, is_durable: bool) -> None:
        for pending in batch:
            if not pending.is_durable.done():
                pending.is_durable.set_result(is_durable)
