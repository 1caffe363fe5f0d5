"""`talaria usage` and `/usage`: what model calls have used and cost."""

import asyncio
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import shorten

import click
import msgspec

from talaria.cli import surroundings
from talaria.cli.notices import say
from talaria.cli.render import print_json, told
from talaria.cli.safe import printable
from talaria.cli.trial import TRIALS
from talaria.compose import open_store
from talaria.model.ids import SessionId
from talaria.model.usage import NO_USAGE, Usage
from talaria.store.base import Sessions, Spending, UsageKey, UsageRow

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
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(ctx: click.Context, by: UsageKey, days: int, as_json: bool) -> None:
    with told(as_json=as_json):
        rows, titles = asyncio.run(_read(surroundings.home(ctx), by, _midnight(time.time(), days - 1)))
    if as_json:
        documents = [{**_document(row), **({"title": titles[row.key]} if by == "session" else {})} for row in rows]
        print_json({"by": by, "days": days, "rows": documents, "total": _document(_total(rows))})
    elif rows:
        for line in _table(by, rows, titles):
            click.echo(line)
    else:
        say(f"No model was called {'today' if days == 1 else f'in the last {days} days'}.")


async def summary(spending: Spending, session: SessionId, now: float) -> str:
    """Of one conversation and of today, a line each."""
    ours = [row for row in await spending.usage("session") if row.key == session]
    today = await spending.usage("day", _midnight(now))
    return f"This conversation: {_phrase(_total(ours))}\nToday: {_phrase(_total(today))}"


def dollars(cost_usd: float) -> str:
    """What costs something never looks as if it were free."""
    if 0 < cost_usd < 0.0001:
        return "<$0.0001"
    return f"${cost_usd:.4f}" if 0 < cost_usd < 1 else f"${cost_usd:,.2f}"


async def _read(home: Path, by: UsageKey, since: float) -> tuple[Sequence[UsageRow], dict[str, str | None]]:
    """The rows and, if they are conversations, what these are called: None if they are deleted."""
    async with open_store(home) as store:
        rows = await store.spending.usage(by, since)
        sessions = rows if by == "session" else ()
        return rows, {row.key: await _title(SessionId(row.key), store.sessions) for row in sessions}


async def _title(session: SessionId, sessions: Sessions) -> str | None:
    if session == TRIALS:
        return "talaria model try"
    row = await sessions.get(session)
    return (row.title or row.preview or "(empty)") if row else None


def _midnight(now: float, days_before: int = 0) -> float:
    """Where the day began, in local time."""
    day = time.localtime(now)
    return time.mktime((day.tm_year, day.tm_mon, day.tm_mday - days_before, 0, 0, 0, 0, 0, -1))


def _total(rows: Sequence[UsageRow]) -> UsageRow:
    return UsageRow(
        "total",
        sum(row.calls for row in rows),
        sum((row.usage for row in rows), NO_USAGE),
        math.fsum(row.cost_usd for row in rows),
        sum(row.unpriced_calls for row in rows),
    )


def _document(row: UsageRow) -> dict[str, object]:
    is_unknown = row.calls > 0 and row.unpriced_calls == row.calls
    return {
        "key": row.key,
        "calls": row.calls,
        "usage": {**msgspec.structs.asdict(row.usage), "total": row.usage.total},
        "cache_share": _cache_share(row.usage),
        "cost_usd": None if is_unknown else row.cost_usd,
        "unpriced_calls": row.unpriced_calls,
    }


def _cache_share(usage: Usage) -> float | None:
    return usage.cache_read / usage.prompt if usage.prompt else None


def _phrase(row: UsageRow) -> str:
    if not row.calls:
        return "no model calls yet."
    usage, share = row.usage, _cache_share(row.usage)
    cached = f" ({share:.0%} from a cache)" if share else ""
    tokens = f"{usage.prompt:,} tokens in{cached}, {usage.output:,} out"
    return f"{_calls(row.calls)} · {tokens} · {_cost_phrase(row)}"


def _cost_phrase(row: UsageRow) -> str:
    if row.unpriced_calls == row.calls:
        return "cost unknown"
    unpriced = f" + {_calls(row.unpriced_calls)} without a known price" if row.unpriced_calls else ""
    return dollars(row.cost_usd) + unpriced


def _calls(count: int) -> str:
    return f"{count:,} call{'' if count == 1 else 's'}"


def _table(by: UsageKey, rows: Sequence[UsageRow], titles: dict[str, str | None]) -> Iterator[str]:
    """Names that leave no room beside them stand above their figures."""
    total = _total(rows)
    names = ["", by, *(_name(row, titles) for row in rows), "total"]
    figures = _aligned([*_HEADS, *(_cells(row) for row in (*rows, total))])
    width = max(map(len, names))
    if width + len(_GAP) + len(figures[0]) <= SCREEN_COLUMNS:
        yield from (f"{name.ljust(width)}{_GAP}{line}".rstrip() for name, line in zip(names, figures, strict=True))
    else:
        names[: len(_HEADS)] = "", ""  # a head above the heads would only confuse
        for name, line in zip(names, figures, strict=True):
            yield from filter(None, (name, f"{_GAP}{line}".rstrip()))
    if total.unpriced_calls:
        yield f"+ {_calls(total.unpriced_calls)} without a known price ({_PRICES})"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [_GAP.join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _name(row: UsageRow, titles: dict[str, str | None]) -> str:
    """Of a conversation, its id and what it is called."""
    if row.key not in titles:
        return printable(row.key)
    room = SCREEN_COLUMNS - len(row.key) - len(_GAP)
    return f"{row.key}{_GAP}{shorten(printable(titles[row.key] or '(deleted)'), room, placeholder=' …')}"


def _cells(row: UsageRow) -> Sequence[str]:
    usage, share = row.usage, _cache_share(row.usage)
    counts = (row.calls, usage.input, usage.cache_read, usage.cache_write, usage.output)
    return (*(f"{count:,}" for count in counts), "\N{EN DASH}" if share is None else f"{share:.0%}", _cost(row))


def _cost(row: UsageRow) -> str:
    if row.unpriced_calls == row.calls:
        return "unknown"
    return dollars(row.cost_usd) + ("+" if row.unpriced_calls else "")
