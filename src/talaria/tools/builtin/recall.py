"""Tools that search earlier messages: of this conversation, including compacted parts, and of other conversations."""

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

from talaria.core.aio import in_thread
from talaria.core.entries import MessageAdded, Recorded, TurnStarted, Undone
from talaria.core.errors import BadArguments, ToolFailed
from talaria.core.ids import SessionId, TurnId
from talaria.core.messages import Assistant, Context, Image, Message, Text, ToolCall, ToolResult, User
from talaria.core.text import show_time
from talaria.store.base import Journal, Search, Sessions
from talaria.store.session_rules import search_words
from talaria.tools.base import READS, Claim, RichResult, Run, Tool
from talaria.tools.function import tool

USUAL_LIMIT = 10
MAX_LIMIT = 20
EXCERPT_CHARS = 300
PAGE_BYTES = 16_000
MAX_NAME_CHARS = 40
MAX_TITLE_CHARS = 80

_RECALL = "recall"
_LOCAL = "local"
"""The person at the machine itself: everything on its disk is theirs."""
_READ_WHOLE = "[read one in full with message=NUMBER]"
_LIMIT = f"Maximum number of results, up to {MAX_LIMIT}."


def recall_tools(journal: Journal, search: Search, sessions: Sessions) -> tuple[Tool, ...]:
    @tool(name=_RECALL, after_crash="repeat", effect=READS, claim=Claim(is_untrusted=True))
    async def recall(
        run: Run,
        query: Annotated[str, "Words that a message must all contain, in any order. Empty: every message."] = "",
        before: Annotated[int, "Only messages with a lower number than this. 0: no bound."] = 0,
        limit: Annotated[int, _LIMIT] = USUAL_LIMIT,
        message: Annotated[int, "The number of a message to read in full; the query is then ignored."] = 0,
        offset: Annotated[int, "With `message`: the character to start at."] = 0,
    ) -> str:
        """Search this conversation, including old messages and tool output that were removed to save space.

        Returns excerpts, newest first, each with the number of its message; with `message`, that message in pages.
        """
        entries = await journal.entries(run.scope.session)
        if message:
            return await in_thread(lambda: _format_page(entries, message, max(0, offset)))
        return await in_thread(lambda: _format_messages(entries, search_words(query), before, _clamp_limit(limit)))

    @tool(after_crash="repeat", effect=READS, claim=Claim(is_untrusted=True))
    async def session_search(
        query: Annotated[str, "Words that a message must all contain."],
        run: Run,
        limit: Annotated[int, _LIMIT] = USUAL_LIMIT,
    ) -> RichResult:
        """Search other conversations for messages, newest first."""
        if not search_words(query):
            raise BadArguments("The query of session_search has no words.")
        scope, most = run.scope, _clamp_limit(limit)
        viewer: str | None = scope.asker  # in a chat, the person asking, even if someone else started the conversation
        if viewer == _LOCAL:
            session = await sessions.get(scope.session)
            viewer = session.person if session else ""
        viewer = None if viewer == _LOCAL else viewer
        count = asked = most + 1
        while True:  # ask for more until enough are left without this conversation's own messages
            found = await search.search(query, asked, viewer)
            hits = [hit for hit in found if hit.session != scope.session][:count]
            if len(hits) >= count or len(found) < asked:
                break
            asked *= 4
        if not hits:
            return RichResult("[no message in other conversations contains all these words]")
        shown: list[str] = []
        for hit in hits[:most]:
            title = " ".join((hit.title or "(untitled)").split())[:MAX_TITLE_CHARS]
            shown.append(f"{hit.session} · {title} · {show_time(hit.at)} · {hit.role}\n{hit.snippet}")
        more = "[there are more; narrow the search]\n" if len(hits) > most else ""
        text = "\n\n".join([*shown, f"{more}[a person can open a conversation with `talaria -r ID`]"])
        return RichResult(text, is_private=await _has_private_data(journal, {hit.session for hit in hits}))

    return recall, session_search


async def _has_private_data(journal: Journal, sessions: Iterable[SessionId]) -> bool:
    """Whether any of these conversations read something outside its project, which any of its messages may repeat."""
    for session in sessions:
        for recorded in await journal.entries(session):
            match recorded.entry:
                case MessageAdded(ToolResult(is_private=True)):
                    return True
                case MessageAdded(User(parts=parts)) if any(isinstance(part, Context) and part.file for part in parts):
                    return True
                case _:
                    continue
    return False


def _clamp_limit(limit: int) -> int:
    return min(max(1, limit), MAX_LIMIT)


