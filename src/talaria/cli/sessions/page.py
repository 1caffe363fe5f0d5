"""A conversation as one page that needs nothing else. What is in it was written by anybody: all of it is escaped, and
the page may neither run nor load anything.
"""

import base64
import hashlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib import resources
from itertools import groupby
from string import Template
from typing import assert_never

from markdown_it import MarkdownIt
from markdown_it.token import Token

from talaria import __version__
from talaria.cli.safe import brief, readable, visible
from talaria.cli.sessions.remarks import remark_on, when
from talaria.cli.tool_outcomes import outcome
from talaria.core.entries import MessageAdded, Recorded, TurnEnded
from talaria.core.ids import CallId
from talaria.core.messages import Assistant, Context, Image, Outcome, Text, Thinking, ToolCall, ToolResult, User
from talaria.store.base import Session

MAX_SUMMARY_CHARS = 90
MAX_OUTCOME_CHARS = 24
"""`killed by SIGSEGV`; what is longer is in the result."""

_LINKED = re.compile(r"https?://|mailto:", re.IGNORECASE)
_PICTURE = re.compile(r"image/(png|jpeg|gif|webp)")
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")

Results = Mapping[CallId, ToolResult]


def page(row: Session, entries: Sequence[Recorded]) -> str:
    style = _file("page.css")
    return Template(_file("page.html")).substitute(
        style=style,
        style_hash=f"sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}",
        version=__version__,
        title=_plain(" ".join((row.title or row.preview or "A conversation").split())),
        facts="".join(f"<span>{_plain(fact)}</span>" for fact in _facts(row)),
        body="\n".join(_articles(entries)),
        today=when(time.time()),
    )


def _facts(row: Session) -> Iterator[str]:
    yield when(row.created_at)
    if row.model:
        yield row.model
    yield f"{row.message_count:,} messages"
    if row.usage.total:
        yield f"{row.usage.total:,} tokens"
    yield row.id


def _articles(entries: Sequence[Recorded]) -> Iterator[str]:
    """What the model says and does until somebody else speaks is one."""
    results = {
        one.entry.message.call_id: one.entry.message
        for one in entries
        if isinstance(one.entry, MessageAdded) and isinstance(one.entry.message, ToolResult)
    }
    shown = [(one, _content(one, results)) for one in entries]
    for who, group in groupby(((one, text) for one, text in shown if text), key=lambda pair: _speaker(pair[0])):
        parts = list(group)
        at = _plain(when(parts[0][0].at))
        match who:
            case "You" | "Note to the turn":
                for one, text in parts:
                    yield f'<article class="person"><h2>{who} <time>{when(one.at)}</time></h2>{text}</article>'
            case "Talaria":
                said = "\n".join(text for _, text in parts)
                yield f"<article><h2>{who} <time>{at}</time></h2>{said}</article>"
            case _:
                yield from (text for _, text in parts)


def _speaker(recorded: Recorded) -> str:
    match recorded.entry:
        case MessageAdded(User(_, author)):
            return "Note to the turn" if author == "steering" else "You"
        case MessageAdded():
            return "Talaria"
        case _:
            return ""


def _content(recorded: Recorded, results: Results) -> str:
    match recorded.entry:
        case MessageAdded(User(parts, author)):
            return "" if author == "host" else "".join(_person_part(part) for part in parts)
        case MessageAdded(Assistant(parts)):
            return "".join(_model_part(part, results) for part in parts)
        case MessageAdded(ToolResult()):
            return ""  # with its call
        case entry:
            remark = remark_on(entry)
            kind = "remark wrong" if isinstance(entry, TurnEnded) else "remark"
            return f'<p class="{kind}">{_plain(remark)}</p>' if remark else ""


def _person_part(part: Text | Context | Image) -> str:
    match part:
        case Text(text):
            return f'<div class="said" dir="auto">{_plain(text)}</div>'
        case Image():
            return _picture(part)
        case Context():
            return ""
        case _:
            assert_never(part)


def _model_part(part: Text | Thinking | ToolCall, results: Results) -> str:
    match part:
        case Text(text):
            return f'<div class="text" dir="auto">{_markdown(text)}</div>' if text.strip() else ""
        case Thinking(text):
            return _fold("Thinking", _plain(text), "thinking") if text.strip() else ""
        case ToolCall():
            return _call(part, results.get(part.id))
        case _:
            assert_never(part)


def _call(call: ToolCall, result: ToolResult | None) -> str:
    how = Outcome() if result is None else outcome(result)
    words = f": {how.words}" if 0 < len(how.words) <= MAX_OUTCOME_CHARS else ""
    mark = "" if how.kind == "done" else f' <span class="wrong">{_plain(f"{how.kind}{words}")}</span>'
    told = "" if result is None else f"<pre>{_plain(result.text)}</pre>{''.join(map(_picture, result.images))}"
    summary = f"<b>{_plain(call.name)}</b>{mark} {_plain(visible(brief(call.arguments, MAX_SUMMARY_CHARS)))}"
    return _fold(summary, f"<pre>{_plain(visible(call.arguments))}</pre>{told}", "call")


def _fold(summary: str, content: str, kind: str) -> str:
    return f'<details class="{kind}"><summary>{summary}</summary><div dir="auto">{content}</div></details>'


def _picture(image: Image) -> str:
    if not _PICTURE.fullmatch(image.media_type) or not _BASE64.fullmatch(image.data):
        return '<p class="remark">A picture that cannot be shown.</p>'
    return f'<img alt="A picture" src="data:{image.media_type};base64,{image.data}">'


def _plain(text: str) -> str:
    return escape(readable(text))


def _markdown(text: str) -> str:
    return str(_PARSER.render(readable(text)))


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
    parser.validateLink = lambda url: _LINKED.match(url) is not None
    parser.core.ruler.push("harmless", lambda state: _make_harmless(state.tokens))
    return parser


def _make_harmless(tokens: Sequence[Token]) -> None:
    """A picture elsewhere tells its owner who looks: its words stay. Links say nothing of where they were followed."""
    for token in tokens:
        token.attrs.pop("style", None)  # of table cells; the page allows one style, its own
        if token.type == "link_open":
            token.attrSet("rel", "noreferrer noopener")
        if token.type == "image":
            token.type, token.children = "text", None
            token.content = token.content or str(token.attrGet("src") or "")
        _make_harmless(token.children or ())


_PARSER = _parser()


def _file(name: str) -> str:
    return (resources.files("talaria.cli.sessions") / name).read_text("utf-8")
