"""What programs ask, as messages of the gateway: each is a row before it is answered, under an id that a repeated
`Idempotency-Key` gives again. Finds the conversation that it is for, and follows its turn."""

import asyncio
import hashlib
import re
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Literal
from weakref import WeakValueDictionary

import msgspec

from talaria.api.api_errors import ApiError, later, not_found, wrong_field
from talaria.api.turn_output import Output, OutputEnded, TurnReader
from talaria.core.entries import MessageAdded, Recorded, TurnEnded, TurnStarted
from talaria.core.ids import SessionId, TurnId, new_session_id
from talaria.core.messages import NO_USAGE, Assistant, Message, Text, user
from talaria.core.questions import ModelQuestion, Question
from talaria.gateway.envelope import read_received, session_key
from talaria.gateway.request_history import Speaker, digest_of
from talaria.gateway.service import Gateway
from talaria.platforms.base import Address, Arrival, Attachment, Platform, RequestDetails, Sender
from talaria.runtime.live_socket import Settled
from talaria.runtime.turn_signals import SignalSender
from talaria.runtime.watching import Position, Watched
from talaria.store.api_ports import API, ApiToken, HistoryPoint
from talaria.store.base import Session, Store
from talaria.store.chat_ports import Inbound

MAX_KEY_CHARS = 255
MAX_NAME_CHARS = 200
STORED_WITHIN_S = 20.0
BEGUN_WITHIN_S = 1.0
"""Afterwards somebody may have dropped the message, so its row is read from time to time."""
PAGE = 200
MOST_REMEMBERED = 4096

_SESSION_ID = re.compile(r"\d{8}_\d{6}_[0-9a-f]{8}")
_RUN_ID = re.compile(r"(?:resp_|run_|chatcmpl-)?(?P<hex>[0-9a-f]{32})")

RunState = Literal["queued", "in_progress", "completed", "failed", "cancelled"]


class ApiQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What a program asks, however it says that."""

    text: str
    attachments: tuple[Attachment, ...] = ()
    history: tuple[tuple[Speaker, str], ...] = ()
    """What was said before, as far as it was sent along."""
    instructions: str = ""
    conversation: str = ""
    """The id of a conversation, or the name that the program has for it."""
    previous: str = ""
    """The id of the run after which it continues."""
    key: str = ""
    """The same for the same request."""
    digest: str = ""
    may_wait: bool = False
    """Until the conversation is free."""
    echo: str = ""
    """What the answer repeats of the request, as JSON."""


class ApiRun(msgspec.Struct, frozen=True):
    """A request that was accepted, and its turn."""

    digits: str
    session: SessionId
    turn: TurnId
    row: Inbound
    after: int = 0
    """The last entry of the conversation before its turn, or earlier."""

    @property
    def sent_at(self) -> float:
        return read_received(self.row.body).arrival.sent_at


class _Place(msgspec.Struct, frozen=True):
    """Where a message belongs."""

    session: SessionId
    """Empty: a conversation with this name begins."""
    name: str = ""
    after: int = 0
    row: Session | None = None
    """None: the conversation begins."""


def turn_of(digits: str) -> TurnId:
    return TurnId(f"turn_{digits}")


def digits_of(id: str) -> str:
    """Raises `ApiError`."""
    found = _RUN_ID.fullmatch(id)
    if found is None:
        raise not_found("response" if id.startswith("resp_") else "run", id[:100])
    return found["hex"]


class ApiRequests:
    def __init__(self, gateway: Gateway, platform: Platform) -> None:
        self.gateway = gateway
        self._platform = platform
        self._instructions: OrderedDict[SessionId, str] = OrderedDict()
        """What programs have told each conversation; when forgotten, it is told again."""
        self._submitting: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def store(self) -> Store:
        return self.gateway.state.host.store

    async def submit(self, token: ApiToken, asked: ApiQuestion) -> ApiRun:
        """Returns once the message is on the disk. Raises `ApiError`."""
        if len(asked.key) > MAX_KEY_CHARS:
            raise wrong_field(f"Idempotency-Key may have at most {MAX_KEY_CHARS} characters.", "Idempotency-Key")
        digits = secrets.token_hex(16)
        names = [f"{token.name}\nconversation\n{asked.conversation or asked.previous or digest_of(asked.history)}"]
        if asked.key:
            digits = hashlib.sha256(f"{token.name}\n{asked.key}".encode()).hexdigest()[:32]
            names.append(f"{token.name}\nkey\n{digits}")
        if not (asked.conversation or asked.previous or asked.history):
            del names[0]  # it begins a conversation, which nobody else can be about to begin
        try:
            async with asyncio.timeout(STORED_WITHIN_S), self._alone(names):
                return await self._submit(token, asked, digits)
        except TimeoutError:
            raise later(
                "The request could not be stored in time. Send it again with the same Idempotency-Key."
            ) from None

    @asynccontextmanager
    async def _alone(self, names: Sequence[str]) -> AsyncGenerator[None]:
        """No other request with one of these names is between looking where it belongs and being stored."""
        async with AsyncExitStack() as stack:
            for name in names:
                lock = self._submitting.get(name)
                if lock is None:
                    lock = self._submitting[name] = asyncio.Lock()
                await stack.enter_async_context(lock)
            yield

    async def _submit(self, token: ApiToken, asked: ApiQuestion, digits: str) -> ApiRun:
        if asked.key and (known := await self._find(token, digits)) is not None:
            request = read_received(known.body).arrival.request
            if request is not None and request.digest != asked.digest:
                sentence = "This Idempotency-Key was used for another request."
                raise ApiError(422, sentence, "idempotency_key_reused", param="Idempotency-Key")
            return await self._run_of(known, digits)
        if self.gateway.is_stopping:  # the next start would answer it, and nobody would be there
            raise later("The gateway is about to stop. Send the request again when it runs.")
        place = await self._find_place(token, asked)
        arrival = Arrival(
            message_id=digits,
            where=Address(API, token.name, place.name),
            kind="dm",
            sender=Sender(token.name, token.name),
            text=asked.text,
            attachments=asked.attachments,
            sent_at=self.gateway.state.host.clock.now(),
            request=RequestDetails(
                turn_of(digits),
                place.session,
                asked.instructions,
                self._news(place, asked.instructions),
                digest_of((*asked.history, ("user", asked.text))),
                asked.digest,
                asked.echo,
            ),
        )
        row = await self.gateway.accept(self._platform, arrival)
        if row is None:
            raise ApiError(401, "The token is no longer valid.", "invalid_token")
        self._remember(row.session, asked.instructions)
        return ApiRun(digits, row.session, turn_of(digits), row, place.after if row.session == place.session else 0)

    async def find(self, token: ApiToken, id: str) -> ApiRun:
        """Raises `ApiError`."""
        digits = digits_of(id)
        row = await self._find(token, digits)
        if row is None:
            raise not_found("response" if id.startswith("resp_") else "run", id)
        return await self._run_of(row, digits)

    async def list_runs(self, token: ApiToken, limit: int) -> Sequence[ApiRun]:
        """Newest first."""
        rows = await self.store.inbox.list_from(API, self._platform.account, token.name, limit)
        return [ApiRun(row.message_id, row.session, turn_of(row.message_id), row) for row in rows]

    async def session(self, token: ApiToken, id: str) -> Session:
        """One that it may see. Raises `ApiError`."""
        row = await self.store.sessions.get(SessionId(id))
        if row is None or not token.may_see(row.person):
            raise not_found("session", id[:MAX_NAME_CHARS])
        return row

    async def follow(self, run: ApiRun) -> AsyncGenerator[Output]:
        """All outputs of its turn, from the first to the last, and then no more."""
        reader = TurnReader(run.turn)
        async with aclosing(self.watch(run, Position(run.after))) as told:
            async for one in told:
                for output in reader.read(one):
                    yield output
        if not reader.has_begun:
            yield OutputEnded("dropped", error="The request was dropped before it was answered.")

    async def watch(self, run: ApiRun, after: Position) -> AsyncGenerator[Watched]:
        """What is told of its turn after that position, and then no more. Nothing if the request is dropped."""
        has_begun = after.seq > run.after
        if has_begun and await self._has_ended(run, after.seq):
            return
        watching = self.gateway.state.host.links.watching
        async with aclosing(watching.watch(run.session, after)) as told:
            while not has_begun:
                step = asyncio.ensure_future(anext(told))
                try:
                    while not step.done():
                        await asyncio.wait([step], timeout=BEGUN_WITHIN_S)
                        if not step.done() and await self._is_dropped(run):
                            return
                finally:
                    if not step.done():
                        step.cancel()
                        await asyncio.wait([step])
                one = step.result()
                if isinstance(one, Settled) and isinstance(entry := one.recorded.entry, TurnStarted):
                    has_begun = entry.turn == run.turn
                    if has_begun:
                        yield one
            async for one in told:
                yield one
                if isinstance(one, Settled) and isinstance(one.recorded.entry, TurnEnded):
                    return

    async def read(self, run: ApiRun) -> tuple[RunState, Sequence[Output]]:
        """What the journal has of its turn now."""
        row = await self.store.inbox.find(API, self._platform.account, run.row.chat, run.digits) or run.row
        outputs: list[Output] = []
        reader = TurnReader(run.turn)
        for recorded in await self.store.journal.entries(run.session, run.after):
            outputs.extend(reader.read(Settled(recorded)))
            if outputs and isinstance(outputs[-1], OutputEnded):
                break
        match outputs[-1] if outputs else None:
            case OutputEnded("completed"):
                return "completed", outputs
            case OutputEnded("interrupted"):
                return "cancelled", outputs
            case OutputEnded():
                return "failed", outputs
            case None:
                return "cancelled" if row.state == "done" else "queued", outputs
            case _:
                return "in_progress", outputs

    async def stop(self, run: ApiRun, token: ApiToken) -> None:
        """Also if it has not begun. If it is run here, no row is needed for that."""
        row = await self.store.inbox.find(API, self._platform.account, run.row.chat, run.digits) or run.row
        if row.state == "new" and await self.gateway.drop(row):
            return
        await self.stop_session(run.session, token, run.turn)

    async def stop_session(self, session: SessionId, token: ApiToken, turn: TurnId | None = None) -> bool:
        """False: no turn runs, or none with this id."""
        live = self.gateway.state.pool.find(session)
        if live is not None and live.running is not None:
            return turn in (None, live.running.turn.id) and live.running.interrupt()
        row = await self.store.sessions.get(session)
        if row is None or row.open_turn is None or turn not in (None, row.open_turn):
            return False
        return (await self.signals(token).stop(session)).state == "obeyed"

    async def running_turn(self, session: SessionId, token: ApiToken) -> TurnId | None:
        """The turn that runs there, if it may be steered: its own. It may not act through somebody else's.

        None: nothing runs. Raises `ApiError`.
        """
        row = await self.store.sessions.get(session)
        if row is None or row.open_turn is None:
            return None
        is_own = await self._find(token, row.open_turn.removeprefix("turn_")) is not None
        if not is_own and "admin" not in token.scopes:
            raise ApiError(403, "What runs there is somebody else's turn.", "not_yours")
        return row.open_turn

    def open_questions(self, run: ApiRun) -> tuple[Question | ModelQuestion, ...]:
        """Those that its turn waits for, if it runs here."""
        live = self.gateway.state.pool.find(run.session)
        running = live.running if live is not None else None
        return () if running is None or running.turn.id != run.turn else tuple(running.questions.open)

    def signals(self, token: ApiToken) -> SignalSender:
        host = self.gateway.state.host
        return SignalSender(host.store, host.links.changes, host.links.folder, by=token.person, surface=API)

    async def _find(self, token: ApiToken, digits: str) -> Inbound | None:
        return await self.store.inbox.find(API, self._platform.account, token.name, digits)

    async def _is_dropped(self, run: ApiRun) -> bool:
        row = await self.store.inbox.find(API, self._platform.account, run.row.chat, run.digits)
        if row is None or row.state != "done" or row.turn is not None:
            return False
        _, outputs = await self.read(run)
        return not outputs

    async def _has_ended(self, run: ApiRun, seq: int) -> bool:
        """Whether the turn, which has begun, had ended with that entry."""
        row = await self.store.sessions.get(run.session)
        if row is not None and row.open_turn == run.turn:
            return False
        later = await self.store.journal.entries(run.session, seq)
        return not any(isinstance(one.entry, TurnEnded) and one.entry.turn == run.turn for one in later)

    async def _run_of(self, row: Inbound, digits: str) -> ApiRun:
        latest = await self.store.journal.latest(row.session, 1)  # first: meanwhile the turn may begin
        start = await self.find_turn(row.session, turn_of(digits))
        after = start.seq - 1 if start is not None else latest[-1].seq if latest else 0
        return ApiRun(digits, row.session, turn_of(digits), row, after)

    async def find_turn(self, session: SessionId, turn: TurnId) -> Recorded | None:
        """Where it began. Looks from the end, because it is mostly one of the last."""
        before: int | None = None
        while page := await self.store.journal.latest(session, PAGE, before):
            for recorded in reversed(page):
                if isinstance(recorded.entry, TurnStarted) and recorded.entry.turn == turn:
                    return recorded
            before = page[0].seq
        return None

    # Which conversation a message is for.

    async def _find_place(self, token: ApiToken, asked: ApiQuestion) -> _Place:
        if asked.previous:
            return await self._after_run(token, asked)
        point = HistoryPoint(token.person, digest_of(asked.history))
        if not asked.conversation:
            return await self._find_by_history(token, asked, point)
        if _SESSION_ID.fullmatch(asked.conversation):
            return await self._check_free(await self.session(token, asked.conversation), asked)
        if len(asked.conversation) > MAX_NAME_CHARS:
            raise wrong_field(
                f"The name of a conversation may have at most {MAX_NAME_CHARS} characters.", "conversation"
            )
        state = self.gateway.state
        key = session_key(Address(API, token.name, asked.conversation), "dm", token.name, state.key_rules)
        bound = await self.store.chats.get(key)
        row = await self.store.sessions.get(bound.session) if bound is not None else None
        if row is None:
            if not asked.history:
                return _Place(SessionId(""), asked.conversation)
            place = await self._find_by_history(token, asked, point, is_shared=False)
        else:
            matches = await self.store.histories.find(point) if asked.history else ()
            at = next((one for one in matches if one.session == row.id), None)
            if at is None or at.is_end:
                return await self._check_free(row, asked)
            place = await self._branch(row.id, at.seq)  # an earlier message was changed, or is answered again
        await self.store.chats.bind(key, place.session, str(Address(API, token.name, asked.conversation)))
        return place

    async def _find_by_history(
        self, token: ApiToken, asked: ApiQuestion, point: HistoryPoint, *, is_shared: bool = True
    ) -> _Place:
        """The conversation that ends with what was sent along; a branch of one that had it; or else a new one."""
        if not asked.history:
            return _Place(new_session_id(self.gateway.state.host.clock.now()))
        matches = await self.store.histories.find(point)
        for match in matches:
            row = await self.store.sessions.get(match.session) if match.is_end and is_shared else None
            if row is not None and await self._is_free(row):
                return _Place(row.id, after=match.seq, row=row)
        if matches:
            return await self._branch(matches[0].session, matches[0].seq)
        return await self._adopt(token, asked, point)

    async def _after_run(self, token: ApiToken, asked: ApiQuestion) -> _Place:
        run = await self.find(token, asked.previous)
        entries = await self.store.journal.entries(run.session, run.after)
        ends = [one.seq for one in entries if isinstance(one.entry, TurnEnded) and one.entry.turn == run.turn]
        if not ends:
            raise ApiError(409, "The response before this one is not complete yet.", "session_busy")
        if entries[-1].seq > ends[0]:
            return await self._branch(run.session, ends[0])
        return await self._check_free(await self.session(token, run.session), asked)

    async def _check_free(self, row: Session, asked: ApiQuestion) -> _Place:
        if not asked.may_wait and not await self._is_free(row):
            sentence = "The conversation is busy with another message. Wait, or send X-Talaria-Queue: true."
            raise ApiError(409, sentence, "session_busy")
        live = self.gateway.state.pool.find(row.id)
        known = live.last_seq if live is not None else 0
        latest = () if known else await self.store.journal.latest(row.id, 1)
        return _Place(row.id, after=latest[-1].seq if latest else known, row=row)

    async def _is_free(self, row: Session) -> bool:
        return row.open_turn is None and not await self.store.inbox.list_pending(row.id, 1)

    async def _branch(self, session: SessionId, until: int) -> _Place:
        new = new_session_id(self.gateway.state.host.clock.now())
        row = await self.store.sessions.fork(session, new, until=until)
        return _Place(new, after=until, row=row)

    async def _adopt(self, token: ApiToken, asked: ApiQuestion, point: HistoryPoint) -> _Place:
        """Nobody here has led this conversation: the model reads it as it was sent."""
        now = self.gateway.state.host.clock.now()
        new = new_session_id(now)
        begin = RequestDetails(turn_of(""), new, asked.instructions)
        arrival = Arrival("", Address(API, token.name), "dm", Sender(token.name), request=begin)
        live = await self.gateway.open(new, arrival)
        journal = [Recorded(number, now, entry) for number, entry in enumerate(_entries(asked.history), 1)]
        row = await live.adopt(now, journal, point)
        return _Place(new, after=len(journal), row=row)

    def _news(self, place: _Place, instructions: str) -> str:
        """Instructions that the conversation did not begin with, and was not told last."""
        if place.row is None or not instructions or self._instructions.get(place.session) == instructions:
            return ""
        live = self.gateway.state.pool.find(place.session)
        if live is not None and place.session not in self._instructions and live.config.instructions == instructions:
            return ""
        return f"[Instructions of the program that asks:\n{instructions}\n]"

    def _remember(self, session: SessionId, instructions: str) -> None:
        self._instructions[session] = instructions
        self._instructions.move_to_end(session)
        if len(self._instructions) > MOST_REMEMBERED:
            self._instructions.popitem(last=False)


def _entries(history: Sequence[tuple[Speaker, str]]) -> Sequence[TurnStarted | MessageAdded | TurnEnded]:
    """As turns, each with a question and an answer."""
    entries: list[TurnStarted | MessageAdded | TurnEnded] = []
    for number, (question, answer) in enumerate(_pairs(history)):
        turn = TurnId(f"sent_{number}")
        messages: tuple[Message, ...] = (
            user(question or "(No question.)"),
            Assistant((Text(answer or "(No answer.)"),)),
        )
        entries += [TurnStarted(turn, "platform"), *map(MessageAdded, messages), TurnEnded(turn, "completed", NO_USAGE)]
    return entries


def _pairs(history: Sequence[tuple[Speaker, str]]) -> Sequence[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    question: list[str] = []
    answer: list[str] = []
    for speaker, text in history:
        if speaker == "user" and answer:
            pairs.append(("\n\n".join(question), "\n\n".join(answer)))
            question, answer = [], []
        (question if speaker == "user" else answer).append(text)
    pairs.append(("\n\n".join(question), "\n\n".join(answer)))
    return pairs
