"""The person in a chat: questions are sent there with buttons, and wait for a press, a command or a message."""

import asyncio
import logging
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Never

import msgspec

from talaria.core.aio import complete, in_thread
from talaria.core.clock import Clock
from talaria.core.errors import Denied
from talaria.core.ids import SessionId
from talaria.core.questions import ANSWERS, Answer, Instead, Question, measure
from talaria.core.text import without_blank_runs
from talaria.gateway.envelope import OutgoingBody, Principal, encode_body, read_body
from talaria.gateway.replies import EXPIRES_AFTER_S, Replies
from talaria.platforms.base import Address, Button
from talaria.runtime.placement import park
from talaria.store.base import Store
from talaria.store.chat_ports import Outbox, Outgoing

_LABELS: dict[Answer, str] = {
    "once": "Allow once",
    "session": "This conversation",
    "project": "This project",
    "always": "Always",
    "no": "Deny",
}
_LABELS_OF_SANDBOX = {**_LABELS, "always": "Every project"}
CLOSED = "This question is no longer open."
MOST_PARTS = 8
"""Of a question, where no files can be sent. Nobody reads more messages than this, so nobody is asked."""
MAX_INLINE_CHARS = 50_000
"""Anything longer fits into no message."""
LONG_CHARS = 2_000
"""For anything longer, the message gives the length and a digest."""
FIRST_CHARS, FIRST_LINES = 1_000, 15
"""How much of an attached file the question itself shows."""
LOOK_S = 0.1
"""How often to check whether a file has arrived."""
MOST_OLD = 500
"""How many outbox rows to search for questions of processes that have ended."""

_FENCE = "```"
_FENCES = re.compile(r"`{3,}")
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters that count as letters and are invisible."""
_MARKUP = re.compile(r"([\\`*_\[\]<>#~|!&])")

log = logging.getLogger(__name__)

Judge = Callable[[], Principal | None]
"""The person's present rights where they were asked; None: they may no longer write there."""


class PressedButton(msgspec.Struct, frozen=True):
    """What one of our buttons carries."""

    question: str
    choice: str


def parse_press(data: str) -> PressedButton | None:
    kind, _, rest = data.partition(":")
    question, _, choice = rest.partition(":")
    return PressedButton(question, choice) if kind == "q" and question and choice else None


@dataclass(slots=True)
class _OpenQuestion:
    id: str
    person: str
    where: Address
    judge: Judge
    answers: dict[str, str]
    """What each button means, by what it carries."""
    takes_words: bool = False
    instead: str = ""
    """With a no: what they want done in its place."""
    answer: "asyncio.Future[str]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def may_be_answered(self, answer: str) -> bool:
        """Only an admin can allow anything. Others who were asked, and may still write, can say no or use words."""
        principal = self.judge()
        return principal is not None and (principal.is_admin or self.takes_words or answer == "no")


class Questions:
    """All open questions. They end with the process: if one is asked again, it has another id."""

    def __init__(self) -> None:
        self._open: dict[str, _OpenQuestion] = {}

    def answer(self, question: str, choice: str, where: Address, principal: Principal) -> bool:
        """By a button. False: the question is closed, was asked elsewhere, or is not theirs to answer."""
        found = self._open.get(question)
        if found is None or found.person != principal.person or choice not in found.answers:
            return False
        return found.where.chat == where.chat and self._settle(found, found.answers[choice])

    def decide(self, answer: Answer, where: Address, principal: Principal, instead: str = "") -> bool:
        """By a command: answer their oldest question there, for at most as long as it offers. False: there is none."""
        waiting = [one for one in self._of(where, principal) if not one.takes_words]
        if not waiting:
            return False
        offered = [one for one in ANSWERS[: ANSWERS.index(answer) + 1] if one in waiting[0].answers]
        waiting[0].instead = instead if answer == "no" else ""
        return self._settle(waiting[0], offered[-1])

    def reply(self, text: str, where: Address, principal: Principal) -> bool:
        """By a message. False: no question of theirs waits for words."""
        for found in self._of(where, principal):
            if found.takes_words:
                numbered = {str(at + 1): choice for at, choice in enumerate(found.answers.values())}
                return self._settle(found, numbered.get(text.strip(), text))
        return False

    def close_unanswerable(self) -> None:
        """After a change of the rules: close questions to which nobody may say yes any more."""
        for found in self._open.values():
            if not found.answer.done() and not found.may_be_answered("once"):
                found.answer.set_result("")

    def is_open(self, question: str) -> bool:
        return question in self._open

    def is_waiting_for_words(self, where: Address, principal: Principal) -> bool:
        return any(one.takes_words for one in self._of(where, principal))

    def _of(self, where: Address, principal: Principal) -> list[_OpenQuestion]:
        mine = [one for one in self._open.values() if one.where == where and one.person == principal.person]
        return [one for one in mine if not one.answer.done() and one.judge() is not None]

    def _settle(self, found: _OpenQuestion, answer: str) -> bool:
        """By the rules of this moment, not of the moment when it was asked."""
        if found.answer.done() or not found.may_be_answered(answer):
            return False
        found.answer.set_result(answer)
        return True

    @asynccontextmanager
    async def keep_open(self, question: _OpenQuestion) -> AsyncGenerator["asyncio.Future[str]"]:
        self._open[question.id] = question
        try:
            yield question.answer
        finally:
            del self._open[question.id]


