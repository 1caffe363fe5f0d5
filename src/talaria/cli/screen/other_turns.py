"""Shows turns of the conversation that other processes run: a gateway, or another terminal. The person can steer and
stop them, and answer their questions."""

import asyncio
from collections.abc import Callable

from talaria.cli.conversation import INTERRUPTED, Conversation
from talaria.cli.screen.screen_interface import ScreenInterface
from talaria.core.entries import MessageAdded, TurnEnded, TurnStarted
from talaria.core.errors import TalariaError
from talaria.core.events import AnswerRestarted, Event, QuestionAsked, QuestionClosed, TurnDone
from talaria.core.messages import User
from talaria.core.questions import Instead, ModelQuestion, Question
from talaria.runtime.lease import Observer
from talaria.runtime.live_socket import Live, Settled
from talaria.runtime.replay import Replay
from talaria.runtime.turn_signals import SignalSender
from talaria.runtime.watching import Position, Restarted, Watched

GONE = (
    "The process that ran this turn is gone. A gateway finishes its turns when it is started again; otherwise, "
    "/resume does."
)


class OtherTurns:
    def __init__(self, conversation: Conversation, view: ScreenInterface, on_end: Callable[[], None]) -> None:
        self._conversation = conversation
        self.session = conversation.session
        self._view = view
        self._on_end = on_end
        self._observer: Observer | None = None
        """Of the turn that is shown."""
        self._replay = Replay()
        self._is_own = False
        """The turn that is told now runs in this process, and is shown anyway."""
        self._questions: dict[str, asyncio.Task[None]] = {}
        app = conversation.app
        self._sender = SignalSender(app.store, app.links.changes, app.links.folder, by="local", surface="terminal")

    @property
    def is_running(self) -> bool:
        return self._observer is not None

    async def follow(self, seq: int) -> None:
        """From after this entry on, until cancelled."""
        watching = self._conversation.app.links.watching
        try:
            async for told in watching.watch(self.session, Position(seq)):
                self._show(told)
        except TalariaError as fault:
            self._view.say_failure(f"What happens in other processes is not shown any more: {fault}")
        finally:
            self._close_questions()

    async def stop(self) -> None:
        try:
            signal = await self._sender.stop(self.session)
        except TalariaError as fault:
            self._view.say_failure(str(fault))
            return
        if signal.state == "new":
            self._view.say("The process that runs the turn has not answered yet. It will stop as soon as it looks.")

    async def steer(self, text: str) -> None:
        try:
            await self._sender.steer(self.session, text)
        except TalariaError as fault:
            self._view.say_failure(f"{fault} Not sent: {text}")
        else:
            self._view.show_note(text)

    def _show(self, told: Watched) -> None:
        match told:
            case Settled(recorded, was_live):
                match recorded.entry:
                    case TurnStarted(turn):
                        self._is_own = self._conversation.runs_itself(turn)
                        if not self._is_own:
                            self._end()
                    case MessageAdded(User(author="person") as message) if not self._is_own:
                        self._view.echo(message.text)
                        self._begin()
                    case MessageAdded(User(author="steering") as message) if not self._is_own:
                        self._view.show_note(message.text)
                    case TurnEnded(_, outcome, _, error):
                        if not self._is_own:
                            self._end()
                            if outcome != "completed":
                                self._view.say_failure(error or INTERRUPTED)
                            self._view.say("")
                        self._is_own = False
                    case _ if not self._is_own and not was_live:
                        for event in self._replay.events(recorded):
                            self._begin()(event)
                    case _:
                        pass
            case Live(event=event):
                if not self._is_own and not (isinstance(event, TurnDone) and self._observer is None):
                    self._show_live(event)
            case Restarted():
                if self._observer is not None:
                    self._observer(AnswerRestarted(""))
                    self._end()
                    self._view.say(GONE)

    def _show_live(self, event: Event) -> None:
        match event:
            case QuestionAsked(question):
                task = asyncio.create_task(self._answer(question), name="question of another process")
                self._questions[question.id] = task
            case QuestionClosed():
                if (asking := self._questions.pop(event.id, None)) is not None:
                    asking.cancel()
                self._view.say(event.sentence)
            case _:
                self._begin()(event)

    def _begin(self) -> Observer:
        if self._observer is None:
            self._observer = self._view.observer("/stop stops")
        return self._observer

    def _end(self) -> None:
        self._close_questions()
        self._replay = Replay()
        if self._observer is not None:
            self._observer = None
            self._view.end_view()
            self._on_end()

    def _close_questions(self) -> None:
        for asking in self._questions.values():
            asking.cancel()
        self._questions.clear()

    async def _answer(self, question: Question | ModelQuestion) -> None:
        """The first answer counts, wherever it is given."""
        answer, words = "no", ""
        match question:
            case Question():
                given = await self._view.person.allow(question)
                answer, words = ("no", given.words) if isinstance(given, Instead) else (given, "")
            case ModelQuestion(_, text, choices):
                chosen = await self._view.person.choose(text, choices)
                if not chosen:
                    return
                answer, words = (chosen, "") if chosen in choices else ("", chosen)
        try:
            signal = await self._sender.answer(self.session, question.id, answer, words)
        except TalariaError as fault:
            self._view.say_failure(str(fault))
        else:
            if signal.state == "late":
                self._view.say(signal.outcome)
