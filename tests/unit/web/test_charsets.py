import codecs

import pytest

from talaria.net.fetch import CHUNK_BYTES, charset_of, decoded

GREETING = "Grüße, мир, 世界"


def read(body: bytes, said: str | None = None) -> str:
    return decoded(body, charset_of(body, said))


@pytest.mark.parametrize(
    ("body", "said", "text"),
    [
        (GREETING.encode(), None, GREETING),
        (GREETING.encode(), "utf-8", GREETING),
        (codecs.BOM_UTF8 + GREETING.encode(), "iso-8859-1", GREETING),
        (GREETING.encode("utf-16"), "utf-8", GREETING),
        (GREETING.encode("utf-16-be"), "UTF-16BE", GREETING),
        ("Grüße € “x”".encode("cp1252"), "ISO-8859-1", "Grüße € “x”"),
        ("Grüße € “x”".encode("cp1252"), None, "Grüße € “x”"),
        ("мир".encode("koi8-r"), "KOI8-R", "мир"),
        ("мир".encode("cp1251"), "windows-1251", "мир"),
        ("世界".encode("gbk"), "gb2312", "世界"),
        ("世界".encode("euc-jp"), "euc-jp", "世界"),
        (b"<meta charset=windows-1251><p>" + "мир".encode("cp1251"), None, "<meta charset=windows-1251><p>мир"),
        (b'<meta http-equiv=x content="text/html; charset=koi8-r">' + "мир".encode("koi8-r"), None, None),
        (b'<?xml version="1.0" encoding="iso-8859-2"?>' + "ł".encode("iso8859-2"), None, None),
        (b"<meta charset=utf-16><p>" + "ü".encode(), None, "<meta charset=utf-16><p>ü"),
        (b"<meta charset=koi8-r>" + "ü".encode(), "utf-8", "<meta charset=koi8-r>ü"),
        ("ü".encode(), "no-such-charset", "ü"),
        ("ü".encode()[:1], None, "\N{REPLACEMENT CHARACTER}"),
        (b"\xff\xfe\xfd", "utf-8", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_text_is_read_as_it_was_meant(body: bytes, said: str | None, text: str | None) -> None:
    found = read(body, said)
    assert found.endswith(("мир", "ł")) if text is None else found == text


@pytest.mark.parametrize(
    "said", ["punycode", "idna", "unicode_escape", "utf-7", "hex", "rot13", "zip", "undefined", "\0", "x" * 999]
)
def test_programs_that_pass_for_charsets_are_not_run(said: str) -> None:
    assert charset_of(b"abc", said) == "utf-8"


def test_sign_across_the_border_of_two_chunks_stays_whole() -> None:
    text = "x" * (CHUNK_BYTES - 1) + "世界"
    assert decoded(text.encode(), "utf-8") == text
