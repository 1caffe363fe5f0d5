"""`talaria usage` and `/usage`: what model calls have used and cost."""

import asyncio
import json
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from talaria.app.build import open_store
from talaria.core.ids import SessionId
from talaria.core.usage import Usage
from talaria.store.base import NewSession, Spent
from talaria.testing.manual_clock import ManualClock
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Reply
from talaria.testing.servers.scripted_replies import ReplyUsage as Told

Talaria = Callable[..., subprocess.CompletedProcess[str]]

DAY_S = 86_400
DEAR, CHEAP, LOCAL = "anthropic:claude-opus-4-1", "openai:gpt-5-mini", "ollama:qwen3:8b"


def spent(model: str, cost_usd: float | None, usage: Usage = Usage(1000, 10)) -> Spent:  # noqa: B008  (frozen)
    return Spent(model, "local", "turn", usage, cost_usd)


def spend(home: Path, session: str, writes: Sequence[Spent], *, days_ago: float = 0.0) -> None:
    async def work() -> None:
        async with open_store(home, ManualClock(time.time() - days_ago * DAY_S)) as store:
            await store.spending.add(SessionId(session), writes)

    asyncio.run(work())


def converse(home: Path, session: str, title: str | None) -> None:
    async def work() -> None:
        async with open_store(home) as store:
            await store.sessions.create(NewSession(SessionId(session), "terminal", title=title))

    asyncio.run(work())


def day(days_ago: float = 0.0) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(time.time() - days_ago * DAY_S))


def table(output: str) -> list[list[str]]:
    """Without the heads."""
    return [line.split() for line in output.splitlines()[2:]]


def test_nothing_yet_is_one_sentence(talaria: Talaria) -> None:
    ended = talaria("usage")
    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr == "No model was called in the last 30 days.\n"
    assert talaria("usage", "--days", "1").stderr == "No model was called today.\n"


def test_nothing_yet_as_json_has_the_same_shape(talaria: Talaria) -> None:
    assert json.loads(talaria("usage", "--json").stdout) == {
        "by": "day",
        "days": 30,
        "rows": [],
        "total": {
            "key": "total",
            "calls": 0,
            "usage": {"input": 0, "output": 0, "cache_read": 0, "cache_write": 0, "reasoning": 0, "total": 0},
            "cache_share": None,
            "cost_usd": 0.0,
            "unpriced_calls": 0,
        },
    }


def test_days_are_rows_newest_first_with_a_total(talaria: Talaria, home: Path) -> None:
    spend(home, "a", [spent(DEAR, 1.5), spent(DEAR, 0.25)], days_ago=2)
    spend(home, "b", [spent(CHEAP, 0.0123, Usage(1_234_567, 89, 5_000_000, 1000))])
    ended = talaria("usage")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert table(ended.stdout) == [
        [day(), "1", "1,234,567", "5,000,000", "1,000", "89", "80%", "$0.0123"],
        [day(2), "2", "2,000", "0", "0", "20", "0%", "$1.75"],
        ["total", "3", "1,236,567", "5,000,000", "1,000", "109", "80%", "$1.76"],
    ]
    assert len({len(line) for line in ended.stdout.splitlines()[1:]}) == 1
    assert " ".join(ended.stdout.splitlines()[1].split()) == "day calls input read write output cache cost"


def test_days_before_those_asked_for_do_not_count(talaria: Talaria, home: Path) -> None:
    for days_ago in (0, 1, 29, 31, 400):
        spend(home, "a", [spent(DEAR, 1.0)], days_ago=days_ago)

    def days(*arguments: str) -> list[str]:
        return [row["key"] for row in json.loads(talaria("usage", "--json", *arguments).stdout)["rows"]]

    assert days() == [day(), day(1), day(29)]
    assert days("--days", "1") == [day()]
    assert days("--days", "36500") == [day(), day(1), day(29), day(31), day(400)]


def test_models_are_rows_and_a_long_name_is_not_cut(talaria: Talaria, home: Path) -> None:
    long = "together:meta-llama/Llama-3.3-70B-Instruct-Turbo-with-a-very-long-name"
    spend(home, "a", [spent(CHEAP, 0.5), spent(DEAR, 2.0), spent(CHEAP, 0.5)])
    assert [row[0] for row in table(talaria("usage", "--by", "model").stdout)] == [DEAR, CHEAP, "total"]
    spend(home, "a", [spent(long, 0.1)])
    lines = talaria("usage", "--by", "model").stdout.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [DEAR, CHEAP, long, "total"]
    assert lines[-1].split() == ["4", "4,000", "0", "0", "40", "0%", "$3.10"]


