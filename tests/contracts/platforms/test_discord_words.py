"""The pure parts of the Discord platform: what is read, what is shown, what is refused."""

import json
import re
from typing import Any

import aiohttp
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.servers.discord_world import unmarked

from talaria.core.errors import BadConfig
from talaria.core.secret import Secret
from talaria.platforms.base import NotTaken, PlatformFailure, Refused, Rejected, Unsure
from talaria.platforms.discord import incoming, rest
from talaria.platforms.discord.config import DiscordSettings, check
from talaria.platforms.discord.incoming import DiscordAccount, DiscordChannel, DiscordInteraction, DiscordMessage
from talaria.platforms.discord.platform import Bookmarks
from talaria.platforms.discord.render import MAX_CHARS, content, plain, render
from talaria.platforms.http_sessions import explain_no_answer
from talaria.platforms.splitting import units
from talaria.testing.manual_clock import ManualClock


@pytest.mark.parametrize(
    ("markdown", "shown"),
    [
        ("**bold** *italic* ~~gone~~ `code`", "**bold** *italic* ~~gone~~ `code`"),
        ("__bold__ and _italic_", "**bold** and *italic*"),
        ("# One\n## Two\n#### Four", "# One\n\n## Two\n\n**Four**"),
        ("one\ntwo\n\nthree", "one\ntwo\n\nthree"),
        ("- a\n- b\n  - c", "- a\n- b\n  - c"),
        ("3. a\n4. b", "3. a\n4. b"),
        ("> said\n> more", "> said\n> more"),
        ("```python\nx = 1\n```", "```python\nx = 1\n```"),
        ("````\n```\n````", "```\n`\u200b``\n```"),
        ("[docs](https://example.org/a_b)", "[docs](<https://example.org/a_b>)"),
        ("[x](mailto:a@example.org) [y](javascript:z)", "x [y](javascript:z)"),
        ("![cat](https://evil.example/?q=secret)", "[cat](<https://evil.example/?q=secret>)"),
        ("<https://example.org>", "<https://example.org>"),
        ("see https://example.org/a_b_c now_and", r"see https://example.org/a_b_c now\_and"),
        ("a || b || c", r"a \|\| b \|\| c"),
        ("snake_case 2 * 3 ~x", r"snake\_case 2 \* 3 \~x"),
        ("<b>not html</b>", "<b>not html</b>"),
        ("@everyone and @here", "@\u200beveryone and @\u200bhere"),
        ("<@123> <@&5> <#7> <t:99> </go:8>", r"\<@123> \<@&5> \<#7> \<t:99> \</go:8>"),
        (r"\# no heading", r"\# no heading"),
        (r"1\. no list", r"1\. no list"),
        ("a\n\n---\n\nb", "a\n\n───\n\nb"),
        ("| a | bb |\n|---|---|\n| `c` | d |", "```\na | bb\n--|---\nc | d\n```"),
        ("`a``b`", "`` a`\u200b`b ``"),
        ("", ""),
    ],
)
def test_markdown_is_shown_as_discord_shows_it(markdown: str, shown: str) -> None:
    assert render(markdown) == shown


@given(st.text())
def test_any_text_is_rendered_within_the_limit(text: str) -> None:
    render(text)
    assert units(content(text * 50)) <= MAX_CHARS
    assert len(content(text * 50)) <= MAX_CHARS


@given(st.text(alphabet="ab_*~`|<>@#-.1\\ \n[](){}!:", max_size=200))
def test_any_markup_is_rendered(text: str) -> None:
    assert units(content(text)) <= MAX_CHARS


@given(st.lists(st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_*~|]{0,8}\Z"), min_size=1, max_size=20))
def test_words_survive(words: list[str]) -> None:
    said = re.sub(r"[*_~|]", "", " ".join(words))
    assert re.sub(r"[*_~|\\]", "", unmarked(render(" ".join(words)))).split() == said.split()


def test_text_that_grows_too_long_is_sent_as_it_was_written() -> None:
    text = "_ " * 900 + "@everyone"
    assert units(render(text)) > MAX_CHARS
    assert content(text) == plain(text)
    assert "@everyone" not in content(text)


def test_length_counts_as_the_strictest_would() -> None:
    assert units("a😀") == 3


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["1", "1001", "9000"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *DiscordMessage.__struct_fields__,
                    *DiscordInteraction.__struct_fields__,
                    *incoming.DiscordUser.__struct_fields__,
                    "url",
                ]
            ),
            inner,
            max_size=8,
        )
    ),
    max_leaves=30,
)
USER = st.fixed_dictionaries({"id": st.sampled_from(["1001", "9000"])}, optional={"bot": st.booleans()})
UPLOAD = st.fixed_dictionaries({"id": st.just("7"), "url": st.text()}, optional={"content_type": st.none() | st.text()})
IDS = st.sampled_from(["5", "", "x", "-1", "5\n", "\u0663", "9" * 5000])
MESSAGE = st.fixed_dictionaries(
    {"id": IDS, "channel_id": st.just("6"), "author": USER},
    optional={
        "content": st.text() | st.just("<@9000> <@!1001> <@&3>"),
        "type": st.integers(0, 30),
        "flags": st.integers(0, 2**31),
        "mentions": st.lists(USER, max_size=3),
        "attachments": st.lists(UPLOAD, max_size=2),
        "referenced_message": st.none() | st.fixed_dictionaries({"author": USER}),
        "message_snapshots": st.lists(st.fixed_dictionaries({"message": JSON}), max_size=2),
        "unknown": JSON,
    },
)
INTERACTION = st.fixed_dictionaries(
    {"id": IDS, "token": st.text(), "type": st.integers(0, 6), "channel": st.just({"id": "6", "type": 1})},
    optional={"data": JSON, "member": st.fixed_dictionaries({"user": USER}), "user": USER, "message": JSON},
)


