"""What Slack tells and what it is shown, as values: nothing that anybody writes can break either."""

import json
import tomllib
from importlib.resources import files
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from talaria.core.errors import BadConfig
from talaria.core.secret import Secret
from talaria.platforms.base import Address, Arrival, Button, PlatformManifest, Press
from talaria.platforms.slack import incoming, render
from talaria.platforms.slack.config import SlackSettings, check
from talaria.platforms.slack.incoming import Us
from talaria.platforms.slack.platform import CAPABILITIES
from talaria.testing.servers import slack_blocks

US = Us("UBOT1", frozenset({"C7:1700000000.000001"}))
FOLDER = files("talaria.platforms.slack")


def section(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"type": "rich_text_section", "elements": list(spans)}


def text(words: str, *styles: str) -> dict[str, Any]:
    style = {"style": dict.fromkeys(styles, True)} if styles else {}
    return {"type": "text", "text": words, **style}


def code(words: str, **more: str) -> dict[str, Any]:
    return {"type": "rich_text_preformatted", "elements": [text(words)], **more}


def listed(style: str, *items: str, indent: int = 0, offset: int = 0) -> dict[str, Any]:
    elements = [section(text(item)) for item in items]
    return {"type": "rich_text_list", "elements": elements, "style": style, "indent": indent, "offset": offset}


SHOWN: list[tuple[str, list[dict[str, Any]]]] = [
    ("plain", [section(text("plain"))]),
    ("# Title\n\nbody", [section(text("Title", "bold"), text("\n\n"), text("body"))]),
    (
        "**b** *i* ~~s~~ ***bi***",
        [
            section(
                text("b", "bold"),
                text(" "),
                text("i", "italic"),
                text(" "),
                text("s", "strike"),
                text(" "),
                text("bi", "italic", "bold"),
            )
        ],
    ),
    ("`<x> & y`", [section(text("<x> & y", "code"))]),
    ("```python\nif a < b:\n    pass\n```", [code("if a < b:\n    pass", language="python")]),
    ("```\n```", [code(" ")]),
    ("- a\n- b\n  - c", [listed("bullet", "a", "b"), listed("bullet", "c", indent=1)]),
    ("3. a\n4. b", [listed("ordered", "a", "b", offset=2)]),
    ("1. a\n\n   ```\n   x\n   ```\n2. b", [listed("ordered", "a"), code("x"), listed("ordered", "b", offset=1)]),
    ("> said **so**\n> twice", [{"type": "rich_text_quote", "elements": [text("said so\ntwice")]}]),
    ("[here](https://a.example)", [section({"type": "link", "url": "https://a.example", "text": "here"})]),
    ("![cat](https://a.example/c.png)", [section({"type": "link", "url": "https://a.example/c.png", "text": "cat"})]),
    ("[x](javascript:alert)", [section(text("[x](javascript:alert)"))]),
    ("[x](notes.md)", [section(text("x"), text(" (notes.md)"))]),
    ("#\n\nx", [section(text("x"))]),
    ("- a\n-", [listed("bullet", "a", " ")]),
    ("[1]: https://a.example", [section(text("[1]: https://a.example"))]),
    ("<!channel> <@U1> @here", [section(text("<!channel> <@U1> @here"))]),
    ("<b>html</b>", [section(text("<b>html</b>"))]),
    ("| a | long |\n|---|---|\n| **1** | 2 |", [code("a  long\n-  ----\n1  2")]),
    ("a\n\n---\n\nb", [section(text("a"), text("\n\n"), text("———"), text("\n\n"), text("b"))]),
]


@pytest.mark.parametrize(("markdown", "elements"), SHOWN, ids=[markdown[:20] for markdown, _ in SHOWN])
def test_markdown_is_shown_as_rich_text(markdown: str, elements: list[dict[str, Any]]) -> None:
    assert render.blocks(markdown) == [{"type": "rich_text", "elements": elements}]


