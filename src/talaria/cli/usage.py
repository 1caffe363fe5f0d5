"""`talaria usage`: what model calls have used and cost."""

import time
from collections.abc import Iterator, Sequence

import click
import msgspec

from talaria.cli.command_output import json_option, print_json
from talaria.cli.context import home, with_store
from talaria.cli.model_trial import TRIALS
from talaria.cli.notices import say, show
from talaria.cli.safe import brief, printable
from talaria.core.ids import SessionId
from talaria.runtime.accounts import cache_share, calls, dollars, midnight, total
from talaria.store.base import Sessions, Store, UsageKey, UsageRow

SCREEN_COLUMNS = 80
_GAP = "  "
_HEADS = (
    ("", "", "cache", "cache", "", "from", ""),
    ("calls", "input", "read", "write", "output", "cache", "cost"),
)
_PRICES = "providers.NAME.models.MODEL.prices"


@click.command("usage", help="What model calls have used and cost.")
@click.option("--by", type=click.Choice(["day", "model", "session"]), default="day", show_default=True)
@click.option(
    "--days",
    type=click.IntRange(1, 36_500),
    default=30,
    show_default=True,
    metavar="N",
    help="The last N days; today is one of them.",
)
@json_option
@click.pass_context
def command(ctx: click.Context, by: UsageKey, days: int, as_json: bool) -> None:
    since = midnight(time.time(), days - 1)
    rows, titles = with_store(home(ctx), lambda store: _read(store, by, since))
    if as_json:
        documents = [{**_document(row), **({"title": titles[row.key]} if by == "session" else {})} for row in rows]
        print_json({"by": by, "days": days, "rows": documents, "total": _document(total(rows))})
    elif rows:
        show(*_table(by, rows, titles))
    else:
        say(f"No model was called {'today' if days == 1 else f'in the last {days} days'}.")


async def _read(store: Store, by: UsageKey, since: float) -> tuple[Sequence[UsageRow], dict[str, str | None]]:
    """The rows and, if they are conversations, what these are called: None if they are deleted."""
    rows = await store.spending.usage(by, since)
    sessions = rows if by == "session" else ()
    return rows, {row.key: await _title(SessionId(row.key), store.sessions) for row in sessions}


async def _title(session: SessionId, sessions: Sessions) -> str | None:
    if session == TRIALS:
        return "talaria model try"
    row = await sessions.get(session)
    return (row.title or row.preview or "(empty)") if row else None


def _document(row: UsageRow) -> dict[str, object]:
    is_unknown = row.calls > 0 and row.unpriced_calls == row.calls
    return {
        "key": row.key,
        "calls": row.calls,
        "usage": {**msgspec.structs.asdict(row.usage), "total": row.usage.total},
        "cache_share": cache_share(row.usage),
        "cost_usd": None if is_unknown else row.cost_usd,
        "unpriced_calls": row.unpriced_calls,
    }


def _table(by: UsageKey, rows: Sequence[UsageRow], titles: dict[str, str | None]) -> Iterator[str]:
    """Names that leave no room beside them stand above their figures."""
    whole = total(rows)
    names = ["", by, *(_name(row, titles) for row in rows), "total"]
    figures = _align([*_HEADS, *(_cells(row) for row in (*rows, whole))])
    width = max(map(len, names))
    if width + len(_GAP) + len(figures[0]) <= SCREEN_COLUMNS:
        yield from (f"{name.ljust(width)}{_GAP}{line}".rstrip() for name, line in zip(names, figures, strict=True))
    else:
        names[: len(_HEADS)] = "", ""  # a head above the heads would only confuse
        for name, line in zip(names, figures, strict=True):
            yield from filter(None, (name, f"{_GAP}{line}".rstrip()))
    if whole.unpriced_calls:
        yield f"+ {calls(whole.unpriced_calls)} without a known price ({_PRICES})"


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [_GAP.join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _name(row: UsageRow, titles: dict[str, str | None]) -> str:
    """Of a conversation, its id and what it is called."""
    if row.key not in titles:
        return printable(row.key)
    room = SCREEN_COLUMNS - len(row.key) - len(_GAP) - 1
    return f"{row.key}{_GAP}{brief(printable(titles[row.key] or '(deleted)'), room)}"


def _cells(row: UsageRow) -> Sequence[str]:
    usage, share = row.usage, cache_share(row.usage)
    counts = (row.calls, usage.input, usage.cache_read, usage.cache_write, usage.output)
    return (*(f"{count:,}" for count in counts), "\N{EN DASH}" if share is None else f"{share:.0%}", _cost(row))


def _cost(row: UsageRow) -> str:
    if row.unpriced_calls == row.calls:
        return "unknown"
    return dollars(row.cost_usd) + ("+" if row.unpriced_calls else "")
