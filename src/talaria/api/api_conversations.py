"""Runs and conversations over HTTP: list, search, read, watch, stop, steer, approve, rename, fork, delete."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from starlette.responses import Response

from talaria.api.api_errors import ApiError, decode_body, not_found, wrong_field
from talaria.api.api_requests import ApiRun, RunState
from talaria.api.api_server import ApiCall, EventStream, encode, reply
from talaria.api.turn_output import OutputEnded, TextDone
from talaria.core.aio import in_thread
from talaria.core.entries import Entry, TurnEnded
from talaria.core.ids import Epoch, SessionId, new_session_id
from talaria.core.messages import Usage
from talaria.core.questions import ModelQuestion, Question
from talaria.gateway.envelope import read_received
from talaria.gateway.replies import NotSendable, find_file, media_type
from talaria.gateway.request_history import join_texts_of_turn
from talaria.runtime.live_socket import Settled
from talaria.runtime.watching import Position, Restarted, Watched
from talaria.store.base import Session
from talaria.store.signal_port import Signal
from talaria.tools import file_content

MAX_PAGE = 200
MAX_FILE_BYTES = 100 << 20
_HEAD_BYTES = 64
_BODY_CHARS = 20_000


VISIBLE = r"[^\s\u001c-\u001f\u0085]"
"""What `str.strip` leaves, as JSON Schema says it."""
_NotBlank = Annotated[str, msgspec.Meta(extra_json_schema={"minLength": 1, "pattern": VISIBLE})]
"""What is checked is said in our own words."""


class RunObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    response_id: str
    session_id: str
    status: RunState
    created_at: float
    input: str
    output_text: str | None = None
    usage: Usage | None = None
    error: str | None = None
    questions: tuple[Question | ModelQuestion, ...] = ()
    """Those that wait for an answer."""
    object: Literal["run"] = "run"


class RunList(msgspec.Struct, frozen=True):
    data: tuple[RunObject, ...]
    object: Literal["list"] = "list"


class SessionObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    title: str | None
    person: str
    source: str
    model: str
    created_at: float
    updated_at: float
    messages: int
    usage: Usage
    preview: str
    parent: str | None
    running: str | None
    """The id of the turn that runs."""
    object: Literal["session"] = "session"

    @classmethod
    def of(cls, row: Session) -> "SessionObject":
        return cls(
            id=row.id,
            title=row.title,
            person=row.person,
            source=row.source,
            model=row.model,
            created_at=row.created_at,
            updated_at=row.updated_at,
            messages=row.message_count,
            usage=row.usage,
            preview=row.preview,
            parent=row.parent,
            running=row.open_turn,
        )


class SessionList(msgspec.Struct, frozen=True):
    data: tuple[SessionObject, ...]
    has_more: bool
    last_id: str | None
    """For `after`: the next page."""
    object: Literal["list"] = "list"


class FoundMessage(msgspec.Struct, frozen=True):
    session_id: str
    title: str | None
    at: float
    role: str
    snippet: str


class SearchResult(msgspec.Struct, frozen=True):
    data: tuple[FoundMessage, ...]
    object: Literal["list"] = "list"


class EntryObject(msgspec.Struct, frozen=True):
    seq: int
    at: float
    entry: Entry


class EntryList(msgspec.Struct, frozen=True):
    data: tuple[EntryObject, ...]
    """Oldest first."""
    first_seq: int | None
    """For `before`: the page before this one; null: this is the first."""
    object: Literal["list"] = "list"


class Renaming(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: _NotBlank


class Forking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: _NotBlank | None = None
    until: int | None = None
    """The position of the end of a turn, as in the list of entries."""


class Steering(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: _NotBlank


class QuestionAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    question: str
    """The id of the question, from the events."""
    answer: str = ""
    """One of the answers that the question offers."""
    text: str = ""
    """With a no, what to do instead; or an answer in the person's own words."""


class SignalObject(msgspec.Struct, frozen=True):
    """What became of it: `new` until it is obeyed, or too late."""

    state: Literal["new", "obeyed", "late"]
    outcome: str
    object: Literal["signal"] = "signal"

    @classmethod
    def of(cls, signal: Signal) -> "SignalObject":
        return cls(signal.state, signal.outcome)


class DeletedSession(msgspec.Struct, frozen=True):
    id: str
    deleted: bool = True
    object: Literal["session.deleted"] = "session.deleted"


_renaming = msgspec.json.Decoder(Renaming)
_forking = msgspec.json.Decoder(Forking)
_steering = msgspec.json.Decoder(Steering)
_approval = msgspec.json.Decoder(QuestionAnswer)


# Runs: requests that were accepted from this token.


async def list_runs(call: ApiCall) -> Response:
    runs = await call.requests.list_runs(call.token, call.number("limit", 20, 1, MAX_PAGE))
    return reply(RunList(tuple([await _describe(call, run) for run in runs])))