@given(JSON | MESSAGE | INTERACTION, st.integers(0, 20))
def test_any_event_is_read_or_left(event: Any, type: int) -> None:
    body = json.dumps(event).encode()
    message = incoming.read(body, DiscordMessage)
    if message is not None:
        incoming.arrival(message, DiscordChannel(message.channel_id, type), DiscordAccount("9000", "3"))
    told = incoming.read(body, DiscordInteraction)
    if told is not None:
        incoming.command(told)
        incoming.press(told)


@given(st.binary())
def test_any_bytes_are_read_or_left(body: bytes) -> None:
    assert incoming.read(body, DiscordMessage) is None


def test_subcommands_are_words_of_the_command() -> None:
    inner = {"name": "set", "type": 1, "options": [{"name": "text", "type": 3, "value": "gpt"}]}
    told = {"id": "5", "token": "t", "type": 2, "channel": {"id": "6"}, "user": {"id": "1"}}
    read = incoming.read(
        json.dumps({**told, "data": {"name": "model", "options": [inner]}}).encode(), DiscordInteraction
    )
    assert read is not None
    arrival = incoming.command(read)
    assert arrival is not None
    assert arrival.text == "/model set gpt"


def test_time_is_read_from_ids() -> None:
    assert incoming.parse_timestamp("175928847299117063") == 1462015105.796
    assert incoming.snowflake_at(1462015105.796) == 175928847299117063 >> 22 << 22


@pytest.mark.parametrize(
    ("status", "headers", "body", "failure", "pause_s"),
    [
        (429, {"Retry-After": "65"}, b"<html>banned", NotTaken, 65.0),
        (429, {"Retry-After": "soon"}, b"<html>banned", NotTaken, None),
        (429, {"Retry-After": "nan"}, b"", NotTaken, None),
        (429, {"Retry-After": "3"}, b'{"retry_after": 2.25}', NotTaken, 2.25),
        (403, {}, b"<html>blocked", NotTaken, None),
        (404, {}, b"<html>", NotTaken, None),
        (302, {}, b"", NotTaken, None),
        (401, {}, b"", Refused, None),
        (413, {}, b"<html>", Rejected, None),
        (502, {}, b"<html>", Unsure, None),
        (408, {}, b"{}", Unsure, None),
        (400, {}, b'{"message": 5}', Rejected, None),
    ],
)
def test_answer_that_is_not_discords_is_understood(
    status: int, headers: dict[str, str], body: bytes, failure: type[PlatformFailure], pause_s: float | None
) -> None:
    found = rest.explain_refusal(status, headers, body)
    assert type(found) is failure
    assert getattr(found, "retry_after_s", None) == pause_s


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (aiohttp.ConnectionTimeoutError(), NotTaken),
        (aiohttp.ServerTimeoutError(), Unsure),
        (TimeoutError(), Unsure),
        (aiohttp.ServerDisconnectedError(), Unsure),
        (aiohttp.ClientOSError(104, "reset"), Unsure),
        (aiohttp.ClientPayloadError(), Unsure),
    ],
)
def test_broken_connection_is_understood(error: Exception, failure: type[PlatformFailure]) -> None:
    assert type(explain_no_answer("Discord", error)) is failure


def settings(**more: Any) -> DiscordSettings:
    given: dict[str, Any] = {"token": Secret("t"), **more}
    return DiscordSettings(**given)


@pytest.mark.parametrize(
    "wrong",
    [
        {"allowed_users": ("ada",)},
        {"allowed_users": ("ada#1234",)},
        {"admin_users": ("@ada",)},
        {"allowed_users": ("<@1001>",)},
        {"allowed_chats": ("general",)},
        {"home_channel": "#general"},
        {"home_channel": "2001:topic"},
        {"allowed_users": ("\uff11\uff10\uff10\uff11",)},
    ],
)
def test_name_in_place_of_an_id_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadConfig, match="Copy ID"):
        check(settings(**wrong))


@pytest.mark.parametrize(
    "wrong",
    [{"token": Secret("a\nb")}, {"token": Secret("tökén")}, {"api_url": "discord.com"}, {"gateway_url": "https://x"}],
)
def test_unusable_setting_is_refused_without_showing_it(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadConfig) as caught:
        check(settings(**wrong))
    assert "a\nb" not in str(caught.value)


def test_ids_are_accepted() -> None:
    check(settings(allowed_users=("175928847299117063",), allowed_chats=("2001",), home_channel="2001:2500"))


def test_bookmarks_keep_the_most_recent_channels() -> None:
    marks = Bookmarks.at(None, ManualClock())
    for channel in range(700):
        marks.mark(str(channel), str(1000 + channel))
    marks.mark("0", "5000")
    kept = Bookmarks.at(str(marks), ManualClock())
    assert len(kept.channels) == 500
    assert kept.channels[:2] == ["0", "699"]
    assert kept.last("699") == 1699


def test_bookmark_never_goes_back() -> None:
    marks = Bookmarks.at(None, ManualClock())
    marks.mark("1", "200")
    marks.mark("1", "100")
    assert marks.last("1") == 200


def test_unknown_channel_is_read_from_when_we_last_listened() -> None:
    clock = ManualClock()
    marks = Bookmarks.at(None, clock)
    before = marks.last("1")
    clock.advance(600)
    marks.advance_to_now(clock)
    assert marks.last("1") == incoming.snowflake_at(clock.now() - 60) > before
    assert Bookmarks.at(str(marks), clock).last("1") == marks.last("1")


@given(st.text())
def test_any_cursor_is_taken(cursor: str) -> None:
    assert msgspec.json.decode(str(Bookmarks.at(cursor, ManualClock())))["channels"] == {}
