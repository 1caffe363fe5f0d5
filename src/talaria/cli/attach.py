"""`talaria attach`: a conversation that another process runs, as it happens."""

from pathlib import Path

import click

from talaria.cli import exits
from talaria.cli.answer_view import view_for
from talaria.cli.context import home, with_store
from talaria.cli.notices import say
from talaria.cli.options import CliOptions, Format
from talaria.core.entries import MessageAdded, TurnEnded, TurnOutcome, TurnStarted
from talaria.core.errors import BadInput
from talaria.core.events import AnswerRestarted, QuestionAsked, QuestionClosed, TurnDone
from talaria.core.ids import OwnerId, SessionId, TurnId
from talaria.core.messages import Assistant
from talaria.runtime.live_socket import Live, Settled
from talaria.runtime.process import ProcessLinks
from talaria.runtime.replay import Replay
from talaria.runtime.turn_runner import Report
from talaria.runtime.watching import Position
from talaria.store.base import Session, Store

MAX_LOOKED_AT = 200
"""Of the latest conversations, when none is named."""
_EXITS: dict[TurnOutcome, int] = {
    "completed": exits.DONE,
    "interrupted": exits.INTERRUPTED,
    "failed": exits.PROVIDER_FAILED,
}
WATCHER = OwnerId("0-watcher")
"""Runs nothing itself."""


@click.command(
    "attach",
    help="Show a conversation that another process runs, as it happens. On a terminal it is like `talaria -r`: what you"
    " type is for the next turn, /steer and /stop are for the running one. Into a pipe it goes until that turn ends."
    " Without a name: the latest conversation that runs.",
)
@click.argument("name", required=False, metavar="ID|TITLE")
@click.option(
    "--output-format",
    "format",
    type=click.Choice(["text", "stream-json"]),
    default="text",
    help="How to print what happens.",
)
@click.pass_context
def command(ctx: click.Context, name: str | None, format: Format) -> int:
    found = home(ctx)
    row = with_store(found, lambda store: find_running(store, name))
    options = CliOptions(format, resume=row.id)
    if options.has_screen:
        from talaria.cli.screen.startup import run_screen  # noqa: PLC0415  (loads the rest after the prompt is drawn)

        return run_screen(ctx.find_root().obj, options)
    if row.open_turn is None:
        raise BadInput("Nothing is running in this conversation.")
    turn = row.open_turn
    return with_store(found, lambda store: print_turn(store, found / "run", row.id, turn, format))


async def find_running(store: Store, name: str | None) -> Session:
    """Raises `BadInput`, `UnknownSession`."""
    if name is not None:
        return await store.sessions.find(name)
    for row in await store.sessions.list(MAX_LOOKED_AT):
        if row.open_turn is not None and await store.journal.holder(row.id) is not None:
            return row
    raise BadInput("No conversation is running. `talaria sessions` lists all; `talaria -r ID` continues one.")


async def print_turn(store: Store, folder: Path, session: SessionId, turn: TurnId, format: Format) -> int:
    """Until it ends. Returns the exit code: of failures, the journal keeps the sentence and not the kind."""
    entries = await store.journal.entries(session)
    start = next((one.seq for one in entries if isinstance(one.entry, TurnStarted) and one.entry.turn == turn), 1)
    if await store.journal.holder(session) is None:
        say("The process that ran this turn is gone. Waiting for another one to finish it; Ctrl-C ends the waiting.")
    view, replay, answer = view_for(format), Replay(), ""
    async with ProcessLinks(store, WATCHER, folder) as links:
        async for told in links.watching.watch(session, Position(start - 1)):
            match told:
                case Settled(recorded, was_live):
                    if isinstance(recorded.entry, TurnEnded):
                        end = recorded.entry
                        view.show(TurnDone(turn, end.outcome, answer, end.usage, end.error))
                        view.finish(Report(session, turn, end.outcome, answer, end.usage, ""))
                        if end.error:
                            say(end.error)
                        return _EXITS[end.outcome]
                    if isinstance(recorded.entry, MessageAdded) and isinstance(recorded.entry.message, Assistant):
                        answer = recorded.entry.message.text
                    for event in () if was_live else replay.events(recorded):
                        view.show(event)
                case Live(event=QuestionAsked(question)) if format == "text":
                    say(f"It waits for an answer: {question.text}")
                case Live(event=QuestionClosed() as closed) if format == "text":
                    say(closed.sentence)
                case Live(event=event):
                    view.show(event)
                case _:
                    view.show(AnswerRestarted("The process that ran this turn is gone."))
    return exits.DONE
