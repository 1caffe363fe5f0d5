"""Any bytes at all become bounded text without raw markup, at a cost in proportion to their length."""

import re
import sys
import time
from collections.abc import Sequence
from types import FrameType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from talaria.net.fetch import Fetched
from talaria.tools.builtin import web_pages
from talaria.tools.builtin.html_tokens import tokens
from talaria.tools.builtin.web_content import feed, readable

URL = "https://example.org/"
NAMES = [
    *(
        "a",
        "b",
        "p",
        "div",
        "ul",
        "ol",
        "li",
        "table",
        "tr",
        "td",
        "th",
        "h1",
        "h2",
        "main",
        "article",
        "nav",
        "header",
    ),
    *("svg", "title", "textarea", "blockquote", "br", "img", "script", "style", "template", "base", "form", "select"),
    *("option", "noscript", "iframe", "dl", "dt"),
]
CODE = ("pre", "code")

texts = st.sampled_from(
    [
        "text",
        " ",
        "\n",
        "&lt;",
        "&amp;lt;",
        "&#60;",
        "&#x3c;",
        "<",
        ">",
        "/",
        "script",
        "&",
        "`",
        "[x](y)",
        "|",
        "alert(1)",
    ]
)
attributes = st.sampled_from(
    [
        "",
        " href=x",
        " href='/a b'",
        ' href="//[',
        " hidden",
        " style=display:none",
        " role=main",
        " alt='<script>'",
        " start=9",
        "=",
    ]
)
odd = st.sampled_from(
    ["<!--", "-->", "<![CDATA[", "]]>", "<?", "<!", "</", "<scr", "<SCRIPT", "<p", "'", '"', "\0", "\ud800"]
)


@st.composite
def soup(draw: st.DrawFn, names: Sequence[str]) -> str:
    """Elements in each other, and pieces of elements anywhere between them."""
    kinds = st.sampled_from(["open", "open", "close", "text", "text", "odd", "start", "end"])
    pieces: list[str] = []
    stack: list[str] = []
    for kind in draw(st.lists(kinds, max_size=40)):
        name = draw(st.sampled_from(names)) if kind in ("open", "start", "end") else ""
        match kind:
            case "open":
                stack.append(name)
                pieces.append(f"<{name}{draw(attributes)}>")
            case "close":
                pieces.append(f"</{stack.pop()}>" if stack else "")
            case "start":
                pieces.append(f"<{name}{draw(attributes)}>")
            case "end":
                pieces.append(f"</{name}>")
            case _:
                pieces.append(draw(texts if kind == "text" else odd))
    return "".join(pieces)


def fetched(body: bytes, media_type: str = "text/html") -> Fetched:
    return Fetched(URL, 200, media_type, "utf-8", body, is_cut=False)


@given(html=soup(NAMES))
@example(html="&lt;<img>script>")
def test_no_markup_gets_through(html: str) -> None:
    page = web_pages.page(html, URL)
    assert not re.search(r"<(?=[a-zA-Z/!?])", page.markdown)


@given(html=soup([*NAMES, *CODE]))
def test_soup_becomes_bounded_text(html: str) -> None:
    page = web_pages.page(html, URL)
    links = len(re.findall(r"\]\(", page.markdown))
    assert len(page.markdown) <= 10 * len(html) + links * len(URL)
    assert "\0" not in readable(fetched(html.encode("utf-8", "replace"))).text


@given(body=st.binary(), media_type=st.sampled_from(["text/html", "", "application/rss+xml", "text/plain", "x/y"]))
def test_any_bytes_can_be_shown(body: bytes, media_type: str) -> None:
    text = readable(fetched(body, media_type)).text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", text)


@given(html=soup([*NAMES, "item", "entry", "link", "rss", "feed"]))
def test_any_soup_is_a_feed_of_some_kind(html: str) -> None:
    assert len(feed(html)) <= 20 * len(html) + 100


@given(text=st.text(alphabet=st.characters(exclude_characters="<&"), max_size=200))
def test_text_without_markup_is_kept_as_it_is(text: str) -> None:
    assert "".join(token for token in tokens(text) if isinstance(token, str)) == text


HOSTILE = {
    "deep": "<div>",
    "deep inline": "<b><a href=x>y",
    "lists": "<ul><li>x",
    "quotes": "<blockquote>x",
    "tables": "<table><tr><td>x",
    "cells": "<td>x<tr>",
    "ends": "</div></p></x>",
    "mixed ends": "<div><p></div></table>",
    "comments": "<!--",
    "declarations": "<!",
    "tags": "<a ",
    "values": '<a href="',
    "attributes": "a=b ",
    "references": "&amp",
    "hidden": "<p hidden>",
    "pre": "<pre>x",
    "titles": "<title>",
    "paragraphs": "<p>x",
}


def calls_of(html: str) -> int:
    """How many functions are called for it: a measure of time that does not depend on the machine."""
    count = 0

    def tally(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(tally)
    try:
        web_pages.page(html, URL)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", HOSTILE)
def test_twice_the_page_is_twice_the_work(name: str) -> None:
    prefix = "<a " if name == "attributes" else ""
    once, twice = (calls_of(prefix + HOSTILE[name] * times) for times in (2_000, 4_000))
    assert twice <= 2.1 * once + 1_000


SHORT = ["deep", "comments"]
LONG = [pytest.param(name, marks=pytest.mark.long) for name in HOSTILE if name not in SHORT]


@pytest.mark.parametrize("name", [*SHORT, *LONG])
def test_ten_megabytes_of_it_end(name: str) -> None:
    """Quadratic work would take hours; the limit is far from both."""
    prefix = "<a " if name == "attributes" else ""
    began = time.process_time()
    page = web_pages.page(prefix + HOSTILE[name] * ((10 << 20) // len(HOSTILE[name])), URL)
    assert time.process_time() - began < 60
    assert len(page.markdown) <= web_pages.MAX_CHARS


def test_a_hundred_thousand_levels_are_read_to_the_bottom() -> None:
    page = web_pages.page("<div>" * 100_000 + "bottom" + "</div>" * 100_000 + "after", URL)
    assert page.markdown == "bottom\n\nafter"
