"""What is posted to us → `Arrival`. Pure."""

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, TypeVar

import msgspec

from talaria.core.errors import BadInput
from talaria.platforms.base import Address, Arrival, Sender
from talaria.platforms.webhook.config import WebhookRoute

PLATFORM = "webhook"
GITHUB_EVENT = "X-GitHub-Event"
MAX_EVENT_CHARS = 50_000
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
    message = _of_github(route, body, headers) if route.kind == "github" else _decoded(_message, body)
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
    """A route's chats are its own: whatever it calls them, they are not another route's."""
    return f"{route}/{chat}" if chat else route


def _of_github(route: WebhookRoute, body: bytes, headers: Mapping[str, str]) -> _Message:
    """Known by its content: the id that GitHub gives is not signed, so that anybody could send it again as another."""
    _decoded(_event, body)
    event = headers.get(GITHUB_EVENT, "")
    if not _EVENT.fullmatch(event):
        raise BadInput(f"{GITHUB_EVENT} must name the event.")
    text = body.decode("utf-8", "replace")
    shown = text if len(text) <= MAX_EVENT_CHARS else f"{text[:MAX_EVENT_CHARS]} … (cut)"
    return _Message(hashlib.sha256(body).hexdigest(), f"{route.prompt}\n\n{event}: {shown}")


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except RecursionError as fault:
        raise BadInput("The body is nested too deeply.") from fault
    except ValueError as fault:  # also msgspec's
        raise BadInput(f"The body is not what is expected: {fault}.") from fault
