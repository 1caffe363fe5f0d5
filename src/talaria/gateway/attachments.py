"""What came with messages: fetched when they are answered, shown to the model where it can see it, else named."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from talaria.gateway.envelope import Received
from talaria.gateway.links import Links
from talaria.model.messages import Context, Text, User, UserPart
from talaria.model.pictures import Unfit, fit
from talaria.platforms.base import Attachment, PlatformFailure
from talaria.waiting import in_thread

MAX_BYTES = 20 * 2**20
MAX_FILES = 10
FETCH_S = 120.0
FOLDER = "attachments"

log = logging.getLogger(__name__)

_UNSAFE = re.compile(r"[^\w.-]+")


class Attachments:
    def __init__(self, links: Links) -> None:
        self._links = links

    async def message(self, said: Sequence[Received], cwd: Path) -> User:
        """What was said together, as one message for the model."""
        parts: list[UserPart] = []
        room = MAX_FILES
        for one in said:
            parts += _quotation(one)
            for attachment in one.arrival.attachments[:room]:
                parts += await self._part(attachment, one, cwd)
            left_out = len(one.arrival.attachments) - room
            if left_out > 0:
                parts.append(Context(f"[{left_out} more attached files were left out: at most {MAX_FILES} are taken.]"))
            room = max(0, room - len(one.arrival.attachments))
        text = "\n".join(one.arrival.text for one in said if one.arrival.text)
        return User((*parts, Text(_named(said[0], text))))

    async def _part(self, attachment: Attachment, received: Received, cwd: Path) -> Sequence[UserPart]:
        what = f"{attachment.kind} {attachment.name}".strip()
        if (attachment.size_bytes or 0) > MAX_BYTES:
            return (Context(f"[Attached {what} is larger than {MAX_BYTES >> 20} MB and was not fetched.]"),)
        folder = cwd / FOLDER
        name = _UNSAFE.sub("_", f"{received.arrival.message_id}-{attachment.name or attachment.kind}")[-120:]
        target = folder / name.lstrip(".")
        try:
            await in_thread(lambda: folder.mkdir(mode=0o700, parents=True, exist_ok=True))
            platform = await self._links.wait(received.arrival.where.platform)
            await platform.fetch(attachment, target, MAX_BYTES)
        except (PlatformFailure, OSError) as fault:
            log.warning("attachment of %s not fetched: %s", received.key, fault)
            return (Context(f"[Attached {what} could not be fetched: {fault}]"),)
        return await in_thread(lambda: _shown(attachment, target))


def _shown(attachment: Attachment, file: Path) -> Sequence[UserPart]:
    size = file.stat().st_size
    named = Context(f"[Attached {attachment.kind}: {file} ({size:,} bytes{_mime(attachment)})]")
    if attachment.kind != "image":
        return (named,)
    try:
        image, _ = fit(file.read_bytes())
    except Unfit:
        return (named,)
    return (named, image)


def _mime(attachment: Attachment) -> str:
    return f", {attachment.mime}" if attachment.mime else ""


def _quotation(received: Received) -> Sequence[UserPart]:
    quoted = received.arrival.reply_to
    if quoted is None or not quoted.text:
        return ()
    whose = "your message" if quoted.is_ours else "a message"
    return (Context(f"[In reply to {whose}: {quoted.text[:1000]}]"),)


def _named(received: Received, text: str) -> str:
    """In a group the model must know who speaks."""
    if received.arrival.kind == "dm":
        return text
    name = " ".join(received.principal.name.split())[:40] or received.principal.user
    return f"[{name.replace(']', ')')}] {text}"
