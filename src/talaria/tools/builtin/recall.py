"""Looking back: into this conversation, also where it was made shorter for the model, and into other conversations."""

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Annotated

import msgspec

from talaria.core.aio import in_thread
from talaria.core.entries import MessageAdded, Recorded, TurnStarted, Undone
from talaria.core.errors import BadArguments, ToolFailed
from talaria.core.ids import SessionId, TurnId
from talaria.core.messages import Assistant, Context, Image, Message, Text, ToolCall, ToolResult, User
from talaria.store.base import Journal, Search, SearchHit, Sessions
from talaria.store.session_rules import search_words
from talaria.tools.base import READS, Claim, RichResult, Run, Scope, Tool
from talaria.tools.function import tool

USUAL_LIMIT = 10
MAX_LIMIT = 20
EXCERPT_CHARS = 300
PAGE_BYTES = 16_000
MAX_NAME_CHARS = 40
MAX_TITLE_CHARS = 80

_RECALL = "recall"
_LOCAL = "local"
"""The person at the machine itself: whatever is on its disk is theirs."""
_LIMIT = f"How many at most; never more than {MAX_LIMIT}."


def recall_tools(journal: Journal, search: Search, sessions: Sessions) -> tuple[Tool, ...]:
    @tool(name=_RECALL, after_crash="repeat", effect=READS, claim=Claim(is_untrusted=True))
    async def recall(
        run: Run,
        query: Annotated[str, "Words, all of which a message must contain, in any order; empty: every message."] = "",
        before: Annotated[int, "Only messages with a number below this; 0: up to the newest."] = 0,
        limit: Annotated[int, _LIMIT] = USUAL_LIMIT,
        message: Annotated[int, "The number of one message, to read it whole; the query does not count then."] = 0,
        offset: Annotated[int, "Where in that message to begin, in characters."] = 0,
    ) -> str:
        """Look back in this conversation, including what was removed from it to save space: old messages, tool output.

        Returns excerpts, newest first, each after its message's number; with `message`, that message page by page.
        """
        entries = await journal.entries(run.scope.session)
        if message:
            return await in_thread(lambda: _format_page(entries, message, max(0, offset)))
        return await in_thread(lambda: _format_messages(entries, search_words(query), before, _clamp_limit(limit)))

    @tool(after_crash="repeat", effect=READS, claim=Claim(is_untrusted=True))
    async def session_search(
        query: Annotated[str, "Words, all of which a message must contain."],
        run: Run,
        limit: Annotated[int, _LIMIT] = USUAL_LIMIT,
    ) -> RichResult:
        """Find messages in other conversations than this one, newest first."""
        if not search_words(query):
            raise BadArguments("The query of session_search has no words.")
        most = _clamp_limit(limit)
        here = run.scope.session
        hits = await _search_elsewhere(search, query, most + 1, here, await _find_viewer(sessions, run.scope))
        if not hits:
            return RichResult("[no other conversation has a message with all these words]")
        more = "[there are more; narrow the search]\n" if len(hits) > most else ""
        found = "\n\n".join(map(_format_hit, hits[:most]))
        text = f"{found}\n\n{more}[a person opens a conversation with `talaria -r ID`]"
        return RichResult(text, is_private=await _has_private_data(journal, {hit.session for hit in hits}))

    return recall, session_search


async def _has_private_data(journal: Journal, sessions: Iterable[SessionId]) -> bool:
    """Whether one of these conversations has read something outside its project: any of its messages may repeat it."""
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
    """A message as it is shown and searched."""

    number: int
    at: float
    who: str
    text: str

    def heading(self, *facts: str) -> str:
        return " · ".join((f"#{self.number}", self.who, _format_time(self.at), *facts))


def _format_messages(entries: Sequence[Recorded], words: Sequence[str], before: int, limit: int) -> str:
    folded = [_fold_case(word) for word in words]
    found = (
        (said, at) for said in _newest_first(entries, before) if (at := _find_words(said.text, folded)) is not None
    )
    shown = list(islice(found, limit))
    if not shown:
        return f"[no message here{f' before #{before}' if before > 0 else ''}{' has all these words' if words else ''}]"
    notes = ["[read one whole with message=NUMBER]"]
    if next(found, None):
        notes.append(f"[there are older ones; continue with before={shown[-1][0].number}]")
    return "\n\n".join([*(_format_excerpt(said, at) for said, at in shown), "\n".join(notes)])


