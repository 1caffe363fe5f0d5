"""A conversation without a screen: one question with `-q`, or standard input line by line.

The first Ctrl-C stops the turn. Questions to the person, and the answers, are plain lines.
"""

import asyncio
import os
import shutil
import signal
import sys
import termios
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

from talaria.app.settings import Settings
from talaria.cli import exits
from talaria.cli.answer_view import AnswerView, view_for
from talaria.cli.command_output import print_failure
from talaria.cli.context import settings_of
from talaria.cli.conversation import INTERRUPTED, Conversation, open_conversation
from talaria.cli.notices import complain, discard_output, say
from talaria.cli.options import CliOptions, Format
from talaria.cli.references import is_piped, read_image, read_stdin, refuse_binary_lines, with_references
from talaria.cli.safe import decidable
from talaria.core.entries import Recorded
from talaria.core.errors import BadInput, TalariaError
from talaria.core.events import Event
from talaria.core.messages import Text, User
from talaria.core.questions import Answer, Instead, Question, measure
from talaria.runtime.chat import Reason
from talaria.runtime.lease import Observer
from talaria.runtime.turn_runner import Report
from talaria.store.base import Session

ANSWERS: dict[str, Answer] = {
    **dict.fromkeys(("", "n", "no"), "no"),
    **dict.fromkeys(("y", "yes", "once"), "once"),
    **dict.fromkeys(("s", "session", "a", "all"), "session"),
    **dict.fromkeys(("p", "project"), "project"),
    **dict.fromkeys(("always",), "always"),
}
INSTEAD = ("i", "instead")
MORE, ALL = ("m", "more", "v", "view"), ("a", "all")
"""Answers that show the next page or everything, while part of a question is hidden."""
OTHER_ROWS = 8
"""Rows of the terminal that are not available to one page of a question."""
MIN_ROWS = 5
MAX_LINE_BYTES = 4096
"""The longest line that a terminal delivers."""

T = TypeVar("T")
Complete = Callable[[str], Sequence[str]]
"""Completions for the start of a line."""


def run_without_screen(
    profile: str | None, options: CliOptions, query: str | None, images: tuple[Path, ...] = ()
) -> int:
    """Ask `query`, followed by the piped input (`-` means only that input), or run the lines of standard input."""
    try:
        found, message = settings_of(profile), None
        if query is not None:
            query = query.encode("utf-8", "replace").decode()  # an argument may hold bytes that are not text
            piped = read_stdin() if query == "-" or is_piped() else ""
            text = piped if query == "-" else "\n\n".join(filter(None, [query, piped]))
            if not text.strip():
                raise BadInput("The question is empty.")
            message = with_references(User((*(read_image(image) for image in images), Text(text))), Path.cwd())
        elif images:
            raise BadInput("--image needs a question: add -q TEXT.")
        else:
            refuse_binary_lines()
        return run_plain_chat(found, options, message)
    except TalariaError as error:
        if options.format != "text":
            print_failure(error, is_line=options.format == "stream-json")
        raise


