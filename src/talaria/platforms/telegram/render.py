"""Renders markdown as Telegram's HTML, which has few tags and must be well-formed.

It is built from the parser's tokens, whose open and close tags always match, so no text can break it.
"""

import re
from collections import Counter
from collections.abc import Sequence
from html import escape, unescape

from markdown_it.token import Token

from talaria.platforms.markdown import align_table, parser
from talaria.platforms.splitting import units

MAX_UNITS = 4096
_MAX_NESTING = 100
_PARSER = parser(maxNesting=_MAX_NESTING).disable("reference")  # reference definitions would vanish from the text
_STYLES = {"strong": "b", "em": "i", "s": "s"}
_LANGUAGE = re.compile(r"[\w+#.-]{1,40}", re.ASCII)
_TAG = re.compile(r"<[^>]*>")


def render(text: str, max_units: int = MAX_UNITS) -> str | None:
    """None if the result would be too long, nested too deeply or blank: then send the text as it is."""
    tokens = _PARSER.parse(plain(text))
    if any(token.level >= _MAX_NESTING - 1 for token in tokens):
        return None  # the parser drops deeper levels
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
    html = _blocks(top).strip()
    return html if 0 < units(visible(html).strip()) <= max_units else None


def plain(text: str) -> str:
    """The text without lone surrogates, which cannot be sent. Used when Telegram refuses the HTML."""
    return text.encode("utf-8", "replace").decode()


def visible(html: str) -> str:
    return unescape(_TAG.sub("", html))


class _Node:
    __slots__ = ("children", "name", "token")

    def __init__(self, token: Token) -> None:
        self.token = token
        self.name = token.type.removesuffix("_open")
        self.children: list[_Node] = []


def _blocks(nodes: Sequence[_Node], pad: str = "", between: str = "\n\n", *, is_quoted: bool = False) -> str:
    """Each line but the first is indented by `pad`, except in code and tables."""
    out = ""
    for node in nodes:
        html = _block(node, pad, is_quoted=is_quoted)
        indent = "" if node.name in ("fence", "code_block", "table") else pad
        if html:
            out += f"{between}{indent}{html}" if out else html
    return out


def _block(node: _Node, pad: str, *, is_quoted: bool) -> str:
    match node.name:
        case "heading":
            inside = _inline(node.children[0].token, bold=True).replace("\n", " ")
            return f"<b>{inside}</b>" if inside else ""
        case "inline":
            return _inline(node.token).replace("\n", f"\n{pad}")
        case "fence" | "code_block":
            content = escape(node.token.content.rstrip("\n"), quote=False)
            language = _LANGUAGE.match(node.token.info.strip())
            if content and language:
                content = f'<code class="language-{language[0]}">{content}</code>'
            return f"<pre>{content}</pre>" if content else ""
        case "hr":
            return "———"
        case "table":
            rows = [[_cell(cell) for cell in row.children] for part in node.children for row in part.children]
            return f"<pre>{escape(align_table(rows), quote=False)}</pre>"
        case "bullet_list" | "ordered_list":
            first = node.token.attrGet("start")
            number = 1 if first is None else int(first)
            items: list[str] = []
            for at, item in enumerate(node.children):
                mark = f"{number + at}. " if node.name == "ordered_list" else "• "
                items.append(mark + _blocks(item.children, pad + "  ", "\n", is_quoted=is_quoted))
            return f"\n{pad}".join(items)
        case "blockquote" if not is_quoted:  # Telegram does not allow nested quotes
            inside = _blocks(node.children, pad, is_quoted=True)
            return f"<blockquote>{inside}</blockquote>" if inside else ""
        case _:
            return _blocks(node.children, pad, is_quoted=is_quoted)


def _cell(cell: _Node) -> str:
    return " ".join(visible(_inline(inline.token)) for inline in cell.children).replace("\n", " ")


def _inline(token: Token, *, bold: bool = False) -> str:
    """Not recursive, because emphasis may be nested hundreds of times. A style inside itself is written once."""
    out: list[str] = []
    depth: Counter[str] = Counter({"b": 1} if bold else {})
    link: tuple[int, str] | None = None
    for child in token.children or ():
        name, is_open, _ = child.type.partition("_open")
        name = name.removesuffix("_close")
        match name:
            case "strong" | "em" | "s":
                tag = _STYLES[name]
                depth[tag] += 1 if is_open else -1
                if depth[tag] == (1 if is_open else 0):
                    out.append(f"<{tag}>" if is_open else f"</{tag}>")
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


def _link(address: str, html: str) -> str:
    """Only web addresses become links: `tg://` would mention people and draw them into the chat."""
    shown = html or escape(address, quote=False)
    if address.startswith(("http://", "https://")):
        return f'<a href="{escape(address)}">{shown}</a>'
    is_shown = address.removeprefix("mailto:") == visible(html) or not address or not html
    return shown if is_shown else f"{shown} ({escape(address, quote=False)})"