def _newest_first(entries: Sequence[Recorded], before: int) -> Iterator[_FoundMessage]:
    """Without answers of `recall` itself: they only repeat what others said."""
    taken_back = _find_undone(entries)
    for recorded in reversed(entries):
        if 0 < before <= recorded.seq:
            continue
        match recorded.entry:
            case MessageAdded(ToolResult(name=name)) if name == _RECALL:
                continue
            case MessageAdded(message) if text := _show_message(message):
                who = _describe_author(message, is_taken_back=recorded.seq in taken_back)
                yield _FoundMessage(recorded.seq, recorded.at, who, text)
            case _:
                continue


def _find_undone(entries: Sequence[Recorded]) -> set[int]:
    """The numbers of all that belongs to turns which were taken back."""
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


def _find_words(text: str, words: Sequence[str]) -> int | None:
    """Where the first of `words` stands, if all of them do."""
    folded = _fold_case(text)
    places = [folded.find(word) for word in words]
    return None if -1 in places else min(places, default=0)


def _fold_case(text: str) -> str:
    """Without case, and as long as before: of all signs only this one grows."""
    return text.replace("\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}", "I").lower()


def _format_excerpt(said: _FoundMessage, at: int) -> str:
    length = len(said.text)
    start = max(0, min(at - EXCERPT_CHARS // 3, length - EXCERPT_CHARS))
    end = start + EXCERPT_CHARS
    piece = " ".join(said.text[start:end].split())
    facts = [f"{length:,} characters, excerpt from offset={start}"] if length > EXCERPT_CHARS else []
    return f"{said.heading(*facts)}\n{'…' if start else ''}{piece}{'…' if end < length else ''}"


def _format_page(entries: Sequence[Recorded], number: int, offset: int) -> str:
    said = _find_message(entries, number)
    length = len(said.text)
    page = said.text[offset : offset + PAGE_BYTES].encode("utf-8", "replace")[:PAGE_BYTES].decode("utf-8", "ignore")
    end = offset + len(page)
    if not page:
        return f"{said.heading()}\n{f'[it ends at offset={length}]' if length else '[nothing to show]'}"
    if len(page) == length:
        return f"{said.heading()}\n{page}"
    more = f"\n[continue with message={number}, offset={end}]" if end < length else ""
    return f"{said.heading(f'characters {offset:,} to {end:,} of {length:,}')}\n{page}{more}"


def _find_message(entries: Sequence[Recorded], number: int) -> _FoundMessage:
    for recorded in entries:
        if recorded.seq == number and isinstance(recorded.entry, MessageAdded):
            message = recorded.entry.message
            who = _describe_author(message, is_taken_back=number in _find_undone(entries))
            return _FoundMessage(number, recorded.at, who, _show_message(message))
    raise ToolFailed(f"This conversation has no message #{number}; find the numbers with a query.")


def _describe_author(message: Message, *, is_taken_back: bool) -> str:
    match message:
        case User():
            who = "host" if message.author == "host" else "person"
        case Assistant():
            who = "assistant"
        case ToolResult():
            who = f"{'error' if message.is_error else 'output'} of {message.name[:MAX_NAME_CHARS]}"
    return f"{who} (in a turn that the person undid)" if is_taken_back else who


def _show_message(message: Message) -> str:
    if isinstance(message, ToolResult):
        return message.text
    return "\n".join(filter(None, map(_show_part, message.parts)))


def _show_part(part: object) -> str:
    """Nothing of thinking and of what the host added; nor of calls of `recall`, which would find themselves."""
    match part:
        case Text(text):
            return text
        case Image(media_type):
            return f"[image: {media_type}]"
        case ToolCall(_, name, arguments) if name != _RECALL:
            return f"[call of {name}: {arguments}]"
        case _:
            return ""


async def _find_viewer(sessions: Sessions, scope: Scope) -> str | None:
    """Whose conversations may be shown here; None: everybody's. In a chat that is who asks, whoever began it."""
    if scope.asker != _LOCAL:
        return scope.asker
    session = await sessions.get(scope.session)
    person = session.person if session else ""
    return None if person == _LOCAL else person


async def _search_elsewhere(
    search: Search, query: str, count: int, here: SessionId, person: str | None
) -> list[SearchHit]:
    """Asks for more until enough are left without this conversation's own."""
    asked = count
    while True:
        hits = await search.search(query, asked, person)
        others = [hit for hit in hits if hit.session != here]
        if len(others) >= count or len(hits) < asked:
            return others[:count]
        asked *= 4


def _format_hit(hit: SearchHit) -> str:
    title = " ".join((hit.title or "(untitled)").split())[:MAX_TITLE_CHARS]
    return f"{hit.session} · {title} · {_format_time(hit.at)} · {hit.role}\n{hit.snippet}"


def _format_time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