def test_buttons_stand_below_the_text_each_with_its_own_name() -> None:
    buttons = tuple(Button("L" * 100, f"d{number}", "bad") for number in range(30))
    blocks = render.blocks("x", buttons)
    assert slack_blocks.problem(blocks) == ""
    assert [one["value"] for one in slack_blocks.buttons(blocks)] == [f"d{number}" for number in range(30)]


MARKDOWN = st.text(st.sampled_from("ab \n#*_`~[]()<>!|-1.&\\:/@"), max_size=200) | st.text(max_size=200)


@given(MARKDOWN)
def test_whatever_the_model_writes_slack_takes_it(markdown: str) -> None:
    assert slack_blocks.problem(render.blocks(markdown)) == ""
    plain = render.plain(markdown)
    assert not set("<>") & set(plain)
    assert len(plain) <= 40_000


@given(st.text(st.sampled_from("ab \n#*_[]<>!-1.&\\:/@"), max_size=200))
def test_the_words_survive(markdown: str) -> None:
    shown = [json.dumps(render.blocks(markdown)), render.plain(markdown)]
    for letters in "".join(sign if sign in "ab" else " " for sign in markdown).split():
        assert all(letters in one for one in shown)


@given(st.text(st.sampled_from("ab *_\n-&<"), max_size=CAPABILITIES.max_chars))
def test_plain_words_with_buttons_are_always_taken(markdown: str) -> None:
    assert slack_blocks.problem(render.plain_blocks(markdown, (Button("Yes", "y"),))) == ""


ENVELOPES: dict[str, dict[str, Any]] = {
    "events_api": {"event": {"type": "message", "ts": "1700000000.000100", "user": "U1", "channel": "C7", "text": "x"}},
    "slash_commands": {"channel_id": "C7", "user_id": "U1", "trigger_id": "1.2.abc", "text": "status"},
    "interactive": {
        "user": {"id": "U1"},
        "container": {"channel_id": "C7", "message_ts": "1700000000.000100"},
        "actions": [{"action_ts": "1700000000.000200", "value": "y"}],
    },
}
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.sampled_from(
        [[], {}, [{}], {"id": 1}, [{"id": "F1", "size": -1}], "<@UBOT1>", "<|>", "1.", ".1", "\u0661.\u0662", "\ud800"]
    ),
)
FIELDS = [
    "type",
    "subtype",
    "ts",
    "thread_ts",
    "user",
    "channel",
    "text",
    "bot_id",
    "hidden",
    "files",
    "parent_user_id",
]
KEYS = st.sampled_from([*FIELDS, *(key for envelope in ENVELOPES.values() for key in envelope)])


@given(st.sampled_from([*ENVELOPES]), st.dictionaries(KEYS, VALUES, max_size=3))
def test_whatever_slack_tells_nothing_breaks(kind: str, odd: dict[str, Any]) -> None:
    usual = ENVELOPES[kind]
    payload = {"event": {**usual["event"], **odd}} if "event" in usual else {**usual, **odd}
    found = incoming.items(kind, msgspec.Raw(json.dumps(payload).encode()), US)
    assert found or odd
    for item in found:
        assert isinstance(item, Arrival | Press)
        assert msgspec.json.encode(item)


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"\xff", b"[" * 5000, b'{"event":' * 5000], ids=["empty", "cut", "bytes", "deep", "nested"]
)
def test_what_is_no_json_is_not_for_us(payload: bytes) -> None:
    assert incoming.items("events_api", msgspec.Raw(payload), US) == ()


def said(**fields: Any) -> Arrival | None:
    usual = {"type": "message", "ts": "1700000000.000100", "user": "U1", "channel": "C7", "text": ""}
    message = incoming.decode({**usual, **fields}, incoming.SlackMessage)
    return message and incoming.arrival(message, US)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("<@UBOT1>: do it", "do it"),
        ("ask <@UBOT1|bot> about it", "ask about it"),
        ("<@UBOT1> /status", "/status"),
        ("<@U2> and <@U3|ann>", "@U2 and @ann"),
        ("in <#C1|general>", "in #general"),
        ("<!here> <!subteam^S1|@ops> <!date^1^{date}|1970>", "@here @ops 1970"),
        ("<https://a.example> <mailto:a@b.example|a@b.example>", "https://a.example a@b.example"),
        ("&lt;@UBOT1&gt; &amp;amp;", "<@UBOT1> &amp;"),
    ],
)
def test_a_message_reads_as_people_see_it(told: str, words: str) -> None:
    arrival = said(text=told)
    assert arrival is not None
    assert arrival.text == words