class ChatPerson:
    def __init__(
        self,
        person: str,
        session: SessionId,
        where: Address,
        *,
        judge: Judge,
        replies: Callable[[], Awaitable[Replies]],
        questions: Questions,
        outbox: Outbox,
        wake: Callable[[str], None],
    ) -> None:
        """`judge` returns their present rights. `replies` waits until the platform is connected."""
        self._person = person
        self._session = session
        self._where = where
        self._judge = judge
        self._replies = replies
        self._questions = questions
        self._outbox = outbox
        self._wake = wake

    def may_approve(self) -> bool:
        """Only admins, who may do all that the person at the terminal may, can allow anything outside the sandbox."""
        principal = self._judge()
        return principal is not None and principal.is_admin

    async def allow(self, question: Question) -> Answer | Instead:
        """What does not fit into a message is attached as a file, whole; the question follows once that has arrived."""
        if not self.may_approve():
            await self._tell_refused(question, "only an admin can allow")
            return "no"
        replies = await self._replies()
        offered = question.offered
        reason = f"\n(Asked because {escape_markup(question.reason)}.)" if question.reason else ""
        reason += f"\n({escape_markup(question.model_words)})" if question.model_words else ""
        yes = (f"/approve {answer}: yes, {escape_markup(question.scope_of(answer))}" for answer in offered[1:])
        ways = "\n".join(("\n", *yes, "/deny: no; /deny WORDS tells it what to do instead"))
        end = f"{reason}{ways}"
        text = ""
        if len(question.text) <= MAX_INLINE_CHARS:
            is_long = question.content is not None and len(question.content) > LONG_CHARS
            facts = f"\nThe {question.noun}: {measure(question.content or '').text}." if is_long else ""
            text = f"{_heading(question)}\n{fence(question.text)}{facts}{end}"
        if not text or (question.content and len(replies.parts("", text)) > 1):
            text = await self._attach(question, replies, end, text)
        labels = _LABELS_OF_SANDBOX if question.opens_sandbox else _LABELS
        buttons = tuple(
            Button(labels[answer], f"q:{question.id}:{answer}", "bad" if answer == "no" else "good")
            for answer in (*offered[1:], "no")
        )
        asked = _OpenQuestion(question.id, self._person, self._where, self._judge, {one: one for one in offered})

        def outcome(answer: str) -> str:
            if answer == "no":
                return f"Denied. Instead: {escape_markup(asked.instead)}" if asked.instead else "Denied."
            scopes = (question.scope_of(one) for one in offered[1:] if one == answer)
            return next((f"Allowed, {escape_markup(scope)}." for scope in scopes), CLOSED)

        answer = await self._ask(asked, text, buttons, outcome, ways)
        if answer == "no" and asked.instead:
            return Instead(asked.instead)
        for one in offered:
            if one == answer:
                return one
        return "no"

    async def _attach(self, question: Question, replies: Replies, end: str, inline: str) -> str:
        """Send the content as a file and wait until it has arrived. Returns the question to ask then. Raises `Denied`.

        If the file cannot be sent, all of it may go into several messages.
        """
        if not self.may_approve():  # it may have taken long until something could be said there
            return inline
        failure: str | None = "files cannot be sent in this chat."
        if replies.capabilities.max_upload_bytes > 0:
            file = await in_thread(lambda: AttachedContent.of(question))
            body = OutgoingBody(
                file.caption, replies.reply_to, content=file.content, file_name=file.name, mime="text/plain"
            )
            row = replies.row(f"question:{question.id}:file", body)
            is_settled = False
            try:
                await self._say([row])
                async with park():
                    while (found := await self._outbox.find(row.key)) and found.state in ("pending", "started"):
                        await replies.clock.sleep(LOOK_S)
                is_settled = True
            finally:
                if not is_settled:  # nobody waits for it any more: take it back
                    nothing = Outgoing(row.target, encode_body(OutgoingBody()), row.key, row.expires_at)
                    await complete(self._say([nothing]))
            failure = "the message is gone." if found is None else None if found.state == "sent" else found.error
            if failure is None:
                texts = (file.question(question, most, end) for most in (FIRST_CHARS, FIRST_CHARS // 4, 0))
                return next((one for one in texts if len(replies.parts("", one)) == 1), file.question(question, 0, end))
        if inline and len(replies.parts("", inline)) <= MOST_PARTS:
            return inline
        await self._tell_refused(question, "could not be shown here in full")
        raise Denied(
            f"This {question.tool} call is refused: it is too long for a message, and the file that shows it could not "
            f"be sent: {failure} Do it in smaller pieces."
        )

    async def _tell_refused(self, question: Question, why: str) -> None:
        """People who may no longer write are told nothing."""
        replies = await self._replies()
        if self._judge() is None:
            return
        text = f"The agent wanted to do something that {why} ({question.tool}); it was not done."
        await self._say(replies.parts(f"question:{question.id}", text))

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:
        if self._judge() is None:
            return None
        id = secrets.token_hex(8)
        numbered = "\n".join(f"{number}. {choice}" for number, choice in enumerate(choices, 1))
        text = f"{question}\n\n{numbered}".strip()
        buttons = tuple(Button(choice[:40], f"q:{id}:{number}") for number, choice in enumerate(choices))
        answers = {str(number): choice for number, choice in enumerate(choices)}
        asked = _OpenQuestion(id, self._person, self._where, self._judge, answers, takes_words=True)
        answer = await self._ask(asked, text, buttons, lambda answer: f"→ {answer}" if answer else CLOSED)
        return answer or None

    async def _ask(
        self,
        asked: _OpenQuestion,
        text: str,
        buttons: tuple[Button, ...],
        describe: Callable[[str], str],
        ways: str = "",
    ) -> str:
        """Finally the message tells the outcome, without its buttons and the `ways` to answer."""
        replies = await self._replies()
        if not asked.may_be_answered("once"):  # it may have taken long until something could be said there
            return ""
        rows = replies.parts(f"question:{asked.id}", text)
        if len(rows) > MOST_PARTS:
            log.warning("a question of session %s is too long to be shown", self._session)
            return ""
        *before, last = [read_body(row.body).text for row in rows]
        key, reply_to = rows[-1].key, read_body(rows[-1].body).reply_to
        given, outcome = "", CLOSED
        try:
            async with self._questions.keep_open(asked) as answer, park():
                has_buttons = replies.capabilities.has_buttons
                body = OutgoingBody(last, reply_to, buttons if has_buttons else (), is_question=not asked.takes_words)
                asking = replies.row(key, body)
                await self._say([*rows[: len(before)], asking])
                given = await answer
            outcome = describe(given)
        except asyncio.CancelledError as request:  # it says so if the question was answered elsewhere
            outcome = str(request) or CLOSED
            raise
        finally:
            asked_text = last.removesuffix(ways)
            await complete(self._say([replies.row(key, OutgoingBody(f"{asked_text}\n\n{outcome}", reply_to))]))
        return given

    async def _say(self, rows: Sequence[Outgoing]) -> None:
        await self._outbox.add(self._session, rows)
        self._wake(str(self._where))


class WatchingPerson:
    """A person who watches the turn: they read questions among its events, and answer with a signal."""

    def __init__(self, judge: Judge) -> None:
        """`judge` returns their present rights."""
        self._judge = judge

    def may_approve(self) -> bool:
        principal = self._judge()
        return principal is not None and principal.is_admin

    async def allow(self, question: Question) -> Answer | Instead:  # noqa: ARG002  (it is among the events)
        return await self._wait() if self.may_approve() else "no"

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:  # noqa: ARG002
        return await self._wait() if self.may_approve() else None

    async def _wait(self) -> Never:
        """Until the question is closed, because it was answered or its time is over."""
        async with park():
            await asyncio.Event().wait()
        raise AssertionError


class AttachedContent(msgspec.Struct, frozen=True):
    """The content of a question as a file: unchanged to the byte, or with everything in it made visible."""

    name: str
    content: str
    caption: str
    facts: str
    """The file's name, its length, and the digest of what would be done."""

    @classmethod
    def of(cls, question: Question) -> "AttachedContent":
        given = question.content or ""
        shown, found = make_visible(given, kept="\t"), measure(given)
        name = f"{question.tool}-to-approve-{found.sha256[:8]}.txt"
        facts = f"All of the {question.noun} is in the file {name}. The {question.noun}: {found.text}."
        if shown != given:
            facts += (
                " In the file, invisible characters are written as escapes and long gaps are shortened; the file "
                f"itself has {measure(shown).text}."
            )
        return cls(name, shown, f"The {question.noun} that you are asked about, in full.", facts)

    def question(self, question: Question, most_chars: int, end: str) -> str:
        """With the first lines of the content."""
        first = "\n".join(self.content[:most_chars].split("\n")[:FIRST_LINES])
        begun = msgspec.structs.replace(question, content=first or None).text
        more = "\nThis is only the beginning." if first else ""
        return f"{_heading(question)}\n{fence(begun)}{more}\n{escape_markup(self.facts)}{end}"


def _heading(question: Question) -> str:
    return question.title or "May this run?"


async def close_dead_questions(store: Store, clock: Clock) -> None:
    """Close questions of processes that have ended: unsent ones expire, sent ones say that they are closed."""
    living = {one.id for one in await store.approvals.list_pending()}
    due = await store.outbox.list(("pending", "started"), MOST_OLD)
    for row in (*due, *await store.outbox.list(("sent",), MOST_OLD)):
        kind, _, rest = row.key.partition(":")
        if kind != "question" or rest.partition(":")[0] in living:
            continue
        body = read_body(row.body)
        if not (body.is_question or body.content):
            continue
        if row.state != "sent" and row.sent_id is None:
            await store.outbox.expire(row.id)
        elif body.is_question:
            closed = OutgoingBody(f"{body.text}\n\n{CLOSED}", body.reply_to)
            said = Outgoing(row.target, encode_body(closed), row.key, clock.now() + EXPIRES_AFTER_S)
            await store.outbox.add(row.session, [said])


def fence(text: str) -> str:
    """The text unchanged, whatever it contains: no part of it can pass for our own words."""
    shown = _FENCES.sub(lambda found: _spell_out(found[0]), make_visible(text))
    return f"{_FENCE}\n{shown}\n{_FENCE}"


def make_visible(text: str, *, kept: str = "") -> str:
    """Invisible characters other than `kept` become escapes, and long gaps are replaced by their length."""
    return without_blank_runs("\n".join(_escape_invisible(line, kept) for line in text.split("\n")))


def escape_markup(text: str) -> str:
    """In one line, and formatted like the words around it."""
    return _MARKUP.sub(r"\\\1", _escape_invisible(text))


def _escape_invisible(text: str, kept: str = "") -> str:
    shown = "".join(char if char.isprintable() or char in kept else _spell_out(char) for char in text)
    return _INVISIBLE.sub(lambda found: _spell_out(found[0]), shown)


def _spell_out(text: str) -> str:
    return "".join(f"\\u{ord(char):04x}" if ord(char) < 1 << 16 else f"\\U{ord(char):08x}" for char in text)
