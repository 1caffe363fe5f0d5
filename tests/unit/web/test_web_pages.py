"""HTML becomes what a person would read, in markdown."""

import pytest

from talaria.tools.builtin.html_tokens import CHUNK_CHARS
from talaria.tools.builtin.web_pages import MAIN_CHARS, MAX_CHARS, convert_page

URL = "https://example.org/docs/start"
WORDS = "word " * (MAIN_CHARS // 4)


def markdown(html: str) -> str:
    return convert_page(html, URL).markdown


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<h1>One</h1><h2>T<i>w</i>o</h2><h3><div>Three</div></h3>text", "# One\n\n## Two\n\n### Three\n\ntext"),
        ("<p>a  b\n c<p>d<br>e</p>f", "a b c\n\nd\ne\n\nf"),
        ("<ul><li>a<li>b<ul><li>c</ul><li>d</ul>", "- a\n- b\n  - c\n- d"),
        ("<ol start=3><li>a<li>b</ol>", "3. a\n4. b"),
        ("<ol><li><p>a</p><p>b</p></ol>", "1. a\n  b"),
        ("<ul><li><ul><li>a</ul></ul>", "  - a"),
        ("<blockquote><p>a<p>b</blockquote>c", "> a\n\n> b\n\nc"),
        ("<pre class='x language-py'>a\n  &lt;b></pre>", "```py\na\n  <b>\n```"),
        ("<pre><code>``` `</code></pre>", "````\n``` `\n````"),
        ("<p>see <code>a &lt; `b`</code></p>", "see `` a < `b` ``"),
        ("<p>a <b> b </b>c <strong></strong>d", "a **b** c d"),
        ("<a href=x>rel</a>", "[rel](https://example.org/docs/x)"),
        ("<base href='/other/'><a href=x>rel</a>", "[rel](https://example.org/other/x)"),
        ("<a href='//h.org/a b(c)'>x</a>", "[x](https://h.org/a%20b%28c%29)"),
        ("<a href='javascript:alert(1)'>x</a><a href='data:text/html,y'> y</a><a href=#z> z</a><a> w</a>", "x y z w"),
        ("<a href='http://[bad/'>x</a>", "x"),
        ("<a href=1>a<a href=2>b</a>", "[a](https://example.org/docs/1)[b](https://example.org/docs/2)"),
        ("<a href=1><h3>T</h3><p>d</p></a>", "### [T](https://example.org/docs/1)\n\nd"),
        ("<p><img src=x alt='A cat'> <a href=y><img alt=Go></a>", "A cat [Go](https://example.org/docs/y)"),
        ("<table><tr><th>A<th>B<tr><td>1|2<td><p>x</p><p>y</p></table>", "| A | B |\n|---|---|\n| 1\\|2 | x y |"),
        ("<table><caption>C</caption><tr><td>only</table>", "C\n\nonly"),
        ("<table><tr><td>a<table><tr><td>b</table></table>c", "a\n\nb\n\nc"),
        ("<table><tr><td><div>a</td><td>b</div></td><tr><td>c<td>d</table>", "| a | b |\n|---|---|\n| c | d |"),
        (
            "a<script>b</script>c<style>d</style>e<noscript>f</noscript><template>g</template><svg><title>h</title></svg>",
            "a c e",
        ),
        ("<p>a</p><nav>b</nav><aside>c</aside><footer>d</footer><button>e</button><select><option>f</select>", "a"),
        ("<div role=navigation>a</div><div role=search>b</div><p>c", "c"),
        ("<header>site</header><article><header><h1>T</h1></header>x</article>", "# T\n\nx"),
        ("<div><nav>a</div><p>b", "b"),
        ("<div><table><tr><td>a</div><td>b<tr><td>c<td>d</table></div>", "| a | b |\n|---|---|\n| c | d |"),
        ("<pre>a<ul><li>b<table><tr><td>c</table>d</pre><p>e", "```\na\nb\ncd\n```\n\ne"),
        ("a<p hidden>b<p>c<span style='DISPLAY : none'>d</span><i aria-hidden=true>e</i>", "a\n\nc"),
        ("<nav>only <a href=/x>a menu</a></nav>", "only [a menu](https://example.org/x)"),
        ("<dl><dt>a<dd>b</dl>", "a\n\nb"),
        ("<nav><ul><li>x</ul></nav><ul><li>a</ul>", "- a"),
        ("&lt;<span>script>", "&lt;script>"),
        ("&lt;script&gt; 1 &lt; 2 &amp;amp; &nbsp;&eacute;&#233;&#xE9;", "&lt;script> 1 < 2 &amp; ééé"),
        ("<<p>a</ b><b</b>>", "&lt;\n\na>"),
        ("a<!-- b --><!-->c<!--->d<![CDATA[x]]>e<?php f ?>g</>", "acdeg"),
        ("x < y <3", "x < y <3"),
        ("<p title='a>b' class=c>d</p >e", "d\n\ne"),
        ("<a href='x>broken", "broken"),
        ("text<scr<script>ipt>alert(1)", "textipt>alert(1)"),
    ],
)
def test_markdown_of(html: str, text: str) -> None:
    assert markdown(html) == text


def test_title_is_that_of_the_page() -> None:
    html = "<svg><title>icon</title></svg><title> A &amp;\n B </title><title>second</title><p>x"
    assert convert_page(html, URL).title == "A & B"


@pytest.mark.parametrize("main", ["<main>{}</main>", "<div role=main>{}</div>", "<article>{}</article>"])
def test_main_part_is_preferred(main: str) -> None:
    html = "<div>before</div>" + main.format(f"<p>{WORDS}") + "<div>after</div>"
    assert markdown(html) == WORDS.strip()


def test_main_part_that_says_nothing_is_not_believed() -> None:
    assert markdown("<p>before<main>x</main><p>after") == "before\n\nx\n\nafter"


def test_reference_with_thousands_of_digits_is_text() -> None:
    html = "&#" + "9" * 5_000 + ";"
    assert markdown(html) == html


@pytest.mark.parametrize("before", range(CHUNK_CHARS - 6, CHUNK_CHARS + 2))
def test_tags_and_references_across_the_border_of_two_chunks_stay_whole(before: int) -> None:
    assert markdown("x" * before + "<i>&amp;</i>&eacute;") == "x" * before + "&é"


def test_what_is_too_long_is_cut_and_said_to_be() -> None:
    found = convert_page("<p>" + "word " * 300_000, URL)
    assert (len(found.markdown), found.is_cut) == (MAX_CHARS, True)
    assert not convert_page("<p>word", URL).is_cut