async def get_run(call: ApiCall) -> Response:
    return reply(await _describe(call, await call.requests.find(call.token, call.path("id"))))


async def _describe(call: ApiCall, run: ApiRun) -> RunObject:
    state, outputs = await call.requests.read(run)
    ended = outputs[-1] if outputs and isinstance(outputs[-1], OutputEnded) else None
    arrival = read_received(run.row.body).arrival
    return RunObject(
        id=f"run_{run.digits}",
        response_id=f"resp_{run.digits}",
        session_id=run.session,
        status=state,
        created_at=arrival.sent_at,
        input=arrival.text[:_BODY_CHARS],
        output_text=join_texts_of_turn(one.text for one in outputs if isinstance(one, TextDone)) if outputs else None,
        usage=ended.usage if ended else None,
        error=(ended.error or None) if ended else None,
        questions=call.requests.open_questions(run),
    )


async def watch_run(call: ApiCall) -> Response:
    """Ends with its turn."""
    run = await call.requests.find(call.token, call.path("id"))
    start = _position(call, run.after)
    events = _events(call.requests.watch(run, start), start)
    return EventStream(events, may_go_on=call.is_still_valid)


async def stop_run(call: ApiCall) -> Response:
    run = await call.requests.find(call.token, call.path("id"))
    await call.requests.stop(run, call.token)
    return reply(await _describe(call, run))


async def steer_run(call: ApiCall) -> Response:
    run = await call.requests.find(call.token, call.path("id"))
    return await _steer(call, run.session, run)


async def approve_run(call: ApiCall) -> Response:
    run = await call.requests.find(call.token, call.path("id"))
    return await _approve(call, run.session)


# Conversations.


async def list_sessions(call: ApiCall) -> Response:
    limit, after = call.number("limit", 50, 1, MAX_PAGE), call.request.query_params.get("after")
    if after is not None:
        await call.requests.session(call.token, after)
    person = None if "admin" in call.token.scopes else call.token.person
    rows = await call.requests.store.sessions.list(limit + 1, person, SessionId(after) if after else None)
    page = tuple(SessionObject.of(row) for row in rows[:limit])
    return reply(SessionList(page, len(rows) > limit, page[-1].id if page else None))


async def search_sessions(call: ApiCall) -> Response:
    query = call.request.query_params.get("q", "").strip()
    if not query or len(query) > 1_000:
        raise wrong_field("q must say what to search for, in up to 1,000 characters.", "q")
    person = None if "admin" in call.token.scopes else call.token.person
    hits = await call.requests.store.search.search(query, call.number("limit", 20, 1, MAX_PAGE), person)
    return reply(
        SearchResult(tuple(FoundMessage(one.session, one.title, one.at, one.role, one.snippet) for one in hits))
    )


async def get_session(call: ApiCall) -> Response:
    return reply(SessionObject.of(await call.requests.session(call.token, call.path("id"))))


async def list_entries(call: ApiCall) -> Response:
    row = await call.requests.session(call.token, call.path("id"))
    limit, before = call.number("limit", 100, 1, MAX_PAGE), call.number("before", 0, 1, 2**53)
    found = await call.requests.store.journal.latest(row.id, limit, before or None)
    first = found[0].seq if found and found[0].seq > 1 else None
    return reply(EntryList(tuple(EntryObject(one.seq, one.at, one.entry) for one in found), first))


async def rename_session(call: ApiCall) -> Response:
    row = await call.requests.session(call.token, call.path("id"))
    renaming: Renaming = decode_body(_renaming, await call.read_body())
    await call.requests.store.sessions.rename(row.id, renaming.title)
    return reply(SessionObject.of(await call.requests.session(call.token, row.id)))


async def fork_session(call: ApiCall) -> Response:
    row = await call.requests.session(call.token, call.path("id"))
    forking: Forking = decode_body(_forking, await call.read_body() or b"{}")
    store = call.requests.store
    if forking.until is not None:
        found = await store.journal.latest(row.id, 1, forking.until + 1) if 0 < forking.until < 2**53 else ()
        if not found or found[0].seq != forking.until or not isinstance(found[0].entry, TurnEnded):
            raise ApiError(404, "No turn ends at this position.", "position_not_found", param="until")
    new = new_session_id(call.now)
    return reply(SessionObject.of(await store.sessions.fork(row.id, new, forking.title, forking.until)), 201)


async def delete_session(call: ApiCall) -> Response:
    row = await call.requests.session(call.token, call.path("id"))
    store, gateway = call.requests.store, call.requests.gateway
    if await store.inbox.list_pending(row.id, 1):
        raise ApiError(409, "Messages wait for an answer in this conversation; stop it first.", "session_busy")
    await gateway.forget(row.id)
    await store.sessions.delete(row.id)
    await in_thread(lambda: call.server.remove_files(row.id))
    return reply(DeletedSession(row.id))


