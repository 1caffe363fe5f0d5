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


class OddPush(Exception):
    """`str()` of it says why this is not passed on."""


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
        if self._read_bytes > MAX_HEAD_BYTES or (not self.is_complete and len(self.received) > MAX_HEAD_BYTES):
            raise OddPush("it names too many refs")

    def _read_line(self, line: bytes) -> None:
        words = line.partition(b"\0")[0].decode("utf-8", "replace").removesuffix("\n")
        if _SHALLOW.fullmatch(words) and not self.updates:
            return
        command = _COMMAND.fullmatch(words)
        if command is None or not words.isprintable():
            raise OddPush("signed pushes and refs with unusual names are not passed on")
        if len(self.updates) >= MAX_REFS:
            raise OddPush(f"it names more than {MAX_REFS} refs")
        self.updates.append(RefUpdate(command["old"], command["new"], command["ref"]))