def test_a_mention_that_was_typed_as_text_is_none() -> None:
    arrival = said(text="&lt;@UBOT1&gt; hi")
    assert arrival is not None
    assert not arrival.is_addressed


def test_the_first_message_of_a_thread_stands_in_the_channel() -> None:
    first, reply = said(thread_ts="1700000000.000100"), said(thread_ts="1700000000.000001")
    assert first is not None
    assert reply is not None
    assert first.where == Address("slack", "C7")
    assert (reply.where, reply.is_addressed) == (Address("slack", "C7", "1700000000.000001"), True)


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ({"mimetype": "image/png"}, "image"),
        ({"mimetype": "audio/mp4", "subtype": "slack_audio"}, "voice"),
        ({"mimetype": "audio/mpeg"}, "audio"),
        ({"mimetype": "video/mp4"}, "video"),
        ({"mimetype": "application/pdf"}, "document"),
        ({}, "document"),
    ],
)
def test_a_file_is_known_by_its_kind(file: dict[str, str], kind: str) -> None:
    arrival = said(subtype="file_share", files=[{"id": "F1", **file}, {"id": "F2", "mode": "tombstone"}])
    assert arrival is not None
    assert [(one.ref, one.kind) for one in arrival.attachments] == [("F1", kind)]


def settings(**more: Any) -> SlackSettings:
    return msgspec.structs.replace(SlackSettings(bot_token=Secret("xoxb-1"), app_token=Secret("xapp-1")), **more)


def test_settings_with_ids_are_taken() -> None:
    check(
        settings(
            allowed_users=("U0123ABC", "W9"), allowed_chats=("C1", "G1", "D1"), home_channel="C1:1700000000.000100"
        )
    )


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"allowed_users": ("@ann",)}, "Copy member ID"),
        ({"admin_users": ("ann",)}, "'ann' is not an id"),
        ({"allowed_users": ("C1",)}, "allowed_users"),
        ({"allowed_chats": ("#general",)}, "allowed_chats"),
        ({"home_channel": "#general"}, "home_channel"),
        ({"home_channel": "U1"}, "home_channel"),
        ({"bot_token": Secret("xapp-1")}, "SLACK_BOT_TOKEN.* must begin with xoxb-"),
        ({"app_token": Secret("")}, "SLACK_APP_TOKEN.* must begin with xapp-"),
        ({"api_url": "slack.com"}, "api_url"),
    ],
    ids=str,
)
def test_names_and_mistaken_tokens_are_refused_with_the_way_out(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadConfig, match=sentence):
        check(settings(**wrong))


def test_the_manifest_names_settings_that_there_are() -> None:
    manifest = msgspec.convert(tomllib.loads((FOLDER / "manifest.toml").read_text("utf-8")), PlatformManifest)
    known = {field.name for field in msgspec.structs.fields(SlackSettings)}
    assert {*manifest.environment.values(), *manifest.required, *manifest.secrets} <= known
    assert manifest.name == "slack"


def test_the_manifest_of_the_app_turns_on_what_we_use() -> None:
    app = yaml.safe_load((FOLDER / "app_manifest.yaml").read_text("utf-8"))
    assert app["settings"]["socket_mode_enabled"]
    assert app["settings"]["interactivity"]["is_enabled"]
    assert app["features"]["slash_commands"][0]["command"] == "/talaria"
    wanted = {
        "chat:write",
        "im:history",
        "channels:history",
        "files:read",
        "files:write",
        "reactions:write",
        "users:read",
    }
    assert wanted <= set(app["oauth_config"]["scopes"]["bot"])
