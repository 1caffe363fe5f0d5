"""`talaria usage`: show what model calls have used and cost."""

import time
from collections.abc import Iterator, Sequence

import click
import msgspec

from talaria.cli.command_output import json_option, print_json
from talaria.cli.context import home, with_store
from talaria.cli.notices import say, show
from talaria.cli.safe import brief, printable
from talaria.core.ids import SessionId
from talaria.runtime.accounts import TRIALS, cache_share, calls, dollars, midnight, total
from talaria.store.base import Store, UsageKey, UsageRow

SCREEN_COLUMNS = 80
_GAP = "  "
_HEADINGS = (
    ("", "", "cache", "cache", "", "from", ""),
    ("calls", "input", "read", "write", "output", "cache", "cost"),
)
_PRICES = "providers.NAME.models.MODEL.prices"


@click.command("usage", help="Show what model calls have used and cost.")
@click.option("--by", type=click.Choice(["day", "model", "session"]), default="day", show_default=True)
@click.option(
    "--days",
    type=click.IntRange(1, 36_500),
    default=30,
    show_default=True,
    metavar="N",
    help="Show the last N days, including today.",
)
@json_option
@click.pass_context
def command(ctx: click.Context, by: UsageKey, days: int, as_json: bool) -> None:
    since = midnight(time.time(), days - 1)
    rows, titles = with_store(home(ctx), lambda store: _read_usage(store, by, since))
    if as_json:
        documents = [{**_document(row), **({"title": titles[row.key]} if by == "session" else {})} for row in rows]
        print_json({"by": by, "days": days, "rows": documents, "total": _document(total(rows))})
    elif rows:
        show(*_format_table(by, rows, titles))
    else:
        say(f"No model was called {'today' if days == 1 else f'in the last {days} days'}.")


async def _read_usage(store: Store, by: UsageKey, since: float) -> tuple[Sequence[UsageRow], dict[str, str | None]]:
    """The rows and, if they are conversations, their titles: None if a conversation was deleted."""
    rows = await store.spending.usage(by, since)
    titles: dict[str, str | None] = {}
    for row in rows if by == "session" else ():
        if row.key == TRIALS:
            titles[row.key] = "talaria model try"
        else:
            session = await store.sessions.get(SessionId(row.key))
            titles[row.key] = (session.title or session.preview or "(empty)") if session else None
    return rows, titles


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


def _format_table(by: UsageKey, rows: Sequence[UsageRow], titles: dict[str, str | None]) -> Iterator[str]:
    """Names that leave too little room are put above their figures."""
    whole = total(rows)
    names = ["", by]
    for row in rows:
        name = printable(row.key)
        if row.key in titles:  # of a conversation, its id and title
            room = SCREEN_COLUMNS - len(row.key) - len(_GAP) - 1
            name = f"{row.key}{_GAP}{brief(printable(titles[row.key] or '(deleted)'), room)}"
        names.append(name)
    names.append("total")
    table: list[Sequence[str]] = [*_HEADINGS]
    for row in (*rows, whole):
        usage, share = row.usage, cache_share(row.usage)
        counts = (row.calls, usage.input, usage.cache_read, usage.cache_write, usage.output)
        cost = "unknown"
        if row.unpriced_calls != row.calls:
            cost = dollars(row.cost_usd) + ("+" if row.unpriced_calls else "")
        cached = "\N{EN DASH}" if share is None else f"{share:.0%}"
        table.append((*(f"{count:,}" for count in counts), cached, cost))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    figures = [_GAP.join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in table]
    width = max(map(len, names))
    if width + len(_GAP) + len(figures[0]) <= SCREEN_COLUMNS:
        yield from (f"{name.ljust(width)}{_GAP}{line}".rstrip() for name, line in zip(names, figures, strict=True))
    else:
        names[: len(_HEADINGS)] = "", ""  # a heading above the headings would only confuse
        for name, line in zip(names, figures, strict=True):
            yield from filter(None, (name, f"{_GAP}{line}".rstrip()))
    if whole.unpriced_calls:
        yield f"+ {calls(whole.unpriced_calls)} without a known price ({_PRICES})"
