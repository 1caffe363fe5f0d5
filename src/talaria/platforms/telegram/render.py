"""Markdown as Telegram shows it: its HTML, which knows few tags and refuses whatever is not well-formed.

Written from the parser's tokens, whose beginnings and ends always match, so that no text can break it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape, unescape

from markdown_it.token import Token

from talaria.platforms.markdown import align_table, parser
from talaria.platforms.splitting import units

MAX_UNITS = 4096
_MAX_NESTING = 100
_PARSER = parser(maxNesting=_MAX_NESTING).disable("reference")  # it would swallow lines
_STYLES = {"strong": "b", "em": "i", "s": "s"}
_LANGUAGE = re.compile(r"[\w+#.-]{1,40}", re.ASCII)
_TAG = re.compile(r"<[^>]*>")


def render(text: str, max_units: int = MAX_UNITS) -> str | None:
    """None: it is better sent as it is, being too long or too deep, or nothing at all, once rendered."""
    tokens = _PARSER.parse(plain(text))
    if any(token.level >= _MAX_NESTING - 1 for token in tokens):
        return None  # the parser drops what is below
    html = _blocks(_tree(tokens)).strip()
    return html if 0 < units(visible(html).strip()) <= max_units else None


def plain(text: str) -> str:
    """For when Telegram cannot read what we rendered. Halves of characters would not even be sent."""
    return text.encode("utf-8", "replace").decode()


def visible(html: str) -> str:
    return unescape(_TAG.sub("", html))


class _Node:
    __slots__ = ("children", "name", "token")

    def __init__(self, token: Token) -> None:
        self.token = token
        self.name = token.type.removesuffix("_open")
        self.children: list[_Node] = []


def _tree(tokens: Iterable[Token]) -> list[_Node]:
    top: list[_Node] = []
    levels = [top]
    for token in tokens:
        if token.nesting < 0:
            levels.pop()
            continue
        node = _Node(token)
        levels[-1].append(node)
        if token.nesting > 0:
            levels.append(node.children)
    return top


def _blocks(nodes: Sequence[_Node], pad: str = "", between: str = "\n\n", *, is_quoted: bool = False) -> str:
    """`pad` stands before each line but the first; code keeps its own."""
    written = ((node, _block(node, pad, is_quoted=is_quoted)) for node in nodes)
    shown = [(node, html) for node, html in written if html]
    return "".join(
        html if at == 0 else between + ("" if _keeps_its_lines(node) else pad) + html
        for at, (node, html) in enumerate(shown)
    )


def _keeps_its_lines(node: _Node) -> bool:
    return node.name in ("fence", "code_block", "table")


def _block(node: _Node, pad: str, *, is_quoted: bool) -> str:
    match node.name:
        case "heading":
            inside = _inline(node.children[0].token, bold=True).replace("\n", " ")
            return f"<b>{inside}</b>" if inside else ""
        case "inline":
            return _inline(node.token).replace("\n", f"\n{pad}")
        case "fence" | "code_block":
            return _code(node.token)
        case "hr":
            return "———"
        case "table":
            return f"<pre>{escape(_table(node), quote=False)}</pre>"
        case "bullet_list" | "ordered_list":
            return _list(node, pad, is_quoted=is_quoted)
        case "blockquote" if not is_quoted:  # a quote in a quote is none
            inside = _blocks(node.children, pad, is_quoted=True)
            return f"<blockquote>{inside}</blockquote>" if inside else ""
        case _:
            return _blocks(node.children, pad, is_quoted=is_quoted)


def _list(node: _Node, pad: str, *, is_quoted: bool) -> str:
    first = node.token.attrGet("start") if node.name == "ordered_list" else None
    number = int(first) if first is not None else 1
    items: list[str] = []
    for at, item in enumerate(node.children):
        mark = f"{number + at}. " if node.name == "ordered_list" else "• "
        inside = _blocks(item.children, pad + "  ", "\n", is_quoted=is_quoted)
        items.append(mark + inside)
    return f"\n{pad}".join(items)


def _code(token: Token) -> str:
    content = escape(token.content.rstrip("\n"), quote=False)
    if not content:
        return ""
    language = _LANGUAGE.match(token.info.strip())
    if language is None:
        return f"<pre>{content}</pre>"
    return f'<pre><code class="language-{language[0]}">{content}</code></pre>'


def _table(table: _Node) -> str:
    rows = [[_cell(cell) for cell in row.children] for part in table.children for row in part.children]
    return align_table(rows)


def _cell(cell: _Node) -> str:
    return " ".join(visible(_inline(inline.token)) for inline in cell.children).replace("\n", " ")


def _inline(token: Token, *, bold: bool = False) -> str:
    """Not by recursion: emphasis may be nested hundreds of times. A style inside itself is written once."""
    out: list[str] = []
    depth: Counter[str] = Counter({"b": 1} if bold else {})
    link: tuple[int, str] | None = None
    for child in token.children or ():
        name, is_open, _ = child.type.partition("_open")
        name = name.removesuffix("_close")
        match name:
            case "strong" | "em" | "s":
                out.append(_style(_STYLES[name], depth, begins=bool(is_open)))
            case "link" if is_open:
                link = len(out), str(child.attrGet("href") or "")
            case "link" if link is not None:
                out[link[0] :] = [_link(link[1], "".join(out[link[0] :]))]
                link = None
            case "image":
                source = str(child.attrGet("src") or "")
                alt = escape(child.content, quote=False)
                out.append(alt if link is not None and alt else _link(source, alt))
            case "code_inline":
                out.append(f"<code>{escape(child.content, quote=False)}</code>")
            case "softbreak" | "hardbreak":
                out.append("\n")
            case _:
                out.append(escape(child.content, quote=False))
    return "".join(out)


def _style(tag: str, depth: Counter[str], *, begins: bool) -> str:
    depth[tag] += 1 if begins else -1
    if begins:
        return f"<{tag}>" if depth[tag] == 1 else ""
    return f"</{tag}>" if depth[tag] == 0 else ""


def _link(address: str, html: str) -> str:
    """Only to the web: `tg://` would mention people, and make them members of the talk."""
    shown = html or escape(address, quote=False)
    if address.startswith(("http://", "https://")):
        return f'<a href="{escape(address)}">{shown}</a>'
    is_told = address.removeprefix("mailto:") == visible(html) or not address or not html
    return shown if is_told else f"{shown} ({escape(address, quote=False)})"
