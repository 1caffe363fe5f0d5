"""Files that the agent hands over: a signed link takes the place of each line of an answer that names one."""

import hmac
import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

from talaria.core.fs import replace_file
from talaria.core.ids import SessionId
from talaria.gateway.replies import MEDIA, find_named_files
from talaria.gateway.request_history import FILES_PATH

VALID_S = 7 * 24 * 3600
KEY_BYTES = 32
_FENCES = ("```", "~~~")

Link = Callable[[str], str]
"""From the path as the model wrote it to markdown."""


def read_or_make_key(file: Path) -> bytes:
    """The secret of this home, with which links are signed. Blocks."""
    try:
        key = file.read_bytes()
    except FileNotFoundError:
        key = b""
    if len(key) != KEY_BYTES:
        key = os.urandom(KEY_BYTES)
        replace_file(file, key, mode=0o600)
    return key


class FileLinks:
    def __init__(self, key: bytes) -> None:
        self._key = key

    def make(self, base: str, session: SessionId, path: str, now: float) -> str:
        """Whoever has it may fetch this file, as long as it is valid."""
        expires = str(int(now) + VALID_S)
        query = urlencode({"path": path, "expires": expires, "signature": self._sign(session, path, expires)})
        return f"{base}{FILES_PATH}{session}?{query}"

    def is_valid(self, session: str, path: str, expires: str, signature: str, now: float) -> bool:
        is_timely = expires.isascii() and expires.isdecimal() and len(expires) < 12 and now < int(expires)
        own, given = self._sign(session, path, expires).encode(), signature.encode("utf-8", "replace")
        return is_timely and hmac.compare_digest(own, given)

    def _sign(self, session: str, path: str, expires: str) -> str:
        return hmac.digest(self._key, f"{session}\n{path}\n{expires}".encode("utf-8", "replace"), "sha256").hex()


class LinkedText:
    """A text that grows. What is shown of it only grows, too: a line that may name a file is held back until it is
    complete."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._before = ""
        """The fence that we are in, as a line."""
        self._line = ""
        self._is_shown = False
        """What there is of the line has been shown."""

    def add(self, text: str) -> str:
        if self._is_shown and "\n" not in text:
            self._line += text
            return text
        shown: list[str] = []
        for number, piece in enumerate(text.split("\n")):
            if number:
                shown += (self._end_line(), "\n")
            self._line += piece
            if self._is_shown:
                shown.append(piece)
            elif not self._may_name_file:
                self._is_shown = True
                shown.append(self._line)
        return "".join(shown)

    def end(self) -> str:
        """The text is complete; another one may begin."""
        rest = self._end_line()
        self._before = ""
        return rest

    @property
    def _may_name_file(self) -> bool:
        start = self._line.lstrip()
        return not self._before and (start.startswith(MEDIA) or MEDIA.startswith(start))

    def _end_line(self) -> str:
        line, self._line = self._line, ""
        is_shown, self._is_shown = self._is_shown, False
        marker = line.strip()
        if self._before:
            if marker.startswith(self._before) and not marker.strip(self._before[0]):
                self._before = ""
        elif marker.startswith(_FENCES):
            self._before = marker[: len(marker) - len(marker.lstrip(marker[0]))]
        if is_shown:
            return ""
        named = find_named_files(line).get(0)
        return line if named is None else self._link(named)


def markdown_link(path: str, url: str) -> str:
    name = "".join(char for char in Path(path).name if char.isprintable() and char not in "[]") or "file"
    return f"[{name}]({url})"
