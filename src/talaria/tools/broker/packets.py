"""What a client of git tells a server that it is about to push: the beginning of the pack protocol, read strictly
(gitprotocol-pack)."""

import re

import msgspec

MAX_HEAD_BYTES = 1 << 20
MAX_REFS = 200
_LENGTH = re.compile(rb"[0-9a-fA-F]{4}")
_COMMAND = re.compile(
    r"(?P<old>[0-9a-f]{40}|[0-9a-f]{64}) (?P<new>[0-9a-f]{40}|[0-9a-f]{64}) (?P<ref>refs/[^\x00-\x20\x7f~^:?*\[\\]+)"
)
_SHALLOW = re.compile(r"shallow (?:[0-9a-f]{40}|[0-9a-f]{64})")
_CAPABILITIES = frozenset(
    {
        *("report-status", "report-status-v2", "side-band-64k", "ofs-delta", "atomic", "quiet", "delete-refs"),
        *("object-format", "agent", "session-id"),
    }
)
"""What a client may agree on with the server. Not `push-options`: with them some servers merge, or run things."""


class OddPush(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(f"This push is not passed on: {reason}.")


class RefUpdate(msgspec.Struct, frozen=True):
    old: str
    new: str
    ref: str

    @property
    def is_new(self) -> bool:
        return not self.old.strip("0")

    @property
    def is_deletion(self) -> bool:
        return not self.new.strip("0")

    @property
    def name(self) -> str:
        """For people."""
        kind, _, rest = self.ref.removeprefix("refs/").partition("/")
        return {"heads": rest, "tags": f"tag {rest}"}.get(kind, self.ref)


class PushHead:
    """Collects what is sent until it is known which refs would be updated."""

    def __init__(self) -> None:
        self.received = bytearray()
        """All of it, to be passed on."""
        self.updates: list[RefUpdate] = []
        self.is_complete = False
        self._read_bytes = 0

    @property
    def is_decided(self) -> bool:
        """Whether what follows can be passed on unread. Never, if no ref is named: nothing may follow then."""
        return self.is_complete and bool(self.updates)

    def feed(self, chunk: bytes) -> None:
        """Raises `OddPush`."""
        self.received += chunk
        while not self.is_complete:
            head = bytes(self.received[self._read_bytes : self._read_bytes + 4])
            if len(head) < 4:
                break
            if not _LENGTH.fullmatch(head):
                raise OddPush("it does not follow git's protocol")
            size = int(head, 16)
            if size == 0:
                self.is_complete = True
                self._read_bytes += 4
                break
            if size < 5:
                raise OddPush("it does not follow git's protocol")
            if len(self.received) - self._read_bytes < size:
                break
            line = bytes(self.received[self._read_bytes + 4 : self._read_bytes + size])
            self._read_bytes += size
            self._read_line(line)
        if self.is_complete and not self.updates and len(self.received) > self._read_bytes:
            raise OddPush("it names no ref, and goes on")
        if self._read_bytes > MAX_HEAD_BYTES or (not self.is_complete and len(self.received) > MAX_HEAD_BYTES):
            raise OddPush("it names too many refs")

    def end(self) -> None:
        """Nothing more comes. Raises `OddPush`."""
        if not self.is_complete:
            raise OddPush("it ends too early")

    def _read_line(self, line: bytes) -> None:
        command, _, agreed = line.removesuffix(b"\n").partition(b"\0")
        try:
            words, capabilities = command.decode(), agreed.decode().split()
        except UnicodeDecodeError:
            raise OddPush("refs whose names are not UTF-8 are not passed on") from None
        if any(one.startswith("push-options") for one in capabilities):
            raise OddPush("options for the server (git push -o) are not passed on")
        if unknown := [one for one in capabilities if one.partition("=")[0] not in _CAPABILITIES]:
            raise OddPush(f"it wants {unknown[0][:40]!a} of the server, which is not known here")
        if _SHALLOW.fullmatch(words) and not self.updates:
            return
        update = _COMMAND.fullmatch(words)
        if update is None or not words.isprintable():
            raise OddPush("signed pushes and refs with unusual names are not passed on")
        if len(self.updates) >= MAX_REFS:
            raise OddPush(f"it names more than {MAX_REFS} refs")
        self.updates.append(RefUpdate(update["old"], update["new"], update["ref"]))
