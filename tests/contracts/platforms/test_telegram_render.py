"""Markdown becomes HTML that Telegram takes, whatever the model wrote."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talaria.platforms.splitting import units
from talaria.platforms.telegram.render import MAX_UNITS, plain, render
from talaria.testing.servers.telegram_chats import CannotParse, parse_html

LINK = '<a href="https://e.org/?a=1&amp;b=%22">'


@pytest.mark.parametrize(
    ("markdown", "html"),
    [
        ("plain", "plain"),
        ("# Head **bold**", "<b>Head bold</b>"),
        ("**b** *i* ~~s~~ `c<d>`", "<b>b</b> <i>i</i> <s>s</s> <code>c&lt;d&gt;</code>"),
        ("**b *bi **deep** x* b**", "<b>b <i>bi deep x</i> b</b>"),
        ("a < b & c > d <b>x</b> &amp; &lt;", "a &lt; b &amp; c &gt; d &lt;b&gt;x&lt;/b&gt; &amp; &lt;"),
        (
            "```py x\nif a < b:\n\n\n    pass\n```",
            '<pre><code class="language-py">if a &lt; b:\n\n\n    pass</code></pre>',
        ),
        ('```"><b>\nx\n```', "<pre>x</pre>"),
        ("```\nnever closed **x**", "<pre>never closed **x**</pre>"),
        ("- a\n- b\n  - c\n\n    more\n- d", "• a\n• b\n  • c\n    more\n• d"),
        ("3. a\n4. b", "3. a\n4. b"),
        ("- a\n  ```\n  x\n    y\n  ```", "• a\n<pre>x\n  y</pre>"),
        ("> a\n> > b\n\nc", "<blockquote>a\n\nb</blockquote>\n\nc"),
        ('[x](https://e.org/?a=1&b=")', f"{LINK}x</a>"),
        ("[**x**](https://e.org)", '<a href="https://e.org"><b>x</b></a>'),
        ("[](https://e.org)", '<a href="https://e.org">https://e.org</a>'),
        ("![alt](https://e.org/?beacon)", '<a href="https://e.org/?beacon">alt</a>'),
        ("[![alt](https://e.org/i)](https://e.org)", '<a href="https://e.org">alt</a>'),
        ("![](https://e.org/i)", '<a href="https://e.org/i">https://e.org/i</a>'),
        ("[x](tg://user?id=5)", "x (tg://user?id=5)"),
        ("[x](file.md)", "x (file.md)"),
        ("<a@e.org>", "a@e.org"),
        ("[x](javascript:alert)", "[x](javascript:alert)"),
        ("[ref]: https://e.org", "[ref]: https://e.org"),
        ("a\nb  \nc\n\n---\n\nd", "a\nb\nc\n\n———\n\nd"),
        ("| a | b |\n|---|---|\n| **1** | 22 |", "<pre>a | b\n--+---\n1 | 22</pre>"),
        ("**never closed", "**never closed"),
        ("*a **b* c**", "<i>a b c</i>"),
    ],
)
def test_markdown_is_shown_as_telegram_can(markdown: str, html: str) -> None:
    assert render(markdown) == html
    parse_html(html)


@pytest.mark.parametrize(
    "text",
    ["", "   \n ", "```\n```", "x" * (MAX_UNITS + 1), "🦉" * (MAX_UNITS // 2 + 1), "top\n\n" + ">" * 120 + " deep"],
)
def test_what_cannot_be_rendered_is_sent_as_it_is(text: str) -> None:
    assert render(text) is None
    assert plain(text) == text


def test_emphasis_may_be_nested_without_end() -> None:
    html = render("*" * 1500 + "a" + "*" * 1500)
    assert html is not None
    assert "a" in parse_html(html)[0]


def test_halves_of_characters_do_not_stop_a_message() -> None:
    assert render("a\ud800b") == "a?b"


SPANS = st.sampled_from(["*", "**", "_", "~~", "`", "```", "[", "](", ")", "![", "<b>", "</b>", "<!--", "&lt;", "\\"])
SIGNS = st.sampled_from(
    ["<", ">", "&", '"', "~", "=", "-", "#", "|", "1.", "---", "http://e.org", "\t", "    ", "\x00"]
)
BLOCKS = st.sampled_from(["\n", "\n\n", "\n> ", "\n- ", "\n  - ", "\n1. ", "\n# ", "\n```\n", "\n|---|---|\n"])
MARKUP = SPANS | SIGNS | BLOCKS
WORDS = st.from_regex(r"w[0-9]{4}w", fullmatch=True)


@settings(deadline=None)
@given(st.lists(MARKUP | WORDS | st.characters(), max_size=60).map("".join))
def test_whatever_is_rendered_telegram_can_read_and_is_short_enough(text: str) -> None:
    html = render(text)
    if html is not None:
        shown, _ = parse_html(html)
        assert 0 < units(shown.strip()) <= MAX_UNITS


@settings(deadline=None)
@given(st.lists(MARKUP.filter(lambda mark: "](" not in mark and "```" not in mark) | WORDS, max_size=60))
def test_every_word_survives(parts: list[str]) -> None:
    html = render(" ".join(parts))
    if html is not None:
        shown, _ = parse_html(html)
        assert [part for part in parts if part.startswith("w") and part not in shown] == []


@pytest.mark.parametrize(
    ("html", "complaint"),
    [
        ("<b>x", "Can't find end tag"),
        ("<x>x</x>", 'Unsupported start tag "x"'),
        ("<b><i>x</b></i>", "Unmatched end tag"),
        ("x</b>", "Unexpected end tag"),
        ("a < b", "Unsupported start tag"),
        ("a <b", "Unclosed start tag"),
        ('<a href="x>y</a>', "Unclosed|attribute"),
        ("<span>x</span>", "tg-spoiler"),
        ("<!-- x -->", "Unsupported start tag"),
    ],
)
def test_the_server_refuses_what_telegram_refuses(html: str, complaint: str) -> None:
    with pytest.raises(CannotParse, match=complaint):
        parse_html(html)


def test_the_server_counts_entities_in_units() -> None:
    assert parse_html("🦉<b>&amp;x</b>") == ("🦉&x", [{"type": "bold", "offset": 2, "length": 2}])
