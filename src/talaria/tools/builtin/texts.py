"""Files as text that becomes the same bytes again: byte order mark, line ends and bytes that are no UTF-8 stay."""

from dataclasses import dataclass, replace

_BOM = b"\xef\xbb\xbf"
_SNIFFED_BYTES = 8192


@dataclass(frozen=True, slots=True)
class TextFile:
    body: str
    """Lines end with LF alone if all of them end with CRLF; else as they are."""
    has_bom: bool = False
    has_crlf: bool = False

    def encode(self) -> bytes:
        body = self.body.replace("\n", "\r\n") if self.has_crlf else self.body
        return (_BOM if self.has_bom else b"") + body.encode("utf-8", "surrogateescape")

    def like(self, before: "TextFile") -> "TextFile":
        """With the byte order mark of `before`, and its line ends unless we say them ourselves."""
        has_crlf = self.has_crlf or (before.has_crlf and "\r" not in self.body)
        return replace(self, has_bom=self.has_bom or before.has_bom, has_crlf=has_crlf)


def decoded(content: bytes) -> TextFile:
    has_bom = content.startswith(_BOM)
    body = content.removeprefix(_BOM).decode("utf-8", "surrogateescape")
    has_crlf = 0 < body.count("\n") == body.count("\r\n")
    return TextFile(body.replace("\r\n", "\n") if has_crlf else body, has_bom, has_crlf)


def is_binary(content: bytes) -> bool:
    return b"\0" in content[:_SNIFFED_BYTES]