def run_plain_chat(settings: Settings, options: CliOptions, message: User | None) -> int:
    """Returns the exit code of the question, or of the last line that failed."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        ui = PlainInterface(options)
        opening = open_conversation(settings, options, ui)
        try:
            plain = PlainChat(runner, runner.run(stack.enter_async_context(opening)), ui, options)
            return plain.ask_once(message) if message else plain.run_lines()
        finally:
            runner.run(stack.aclose())


class PlainChat:
    """Waits for lines outside the event loop."""

    def __init__(
        self, runner: asyncio.Runner, conversation: Conversation, ui: "PlainInterface", options: CliOptions
    ) -> None:
        self._runner = runner
        self._conversation = conversation
        self._ui = ui
        ui.stop_turn = conversation.interrupt
        self._is_interactive = options.is_interactive

    def ask_once(self, message: User) -> int:
        """An interrupted turn of this conversation is closed; interrupted turns elsewhere are only mentioned."""
        self._conversation.mention_root()
        self._conversation.mention_model()
        self._runner.run(self._conversation.mention_interrupted())
        code = self._run(self._conversation.ask(message)) or exits.DONE
        return code if self._ui.has_reader else exits.DONE

    def run_lines(self) -> int:
        """One turn per line until the input ends. Returns the code of the last one that failed."""
        self._runner.run(self._conversation.greet())
        self._runner.run(self._conversation.mention_sandbox())
        code = self._run(self._conversation.finish_interrupted()) or exits.DONE
        for line in read_lines(is_interactive=self._is_interactive, complete=self._conversation.complete_command):
            ended = self._run(self._conversation.handle_line(self._conversation.parse(line)))
            if ended is None:
                break
            if not self._ui.has_reader:
                return exits.DONE
            code = exits.of_all(exits.of_all(code, ended), self._run(self._conversation.run_injected()) or exits.DONE)
        return exits.DONE if self._is_interactive else code

    def _run(self, work: Coroutine[Any, Any, int | None]) -> int | None:
        try:
            return self._runner.run(run_interruptible(work, self._conversation.interrupt))
        except asyncio.CancelledError:
            say(INTERRUPTED)
            return exits.INTERRUPTED


async def run_interruptible(work: Coroutine[Any, Any, T], interrupt: Callable[[], bool]) -> T:
    """The first Ctrl-C calls `interrupt`, which stops the turn and stores how it ended, or returns False if no turn
    is running. A second Ctrl-C leaves at once."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def stop() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        if not interrupt() and task is not None:  # no turn has started, so no message was accepted
            task.cancel()

    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        return await work
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def read_lines(*, is_interactive: bool, complete: Complete) -> Iterator[str]:
    """Skips empty lines. On a terminal there is line editing and Tab completion."""
    if not is_interactive:
        if sys.stdin is not None:
            yield from (line.strip() for line in iter(sys.stdin.readline, "") if line.strip())
        return
    import readline  # noqa: PLC0415  (only needed with a terminal)

    def option(_: str, number: int) -> str | None:
        options = complete(readline.get_line_buffer())
        return options[number] if number < len(options) else None

    readline.set_completer_delims("")
    readline.set_completer(option)
    readline.parse_and_bind("tab: complete")
    descriptor = sys.stdin.fileno()
    while True:
        mode = termios.tcgetattr(descriptor)
        mode[3] |= termios.ECHO | termios.ICANON  # a chat that was killed inside a line may have left them off
        termios.tcsetattr(descriptor, termios.TCSANOW, mode)
        is_plain = not sys.stdout.isatty()
        if is_plain:  # `input` would write its prompt among the answers
            sys.stderr.write("› ")
            sys.stderr.flush()
        try:
            line = input("" if is_plain else "› ")
        except EOFError:
            sys.stderr.write("\n")
            return
        except KeyboardInterrupt:
            sys.stderr.write("\n")
            continue
        if line.strip():
            yield line.strip()


