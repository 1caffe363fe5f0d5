"""Files that came with messages: fetched when the message is answered, shown to the model if it can see them, and named
to it otherwise.

The agent works in the folder where they are kept and may put links there. So each file is downloaded elsewhere first,
and no link is followed.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from talaria.core.aio import in_thread
from talaria.core.messages import Context, Text, User, UserPart
from talaria.core.pictures import UnsupportedImage, prepare_image
from talaria.core.trees import Root
from talaria.gateway.envelope import Mail, Received
from talaria.gateway.gateway_state import PlatformLinks
from talaria.platforms.base import Attachment, PlatformFailure

MAX_BYTES = 20 * 2**20
MAX_FILES = 10
FOLDER = "attachments"
MAX_QUOTED_CHARS = 1000
MAX_FORWARDED_CHARS = 20_000
"""More than of a quotation: a forwarded message is there to be read, a quoted one only as a reminder."""

log = logging.getLogger(__name__)

_UNSAFE = re.compile(r"[^\w.-]+")


class Attachments:
    def __init__(self, links: PlatformLinks) -> None:
        self._links = links

    async def message(self, mail: Sequence[Mail], workplace: Callable[[], Awaitable[Path]]) -> User:
        """What was said together, as one message for the model."""
        said = [one.received for one in mail]
        has_files = any(one.arrival.attachments for one in said)
        folder = await workplace() if has_files else Path()
        parts: list[UserPart] = []
        room = MAX_FILES
        for one in said:
            if one.arrival.request is not None and one.arrival.request.news:
                parts.append(Context(one.arrival.request.news))
            # What the message quotes or forwards: none of its lines can pass for the person's own.
            if (quoted := one.arrival.reply_to) is not None and quoted.text:
                by = f"the message of {_label(quoted.author)}" if quoted.author else "a message"
                whose = "your message" if quoted.is_ours else by
                parts.append(Context(f"[In reply to {whose}: {_quote(quoted.text, MAX_QUOTED_CHARS)}]"))
            if (passed_on := one.arrival.forwarded) is not None:
                by = f" from {_label(passed_on.author)}" if passed_on.author else ""
                whose = " from you" if passed_on.is_ours else by
                text = _quote(passed_on.text, MAX_FORWARDED_CHARS)
                parts.append(Context(f"[Forwarded{whose}: {text}]" if text else f"[Forwarded{whose}.]"))
            for number, attachment in enumerate(one.arrival.attachments[:room]):
                parts += await self._fetch(attachment, one, folder, number)
            left_out = len(one.arrival.attachments) - room
            if left_out > 0:
                parts.append(Context(f"[{left_out} more attached files were left out: at most {MAX_FILES} are taken.]"))
            room = max(0, room - len(one.arrival.attachments))
        text = "\n".join(one.text for one in mail if one.text)
        if said[0].arrival.kind != "dm":  # in a group the model must know who is speaking
            principal = said[0].principal
            text = f"[{_label(principal.name) or principal.user}] {text}"
        return User((*parts, Text(text)))

    async def _fetch(
        self, attachment: Attachment, received: Received, workplace: Path, number: int
    ) -> Sequence[UserPart]:
        what = " ".join(f"{attachment.kind} {attachment.name}".split())
        if (attachment.size_bytes or 0) > MAX_BYTES:
            return (Context(f"[Attached {what} is larger than {MAX_BYTES >> 20} MB and was not fetched.]"),)
        # No two files get the same name, and no disk finds a name too long.
        id, name = (
            _UNSAFE.sub("_", text) for text in (received.arrival.message_id, attachment.name or attachment.kind)
        )
        name = f"{id.lstrip('.')[:56]}-{f'{number + 1}-' if number else ''}{name[-48:]}"
        try:
            platform = await self._links.wait(received.arrival.where.platform)
            with TemporaryDirectory(prefix="talaria-") as folder:
                await platform.fetch(attachment, Path(folder) / "file", MAX_BYTES)
                target, content = await in_thread(lambda: _keep(folder, workplace, name))
        except (PlatformFailure, OSError) as fault:
            log.warning("attachment of %s not fetched: %s", received.key, type(fault).__name__)
            return (Context(f"[Attached {what} could not be fetched: {fault}]"),)
        mime = f", {attachment.mime}" if attachment.mime else ""
        named = Context(f"[Attached {attachment.kind}: {target} ({len(content):,} bytes{mime})]")
        if attachment.kind != "image":
            return (named,)
        try:
            image, _ = await in_thread(lambda: prepare_image(content))
        except UnsupportedImage:
            return (named,)
        return (named, image)


def _keep(downloaded: str, workplace: Path, name: str) -> tuple[Path, bytes]:
    """Where the file is now, and its content. If the folder has become a link to anywhere, nothing is kept."""
    with Root.open(downloaded) as root:
        content = root.read("file", MAX_BYTES)
    with Root.open(workplace) as root, root.make_folder(FOLDER) as folder:
        folder.replace(name, content, mode=0o600)
        return Path(root.path) / FOLDER / name, content


def _quote(text: str, limit: int) -> str:
    cut = text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit} more characters)"
    return cut.replace("\n", "\n> ")


def _label(name: str) -> str:
    return " ".join(name.split())[:40].replace("]", ")")