class _FoundMessage(msgspec.Struct, frozen=True):
    number: int
    at: float
    author: str
    text: str

    def heading(self, *facts: str) -> str:
        return " · ".join((f"#{self.number}", self.author, show_time(self.at), *facts))


def _format_messages(entries: Sequence[Recorded], words: Sequence[str], before: int, limit: int) -> str:
    folded = [_fold_case(word) for word in words]
    undone = _find_undone(entries)
    excerpts: list[str] = []
    last = 0
    for recorded in reversed(entries):
        if 0 < before <= recorded.seq or not isinstance(recorded.entry, MessageAdded):
            continue
        message = recorded.entry.message
        if isinstance(message, ToolResult) and message.name == _RECALL:  # it only repeats other messages
            continue
        author = _describe_author(message, is_undone=recorded.seq in undone)
        found = _FoundMessage(recorded.seq, recorded.at, author, _show_message(message))
        text = _fold_case(found.text)
        places = [text.find(word) for word in folded]
        if not text or -1 in places:
            continue
        if len(excerpts) == limit:
            more = f"[there are older messages; continue with before={last}]"
            return "\n\n".join([*excerpts, f"{_READ_WHOLE}\n{more}"])
        last, length = found.number, len(found.text)
        start = max(0, min(min(places, default=0) - EXCERPT_CHARS // 3, length - EXCERPT_CHARS))
        end = start + EXCERPT_CHARS
        piece = " ".join(found.text[start:end].split())
        facts = [f"{length:,} characters, excerpt from offset={start}"] if length > EXCERPT_CHARS else []
        excerpts.append(f"{found.heading(*facts)}\n{'…' if start else ''}{piece}{'…' if end < length else ''}")
    if excerpts:
        return "\n\n".join([*excerpts, _READ_WHOLE])
    where = f" before #{before}" if before > 0 else ""
    return f"[no message{where} contains all these words]" if words else f"[there is no message{where}]"


def _find_undone(entries: Sequence[Recorded]) -> set[int]:
    """The numbers of all entries of undone turns."""
    starts: dict[TurnId, int] = {}
    gone: set[int] = set()
    for recorded in entries:
        match recorded.entry:
            case TurnStarted(turn):
                starts[turn] = recorded.seq
            case Undone(turn) if turn in starts:
                gone.update(range(starts[turn], recorded.seq))
            case _:
                continue
    return gone


def _fold_case(text: str) -> str:
    """Lower case, with the length unchanged: only this one character would grow."""
    return text.replace("\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}", "I").lower()


def _format_page(entries: Sequence[Recorded], number: int, offset: int) -> str:
    recorded = next((one for one in entries if one.seq == number), None)
    if recorded is None or not isinstance(recorded.entry, MessageAdded):
        raise ToolFailed(f"This conversation has no message #{number}; find the numbers with a query.")
    message = recorded.entry.message
    author = _describe_author(message, is_undone=number in _find_undone(entries))
    found = _FoundMessage(number, recorded.at, author, _show_message(message))
    length = len(found.text)
    page = found.text[offset : offset + PAGE_BYTES].encode("utf-8", "replace")[:PAGE_BYTES].decode("utf-8", "ignore")
    end = offset + len(page)
    if not page:
        return f"{found.heading()}\n{f'[it ends at offset={length}]' if length else '[nothing to show]'}"
    if len(page) == length:
        return f"{found.heading()}\n{page}"
    more = f"\n[continue with message={number}, offset={end}]" if end < length else ""
    return f"{found.heading(f'characters {offset:,} to {end:,} of {length:,}')}\n{page}{more}"


def _describe_author(message: Message, *, is_undone: bool) -> str:
    match message:
        case User():
            author = "host" if message.author == "host" else "person"
        case Assistant():
            author = "assistant"
        case ToolResult():
            author = f"{'error' if message.is_error else 'output'} of {message.name[:MAX_NAME_CHARS]}"
    return f"{author} (in a turn that the person undid)" if is_undone else author


def _show_message(message: Message) -> str:
    """Without thinking, what the host added, and calls of `recall`, which would find themselves."""
    if isinstance(message, ToolResult):
        return message.text
    lines: list[str] = []
    for part in message.parts:
        match part:
            case Text(text):
                lines.append(text)
            case Image(media_type):
                lines.append(f"[image: {media_type}]")
            case ToolCall(_, name, arguments) if name != _RECALL:
                lines.append(f"[call of {name}: {arguments}]")
            case _:
                continue
    return "\n".join(filter(None, lines))