async def watch_session(call: ApiCall) -> Response:
    """Goes on until the client hangs up."""
    row = await call.requests.session(call.token, call.path("id"))
    latest = await call.requests.store.journal.latest(row.id, 1)
    after = latest[-1].seq if latest and row.open_turn is None else 0
    if row.open_turn is not None:
        start = await call.requests.find_turn(row.id, row.open_turn)
        after = start.seq - 1 if start is not None else 0
    start = _position(call, call.number("after", after, 0, 2**53))
    events = _events(call.requests.gateway.state.host.links.watching.watch(row.id, start), start)
    return EventStream(events, may_go_on=call.is_still_valid)


async def stop_session(call: ApiCall) -> Response:
    row = await call.requests.session(call.token, call.path("id"))
    has_stopped = await call.requests.stop_session(row.id, call.token)
    return reply(SignalObject("obeyed" if has_stopped else "late", "" if has_stopped else "Nothing is running here."))


async def steer_session(call: ApiCall) -> Response:
    row = await call.requests.session(call.token, call.path("id"))
    return await _steer(call, row.id)


async def approve_session(call: ApiCall) -> Response:
    row = await call.requests.session(call.token, call.path("id"))
    return await _approve(call, row.id)


async def _steer(call: ApiCall, session: SessionId, run: ApiRun | None = None) -> Response:
    steering: Steering = decode_body(_steering, await call.read_body())
    if not steering.text.strip():
        raise wrong_field("The text is blank.", "text")
    turn = await call.requests.running_turn(session, call.token)
    if turn is None or (run is not None and turn != run.turn):
        return reply(SignalObject("late", "Nothing is running here."))
    signal = await call.requests.signals(call.token).steer(session, steering.text, _signal_key(call))
    return reply(SignalObject.of(signal), 202)


async def _approve(call: ApiCall, session: SessionId) -> Response:
    given: QuestionAnswer = decode_body(_approval, await call.read_body())
    if await call.requests.running_turn(session, call.token) is None:
        return reply(SignalObject("late", "The question is no longer open."))
    sender = call.requests.signals(call.token)
    return reply(
        SignalObject.of(await sender.answer(session, given.question, given.answer, given.text, _signal_key(call)))
    )


def _signal_key(call: ApiCall) -> str:
    key = call.request.headers.get("idempotency-key", "")
    return f"{call.token.person} {key[:255]}" if key else ""


# Files that the agent hands over.


async def get_file(call: ApiCall) -> Response:
    """Whoever has the link, or a token of the person whose conversation it is."""
    row = await call.requests.store.sessions.get(SessionId(call.path("id")))
    path = call.request.query_params.get("path", "")
    if row is None or not path or "\0" in path or not (call.is_signed or call.token.may_see(row.person)):
        raise not_found("file", path[:200])
    home, cwd = call.requests.gateway.state.host.home, Path(row.cwd)

    def read() -> tuple[str, bytes, bytes]:
        real = find_file(path, cwd, home, MAX_FILE_BYTES)
        with file_content.open_file(real) as file:
            content = file.read(MAX_FILE_BYTES + 1)
        return real.name, content[:_HEAD_BYTES], content

    try:
        name, head, content = await in_thread(read)
    except (NotSendable, OSError, ValueError) as fault:
        raise ApiError(404, f"The file cannot be fetched: {fault}", "file_not_found") from fault
    shown = "".join(char if char.isascii() and (char.isalnum() or char in "-_. ") else "_" for char in name)
    headers = {
        "Content-Disposition": f'attachment; filename="{shown}"',
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Cache-Control": "private, no-store",
    }
    return Response(content, headers=headers, media_type=media_type(name, head))


# Watching.


def _position(call: ApiCall, after: int) -> Position:
    """`Last-Event-ID` says how far the client has come."""
    given = call.request.headers.get("last-event-id", "")
    numbers = given.split(".")
    if not given or len(numbers) != 3 or not all(one.isdecimal() and len(one) < 16 for one in numbers):
        return Position(after)
    seq, epoch, number = map(int, numbers)
    return Position(seq, Epoch(epoch), number)


async def _events(told: AsyncGenerator[Watched], position: Position) -> AsyncGenerator[bytes]:
    """As the library's own stream has them; `id` is where a client that comes back goes on."""
    yield b": watching\n\n"
    async with aclosing(told):
        async for one in told:
            position = position.after(one)
            content: dict[str, Any]
            match one:
                case Settled(recorded):
                    name, content = "settled", {"seq": recorded.seq, "at": recorded.at, "entry": recorded.entry}
                case Restarted():
                    name, content = "restarted", {}
                case live:
                    name, content = "live", {"event": live.event}
            id = f"{position.seq}.{position.epoch}.{position.number}"
            yield f"id: {id}\nevent: {name}\ndata: ".encode() + encode(content) + b"\n\n"
