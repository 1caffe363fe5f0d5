import pytest

from talaria.core.errors import ToolFailed
from talaria.net.urls import parse_url


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://Example.ORG", "http://example.org/"),
        ("  https://example.org./a b?q=ü&x=1#frag ", "https://example.org/a%20b?q=%C3%BC&x=1"),
        ("https://example.org:443/%41", "https://example.org/%41"),
        ("http://example.org:8080?x", "http://example.org:8080/?x"),
        ("HTTP://[2606:4700:0:0::1111]/", "http://[2606:4700::1111]/"),
        ("http://[::1]:81/", "http://[::1]:81/"),
        ("http://Bücher.example/", "http://xn--bcher-kva.example/"),
        ("http://\N{FULLWIDTH DIGIT ONE}\N{FULLWIDTH DIGIT TWO}7.0.0.1/", "http://127.0.0.1/"),
        ("http://example。org/", "http://example.org/"),
        ("http://example.org/\ud800", "http://example.org/" + "%EF%BF%BD" * 3),
        ("http://a1.b2/", "http://a1.b2/"),
    ],
)
def test_address_has_one_form(text: str, url: str) -> None:
    assert str(parse_url(text)) == url
    assert parse_url(url) == parse_url(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "example.org", "//example.org/", "/path", "http:", "http:example.org", "http:/example.org", "http://"),
        *(
            "file:///etc/passwd",
            "gopher://example.org/",
            "ftp://example.org/",
            "javascript:alert(1)",
            "data:text/html,x",
        ),
        *(
            "http://user@example.org/",
            "http://user:pw@example.org/",
            "http://example.org@evil.org/",
            "http://@example.org/",
        ),
        *(
            "http://example.org\0.evil.org/",
            "http://exa mple.org/",
            "http://example.org\t/",
            "http://example.org/\r\nX: y",
        ),
        *(
            "http://example.org\\@evil.org/",
            "http://example.org\\.evil.org/",
            "http://exa%6dple.org/",
            "http://a_b.org/",
            "http://example.org\ud800/",
        ),
        *(
            "http://-a.org/",
            "http://a-.org/",
            "http://a..org/",
            "http://.org/",
            "http://./",
            "http://" + "a." * 127 + "aa/",
        ),
        *("http://" + "a" * 64 + ".org/", "http://" + "ü" * 300 + "/", "http://\N{SNOWMAN}\N{ZERO WIDTH JOINER}.org/"),
        *("http://127.1/", "http://2130706433/", "http://0x7f000001/", "http://0x7f.0.0.1/", "http://017700000001/"),
        *("http://127.0.0.01/", "http://1.2.3.4.5/", "http://256.0.0.1/", "http://example.0x/", "http://example.1/"),
        *(
            "http://[::1/",
            "http://::1/",
            "http://[::1]x/",
            "http://x[::1]/",
            "http://[fe80::1%25eth0]/",
            "http://[1.2.3.4]/",
        ),
        *("http://example.org:0/", "http://example.org:65536/", "http://example.org:x/", "http://example.org:123456/"),
        *("http://example.org:80:80/", "http://example.org/" + "a" * 9_000),
    ],
)
def test_what_is_no_address_of_a_page_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ToolFailed) as told:
        parse_url(text)
    sentence = str(told.value)
    assert sentence.endswith(".")
    assert not set(sentence) & set("\n\r\0")
    assert len(sentence) < 400
    assert "pw" not in sentence


def test_address_with_a_password_is_refused_for_that() -> None:
    with pytest.raises(ToolFailed) as told:
        parse_url("http://user:pw@example.org/")
    assert str(told.value) == "Addresses that contain a user name or password are not fetched."


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("/b", "https://example.org/b"),
        ("c?d", "https://example.org/a/c?d"),
        ("//other.org", "https://other.org/"),
        ("http://other.org/x y", "http://other.org/x%20y"),
        ("", "https://example.org/a/b?q"),
        ("/\udcfc", "https://example.org/" + "%EF%BF%BD" * 3),
    ],
)
def test_redirect_leads_from_where_it_stands(location: str, url: str) -> None:
    assert str(parse_url("https://example.org/a/b?q").join(location)) == url


@pytest.mark.parametrize(
    "location", ["http://[x/", "file:///etc/passwd", "//user@example.org/", "//127.1/", "http://\0/"]
)
def test_redirect_to_no_page_is_refused(location: str) -> None:
    with pytest.raises(ToolFailed):
        parse_url("https://example.org/").join(location)