def test_sessions_are_shown_with_their_title_and_deleted_ones_as_such(talaria: Talaria, home: Path) -> None:
    converse(home, "20260101_000000_aaaaaaaa", "A talk about\x1b[2J " + "many things " * 20)
    spend(home, "20260101_000000_aaaaaaaa", [spent(DEAR, 1.0)])
    spend(home, "20260101_000000_gone", [spent(DEAR, 1.0)], days_ago=1)
    ended = talaria("usage", "--by", "session")
    assert "20260101_000000_aaaaaaaa  A talk about[2J many things many things" in ended.stdout
    assert "20260101_000000_gone  (deleted)\n" in ended.stdout
    assert "\x1b" not in ended.stdout
    told = json.loads(talaria("usage", "--by", "session", "--json").stdout)["rows"]
    assert [(row["key"][-4:], row["title"] is None) for row in told] == [("aaaa", False), ("gone", True)]


def test_conversation_without_a_title_is_shown_by_its_first_words(talaria: Talaria, server: ModelServer) -> None:
    server.say("one")
    talaria("-q", "What is the meaning of this?")
    shown = talaria("usage", "--by", "session").stdout
    assert re.search(r"^\d{8}_\S+  What is the meaning of this\?$", shown, re.MULTILINE)


def test_deleted_conversation_stays_counted(talaria: Talaria, server: ModelServer) -> None:
    server.say("one")
    id = json.loads(talaria("-q", "x", "--output-format", "json").stdout)["session"]
    talaria("sessions", "delete", id, "--yes")
    assert f"{id}  (deleted)\n" in talaria("usage", "--by", "session").stdout


def test_unknown_prices_are_not_told_as_nothing(talaria: Talaria, home: Path) -> None:
    spend(home, "a", [spent(LOCAL, None), spent(LOCAL, None), spent(DEAR, 1.0)])
    spend(home, "a", [spent(LOCAL, None)], days_ago=1)
    ended = talaria("usage")
    assert [row[-1] for row in table(ended.stdout)[:3]] == ["$1.00+", "unknown", "$1.00+"]
    assert ended.stdout.splitlines()[-1] == "+ 3 calls without a known price (providers.NAME.models.MODEL.prices)"
    rows = json.loads(talaria("usage", "--json").stdout)["rows"]
    assert [(row["cost_usd"], row["unpriced_calls"]) for row in rows] == [(1.0, 2), (None, 1)]


@pytest.mark.parametrize(
    ("cost_usd", "shown"),
    [(0.0, "$0.00"), (0.00001, "<$0.0001"), (0.0042, "$0.0042"), (1.0, "$1.00"), (1234.5, "$1,234.50")],
)
def test_costs_are_shown_as_far_as_they_say_something(
    talaria: Talaria, home: Path, cost_usd: float, shown: str
) -> None:
    spend(home, "a", [spent(DEAR, cost_usd)])
    assert table(talaria("usage").stdout)[0][-1] == shown


def test_share_of_the_cache_is_a_dash_without_a_prompt(talaria: Talaria, home: Path) -> None:
    spend(home, "a", [spent(DEAR, 0.0, Usage())])
    assert table(talaria("usage").stdout)[0][-2] == "\N{EN DASH}"
    assert json.loads(talaria("usage", "--json").stdout)["total"]["cache_share"] is None


def test_much_use_still_fits_the_screen(talaria: Talaria, home: Path) -> None:
    much = Usage(98_765_432, 12_345_678, 987_654_321, 23_456_789)
    spend(home, "20260101_000000_aaaaaaaa", [spent(DEAR, 1234.56, much), *[spent(LOCAL, None)] * 2000])
    for by in ("day", "model", "session"):
        lines = talaria("usage", "--by", by).stdout.splitlines()
        assert max(map(len, lines)) <= 80, "\n".join(lines)


def test_usage_of_a_store_that_is_damaged_is_told(talaria: Talaria, home: Path) -> None:
    home.mkdir()
    (home / "state.db").write_text("Dear diary, " * 1_000)
    ended = talaria("usage", "--json")
    assert (ended.returncode, json.loads(ended.stdout)["error"]["type"]) == (4, "StoreDamaged")


def test_chat_tells_what_it_has_used_and_what_today_has(talaria: Talaria, server: ModelServer, home: Path) -> None:
    with (home / "config.yaml").open("a") as settings:
        settings.write("providers: {custom: {models: {test-model: {prices: {input: 10, output: 20}}}}}")
    spend(home, "elsewhere", [spent(LOCAL, None)])
    spend(home, "elsewhere", [spent(DEAR, 100.0)], days_ago=1)
    server.say(Reply("one", usage=Told(input=20_000, output=1_000, cache_read=30_000)))
    ended = talaria(input="/usage\nhello\n/usage\n/help\n")
    assert (ended.returncode, ended.stdout) == (0, "one\n")
    assert ended.stderr.startswith(
        "This conversation: no model calls yet.\n"
        "Today: 1 call · 1,000 tokens in, 10 out · cost unknown\n"
        "This conversation: 1 call · 50,000 tokens in (60% from a cache), 1,000 out · $0.5200\n"
        "Today: 2 calls · 51,000 tokens in (59% from a cache), 1,010 out · $0.5200 + 1 call without a known price\n"
    )
    assert "\n/usage " in ended.stderr
