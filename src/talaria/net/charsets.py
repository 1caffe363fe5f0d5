"""From bytes to text as browsers do it: the byte order mark, what the header says, what the page says, a guess."""

import codecs
import re

CHUNK_BYTES = 64 << 10
"""Decoded at once: a thread that decodes a bad page lets others in between."""
_HEAD_BYTES = 1024
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_DECLARED = re.compile(
    rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([\w.:-]{1,40})|^\s*<\?xml[^>]{0,100}?encoding\s*=\s*["']([\w.:-]{1,40})""",
    re.IGNORECASE,
)
_USUAL = re.compile(
    r"utf-(8|16|16-le|16-be|32|32-le|32-be)|ascii|iso8859-\d+|cp\d+|koi8-[rtu]|mac-\w+|gb\w+|big5\w*|euc_\w+|shift_jis\w*|iso2022_\w+|johab|hz|tis-620"
)
"""Python knows more, some of which are programs rather than alphabets (punycode takes quadratic time)."""
_WIDER = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
}
"""Pages that say the one are read as the other, everywhere."""


def charset_of(body: bytes, said: str | None) -> str:
    for mark, name in _MARKS:
        if body.startswith(mark):
            return name
    declared = _DECLARED.search(body, 0, _HEAD_BYTES)
    inside = (declared[1] or declared[2]).decode("ascii") if declared else None
    known = _known(said) or _known(inside, is_inside=True)
    return known or ("utf-8" if _is_utf8(body) else "cp1252")


def decoded(body: bytes, charset: str) -> str:
    decoder = codecs.getincrementaldecoder(charset)("replace")
    pieces = [decoder.decode(body[at : at + CHUNK_BYTES]) for at in range(0, len(body), CHUNK_BYTES)]
    return "".join([*pieces, decoder.decode(b"", final=True)])


def _known(said: str | None, *, is_inside: bool = False) -> str | None:
    try:
        name = codecs.lookup(said or "").name
    except (LookupError, ValueError):
        return None
    if is_inside and name.startswith(("utf-16", "utf-32")):
        return "utf-8"  # it was read as ASCII just now
    return _WIDER.get(name, name) if _USUAL.fullmatch(name) else None


def _is_utf8(body: bytes) -> bool:
    """The last sign may be cut."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(body)
    except UnicodeDecodeError:
        return False
    return True