class PlainInterface:
    def __init__(self, options: CliOptions) -> None:
        self.person = TerminalPerson() if options.is_interactive else None
        self._format: Format = options.format
        self._view: AnswerView | None = None
        self.has_reader = True
        """False once the reader of stdout has left, as `head` does after some lines."""
        self.stop_turn: Callable[[], object] = lambda: None

    def say(self, text: str) -> None:
        say(text)

    def show_error(self, error: TalariaError) -> None:
        if self._format != "text":
            print_failure(error, is_line=self._format == "stream-json")
        complain(str(error))

    def on_switch(self, reason: Reason) -> None: ...

    async def repaint(self, row: Session, entries: Sequence[Recorded]) -> bool:  # noqa: ARG002  (of the port)
        return False

    def observer(self) -> Observer:
        view = self._view = view_for(self._format)

        def show(event: Event) -> None:
            """If nobody reads the output any more, the turn is stopped, as by Ctrl-C."""
            if self.has_reader and not self._is_written(lambda: view.show(event)):
                self.stop_turn()

        return show

    def show_report(self, report: Report) -> None:
        view = self._view
        if not self.has_reader or (view is not None and not self._is_written(lambda: view.finish(report))):
            return
        if report.error is not None:
            complain(str(report.error))
        elif report.outcome != "completed":
            say(INTERRUPTED)

    def _is_written(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except BrokenPipeError:
            self.has_reader = False
            discard_output()
        return self.has_reader


class TerminalPerson:
    """Asked before calls that need approval, and when the model has a question. One question at a time; no answer
    means no."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    def may_approve(self) -> bool:
        return True

    async def allow(self, question: Question) -> Answer | Instead:
        answers = _answer_hint(question)
        notes = f"\n  (asked because {decidable(question.reason)})" if question.reason else ""
        notes += f"\n  ({decidable(question.model_words)})" if question.model_words else ""
        if question.opens_sandbox:  # each answer has a line that says what it covers
            scopes = [(one if one == "always" else one[0], question.scope_of(one)) for one in question.offered[2:]]
            lines = [("y", "yes, this once"), *((key, f"yes, {scope}") for key, scope in scopes)]
            lines += [("i", "no, and tell it what to do instead"), ("n", "no")]
            notes += "".join(f"\n  {key:<7} {decidable(words)}" for key, words in lines)
        facts = f"\n  (the {question.noun}: {measure(question.content).text})" if question.content is not None else ""
        text, rows, page_rows = _lay_out(question)
        seen = min(page_rows, len(rows))

        def prompt(text: str, notes: str) -> str:
            hidden = len(rows) - seen
            if not hidden:
                return f"{text}{notes}\n  {answers}: "
            more = f"\n  (rows 1 to {seen:,} of {len(rows):,}; {hidden:,} are not shown yet: m shows more)"
            return f"{text}{more}{notes}\n  [m]ore, [a]ll of it, {answers}: "

        async with self._lock:
            answer = await _read_answer(prompt(f"\n{text}", f"{facts}{notes}"))
            while True:
                word = answer.lower()
                if seen < len(rows) and word in (*MORE, *ALL):
                    end = min(seen + page_rows, len(rows)) if word in MORE else len(rows)
                    page, seen = "\n".join(rows[seen:end]), end
                    answer = await _read_answer(prompt(page, ""))
                elif word in INSTEAD:
                    words = await _read_answer("  What to do instead (Enter: nothing): ")
                    return Instead(words) if words else "no"
                elif (meant := ANSWERS.get(word)) is not None and meant in question.offered:
                    return meant
                else:
                    offered = f"[m]ore, [a]ll of it, {answers}" if seen < len(rows) else answers
                    answer = await _read_answer(f"  That is not an answer. {offered}: ")

    async def choose(self, question: str, choices: Sequence[str]) -> str | None:
        """One of `choices`, by its number, or the person's own words. None if there is no answer."""
        numbered = (f"{number}  {' '.join(one.split())}" for number, one in enumerate(choices, 1))
        lines = (*decidable(question).split("\n"), *map(decidable, numbered))
        text = "".join(f"  {line}\n" for line in lines)  # every line is indented, so that none looks like ours
        hint = "A number, or your own words" if choices else "Your answer"
        async with self._lock:
            answer = await _read_answer(f"\nThe model asks:\n{text}{hint} (Enter: no answer): ")
        if answer.isdecimal() and 1 <= int(answer) <= len(choices):
            return choices[int(answer) - 1]
        return answer or None


def _answer_hint(question: Question) -> str:
    is_brief = question.opens_sandbox  # what each answer covers is explained above
    words: dict[Answer, str] = {
        "once": "[y]es",
        "session": "[s]ession" if is_brief else f"[s]ession: {question.in_session}",
        "project": "[p]roject",
        "always": "always" if is_brief else "always (30 days)",
        "no": "[N]o",
    }
    instead = "[i]nstead" if is_brief else "[i]nstead: say what to do"
    return ", ".join((*(words[one] for one in question.offered[1:]), instead, words["no"]))


def _lay_out(question: Question) -> tuple[str, list[str], int]:
    """The text to print first, all rows at this width, and how many of them make a page."""
    from talaria.cli.screen.width import wrap  # noqa: PLC0415  (only needed for questions)

    columns, height = shutil.get_terminal_size()
    page_rows = max(MIN_ROWS, height - OTHER_ROWS)
    if question.changes:
        from talaria.cli.screen.screen_interface import question_rows  # noqa: PLC0415  (as above)

        rows = question_rows(question, columns - 1, is_plain=True)
        return "\n".join(rows[:page_rows]), rows, page_rows
    text = decidable(question.text)
    rows = wrap(text, columns - 1)  # full rows make some terminals add an empty one
    return (text if len(rows) <= page_rows else "\n".join(rows[:page_rows])), rows, page_rows


async def _read_answer(prompt: str) -> str:
    """Read a line from the terminal. Unlike `input`, this can be interrupted."""
    descriptor = sys.stdin.fileno()
    termios.tcflush(descriptor, termios.TCIFLUSH)  # text typed before the question is not an answer to it
    sys.stderr.write(prompt)
    sys.stderr.flush()
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[str] = loop.create_future()

    def take() -> None:
        if not arrived.done():
            arrived.set_result(os.read(descriptor, MAX_LINE_BYTES).decode("utf-8", "replace"))

    loop.add_reader(descriptor, take)
    line = ""
    try:
        line = await arrived
    finally:
        loop.remove_reader(descriptor)
        if not line.endswith("\n"):  # after Ctrl-C or Ctrl-D, what comes next starts on its own line
            sys.stderr.write("\n")
            sys.stderr.flush()
    return line.strip()
