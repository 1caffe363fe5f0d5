"""A conversation as one self-contained page. Its content is not trusted: all of it is escaped, and the page may neither
run nor load anything."""

import base64
import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from itertools import groupby
from string import Template
from typing import assert_never

from markdown_it import MarkdownIt
from markdown_it.token import Token

from talaria import __version__
from talaria.cli.safe import brief, readable, visible
from talaria.cli.sessions.remarks import remark_on
from talaria.cli.tool_outcomes import outcome
from talaria.core.entries import Entry, MessageAdded, Recorded, TurnEnded
from talaria.core.ids import CallId
from talaria.core.messages import Assistant, Context, Image, Outcome, Text, Thinking, ToolCall, ToolResult, User
from talaria.core.text import show_time
from talaria.store.base import Session

MAX_SUMMARY_CHARS = 90
MAX_OUTCOME_CHARS = 24
"""As in `killed by SIGSEGV`; longer ones are in the result."""

_LINKED = re.compile(r"https?://|mailto:", re.IGNORECASE)
_PICTURE = re.compile(r"image/(png|jpeg|gif|webp)")
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")

Results = Mapping[CallId, ToolResult]


def page(row: Session, entries: Sequence[Recorded]) -> str:
    results = {
        one.entry.message.call_id: one.entry.message
        for one in entries
        if isinstance(one.entry, MessageAdded) and isinstance(one.entry.message, ToolResult)
    }
    rendered = [(one.at, *_render(one.entry, results)) for one in entries]
    articles: list[str] = []
    for speaker, group in groupby((one for one in rendered if one[2]), key=lambda one: one[1]):
        shown = [(show_time(at), html) for at, _, html in group]
        match speaker:
            case "You" | "Note to the turn":
                for at, html in shown:
                    articles.append(f'<article class="person"><h2>{speaker} <time>{at}</time></h2>{html}</article>')
            case "Talaria":  # one article for all that it says and does until somebody else speaks
                said = "\n".join(html for _, html in shown)
                articles.append(f"<article><h2>{speaker} <time>{shown[0][0]}</time></h2>{said}</article>")
            case _:
                articles += [html for _, html in shown]
    tokens = f"{row.usage.total:,} tokens" if row.usage.total else ""
    facts = (show_time(row.created_at), row.model, f"{row.message_count:,} messages", tokens, row.id)
    style = _file("page.css")
    return Template(_file("page.html")).substitute(
        style=style,
        style_hash=f"sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}",
        version=__version__,
        title=_plain(" ".join((row.title or row.preview or "A conversation").split())),
        facts="".join(f"<span>{_plain(fact)}</span>" for fact in facts if fact),
        body="\n".join(articles),
        today=show_time(time.time()),
    )


def _render(entry: Entry, results: Results) -> tuple[str, str]:
    """Who speaks, if anybody, and the entry as HTML; empty if nothing is shown."""
    match entry:
        case MessageAdded(User(_, "host")):
            return "You", ""
        case MessageAdded(User(parts, author)):
            html = ""
            for part in parts:
                match part:
                    case Text(text):
                        html += f'<div class="said" dir="auto">{_plain(text)}</div>'
                    case Image():
                        html += _picture(part)
                    case Context():
                        pass
                    case _:
                        assert_never(part)
            return "Note to the turn" if author == "steering" else "You", html
        case MessageAdded(Assistant(parts)):
            return "Talaria", "".join(_model_part(part, results) for part in parts)
        case MessageAdded(ToolResult()):
            return "Talaria", ""  # shown with its call
        case _:
            remark = remark_on(entry)
            kind = "remark wrong" if isinstance(entry, TurnEnded) else "remark"
            return "", f'<p class="{kind}">{_plain(remark)}</p>' if remark else ""


def _model_part(part: Text | Thinking | ToolCall, results: Results) -> str:
    match part:
        case Text(text):
            return f'<div class="text" dir="auto">{_PARSER.render(readable(text))}</div>' if text.strip() else ""
        case Thinking(text):
            return _fold("Thinking", _plain(text), "thinking") if text.strip() else ""
        case ToolCall():
            result = results.get(part.id)
            how = Outcome() if result is None else outcome(result)
            words = f": {how.words}" if 0 < len(how.words) <= MAX_OUTCOME_CHARS else ""
            mark = "" if how.kind == "done" else f' <span class="wrong">{_plain(f"{how.kind}{words}")}</span>'
            shown = "" if result is None else f"<pre>{_plain(result.text)}</pre>{''.join(map(_picture, result.images))}"
            summary = f"<b>{_plain(part.name)}</b>{mark} {_plain(visible(brief(part.arguments, MAX_SUMMARY_CHARS)))}"
            return _fold(summary, f"<pre>{_plain(visible(part.arguments))}</pre>{shown}", "call")
        case _:
            assert_never(part)


def _fold(summary: str, content: str, kind: str) -> str:
    return f'<details class="{kind}"><summary>{summary}</summary><div dir="auto">{content}</div></details>'


def _picture(image: Image) -> str:
    if not _PICTURE.fullmatch(image.media_type) or not _BASE64.fullmatch(image.data):
        return '<p class="remark">A picture that cannot be shown.</p>'
    return f'<img alt="A picture" src="data:{image.media_type};base64,{image.data}">'


def _plain(text: str) -> str:
    return escape(readable(text))


def _make_harmless(tokens: Sequence[Token]) -> None:
    """Pictures become their text, because loading one tells its owner who looks. Links send no referrer."""
    for token in tokens:
        token.attrs.pop("style", None)  # of table cells; the page allows one style, its own
        if token.type == "link_open":
            token.attrSet("rel", "noreferrer noopener")
        if token.type == "image":
            token.type, token.children = "text", None
            token.content = token.content or str(token.attrGet("src") or "")
        _make_harmless(token.children or ())


_PARSER = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
_PARSER.validateLink = lambda url: _LINKED.match(url) is not None
_PARSER.core.ruler.push("harmless", lambda state: _make_harmless(state.tokens))


def _file(name: str) -> str:
    return (resources.files("talaria.cli.sessions") / name).read_text("utf-8")
