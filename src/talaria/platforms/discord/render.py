"""Renders markdown for Discord, whose own dialect has no tables, rules or images and three levels of headings; `__`
underlines, `||` hides, and mentions of people and channels become links."""

import re
from collections.abc import Callable, Sequence

from markdown_it.tree import SyntaxTreeNode

from talaria.platforms.markdown import align_table, parser
from talaria.platforms.splitting import cut_units, units

MAX_CHARS = 2000

_PARSER = parser()
_ADDRESS = re.compile(r"(https?://[^\s<>]+)")
_MARKS = re.compile(r"([\\*_~`|])")
_REFERENCES = re.compile(r"<(?=[@#]|a?:\w|t:-?\d|id:|/[\w -]+:\d)")
_CALLS = re.compile(r"@(?=everyone|here)", re.IGNORECASE)
_OPENINGS = re.compile(r"^([ \t]*)(#{1,3}|-#|[-+]|>{1,3})(?=[ \t])", re.MULTILINE)
_NUMBERS = re.compile(r"^([ \t]*\d+)\.(?=[ \t])", re.MULTILINE)
_LANGUAGE = re.compile(r"[\w+#-]{1,20}")
_JOINT = "\u200b"
"""A zero-width space: separates what Discord must not read as one."""


def content(text: str) -> str:
    """The message content for a text: rendered if that fits, otherwise as written, and cut if that is too long."""
    for form in (render(text), plain(text)):
        if units(form) <= MAX_CHARS:
            return form
    return cut_units(plain(text), 0, MAX_CHARS)


def plain(text: str) -> str:
    """The text as written, but without working mentions."""
    return _REFERENCES.sub("<" + _JOINT, _CALLS.sub("@" + _JOINT, text))


def render(text: str) -> str:
    return _blocks(SyntaxTreeNode(_PARSER.parse(text)).children)


def _blocks(nodes: Sequence[SyntaxTreeNode], between: str = "\n\n") -> str:
    return between.join(_block(node) for node in nodes)


def _block(node: SyntaxTreeNode) -> str:
    match node.type:
        case "heading":
            level = int(node.tag[1:])
            inline = _inline(node.children)
            return f"{'#' * level} {inline}" if level <= 3 else f"**{inline}**"
        case "bullet_list":
            return _list(node, lambda _: "- ")
        case "ordered_list":
            first = int(node.attrs.get("start", 1))
            return _list(node, lambda at: f"{first + at}. ")
        case "blockquote":
            return "\n".join(f"> {line}" for line in _blocks(node.children).split("\n"))
        case "fence" | "code_block":
            return _fence(node.content, node.info)
        case "table":
            rows = [[_words(cell) for cell in row.children] for part in node.children for row in part.children]
            return _fence(align_table(rows, joint="-|-"))
        case "hr":
            return "───"
        case _:
            return _NUMBERS.sub(r"\1\\.", _OPENINGS.sub(r"\1\\\2", _inline(node.children)))


def _list(node: SyntaxTreeNode, marker: Callable[[int], str]) -> str:
    is_loose = any(not part.hidden for item in node.children for part in item.children if part.type == "paragraph")
    items: list[str] = []
    for at, item in enumerate(node.children):
        mark = marker(at)
        lines = _blocks(item.children, "\n").split("\n")
        items.append("\n".join([mark + lines[0], *(f"{' ' * len(mark)}{line}" for line in lines[1:])]))
    return ("\n\n" if is_loose and len(items) > 1 else "\n").join(items)


def _fence(code: str, info: str = "") -> str:
    language = _LANGUAGE.match(info)
    body = code.replace("```", f"`{_JOINT}``").removesuffix("\n")
    return f"```{language[0] if language else ''}\n{body}\n```"


def _words(node: SyntaxTreeNode) -> str:
    """The text without markup."""
    match node.type:
        case "text" | "code_inline":
            return node.content
        case "softbreak" | "hardbreak":
            return " "
        case _:
            return "".join(_words(child) for child in node.children)


def _inline(nodes: Sequence[SyntaxTreeNode]) -> str:
    return "".join(_span(node) for node in nodes)


def _span(node: SyntaxTreeNode) -> str:
    match node.type:
        case "text":
            return _escape(node.content)
        case "softbreak" | "hardbreak":
            return "\n"
        case "code_inline":
            if "`" not in node.content:
                return f"`{node.content}`"
            return f"`` {node.content.replace('``', f'`{_JOINT}`')} ``"
        case "strong":
            return f"**{_inline(node.children)}**"
        case "em":
            return f"*{_inline(node.children)}*"
        case "s":
            return f"~~{_inline(node.children)}~~"
        case "link":
            return _link(_inline(node.children), str(node.attrs.get("href", "")))
        case "image":
            return _link(_escape(node.content), str(node.attrs.get("src", "")))
        case _:
            return _inline(node.children)


def _link(label: str, address: str) -> str:
    if not address.startswith(("http://", "https://")) or re.search(r"[\s<>]", address):
        return label
    return f"[{label}](<{address}>)" if label and label != address else f"<{address}>"


def _escape(text: str) -> str:
    """URLs are not escaped: Discord would take the backslashes for part of them."""
    parts = _ADDRESS.split(text)
    for at in range(0, len(parts), 2):
        parts[at] = _REFERENCES.sub(r"\\<", _CALLS.sub("@" + _JOINT, _MARKS.sub(r"\\\1", parts[at])))
    return "".join(parts)
