"""The names that third-party platform adapters import, and the pure parts between them and our port."""

import builtins
import importlib
import inspect
import json
import string
import sys
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talaria.compat.hermes import finder
from talaria.compat.hermes.aliases import hermes_cli_config as setup
from talaria.compat.hermes.aliases import hermes_cli_plugins as middleware
from talaria.compat.hermes.aliases import hermes_gateway as status
from talaria.compat.hermes.aliases import hermes_gateway as whatsapp
from talaria.compat.hermes.aliases import hermes_platforms as helpers
from talaria.compat.hermes.aliases.hermes_gateway import (
    HomeChannel,
    Platform,
    PlatformConfig,
    SessionSource,
    build_session_key,
)
from talaria.compat.hermes.aliases.hermes_platforms import (
    BasePlatformAdapter,
    MessageEvent,
    MessageType,
    SendResult,
    cache_document_from_bytes,
    cache_image_from_bytes,
    cache_image_from_url,
    classify_send_error,
    resolve_channel_prompt,
    utf16_len,
)
from talaria.compat.hermes.platforms.incoming_events import to_arrival
from talaria.compat.hermes.platforms.plugin_platforms import config_of, settings_of
from talaria.compat.hermes.platforms.send_outcomes import read_sent_id
from talaria.platforms.base import (
    AccessLost,
    Address,
    Attachment,
    NotTaken,
    PlatformFailure,
    Quoted,
    Rejected,
    Sender,
    Unsure,
)
from talaria.plugins.registered import PlatformEntry


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    return tmp_path


# What plugins check of their host.


@pytest.fixture
def alias() -> Generator[Any]:
    before = set(sys.modules)
    finder.install()
    yield importlib.import_module
    finder.remove()
    assert not {name for name in set(sys.modules) - before if name.startswith(("gateway", "hermes_"))}


def test_the_interface_is_as_a_plugin_tests_it(alias: Any) -> None:
    register = inspect.signature(alias("hermes_cli.plugins").PluginContext.register_platform).parameters
    assert {"name", "label", "adapter_factory"} <= register.keys()
    assert any(one.kind is inspect.Parameter.VAR_KEYWORD for one in register.values())
    base = alias("gateway.platforms.base")
    base.MessageEvent(
        text="hi",
        message_type=base.MessageType.TEXT,
        source=None,
        raw_message={},
        message_id="m1",
        platform_update_id=1,
        auto_skill="x:y",
        channel_prompt=None,
        channel_context=None,
        media_urls=[],
        media_types=[],
        reply_to_message_id=None,
        internal=True,
        metadata={},
        timestamp=1.0,
    )
    base.SendResult(
        success=True,
        message_id="m",
        error=None,
        raw_response=None,
        retryable=False,
        retry_after=None,
        continuation_message_ids=(),
        error_kind=None,
    )
    for method in ("_acquire_platform_lock", "_release_platform_lock", "build_source", "handle_message"):
        assert hasattr(base.BasePlatformAdapter, method)
    assert {one.name for one in base.MessageType} == {
        *("TEXT", "LOCATION", "PHOTO", "VIDEO", "AUDIO", "VOICE", "DOCUMENT", "STICKER", "COMMAND")
    }
    assert getattr(alias("gateway.run"), "_gateway_runner_ref")() is None  # noqa: B009


# Names of platforms.


def test_a_platform_that_nobody_registered_is_none() -> None:
    assert Platform("telegram") is Platform(" Telegram ") is Platform.TELEGRAM
    for name in ("nobody", "", 7):
        with pytest.raises(ValueError, match="is not a valid Platform"):
            Platform(name)


def test_a_home_channel_and_a_configuration_are_read_as_hermes_writes_them() -> None:
    told = {"platform": "slack", "chat_id": 7, "thread_id": 8}
    channel = HomeChannel.from_dict(told)
    assert channel == HomeChannel(Platform.SLACK, "7", "Home", "8")
    assert HomeChannel.from_dict(channel.to_dict()) == channel
    config = PlatformConfig.from_dict({"enabled": True, "token": "t", "home_channel": told, "extra": {"a": 1}})
    assert config == PlatformConfig(True, "t", home_channel=channel, extra={"a": 1})


def test_an_adapter_is_given_what_settings_plugin_and_environment_say() -> None:
    entry = PlatformEntry("telegram", "T", print, bool)
    raw = {"enabled": True, "a": 1, "b": 1, "c": 1, "d": 1, "extra": {"b": 2, "c": 2, "d": 2}, "home_channel": "7:8"}
    settings = settings_of(entry, raw, {"home_channel": {"chat_id": "9"}}, {})
    config = config_of(entry, settings, {"d": 4, "token": "t", "home_channel": {"chat_id": "9"}}, {"c": 3, "d": 3})
    home = HomeChannel(Platform.TELEGRAM, "7", thread_id="8")
    extra = {"a": 1, "b": 2, "c": 3, "d": 4, "token": "t"}
    assert config == PlatformConfig(True, "t", home_channel=home, extra=extra)


# Keys of conversations.


def source(chat_type: str = "dm", platform: Platform = Platform.TELEGRAM, chat_id: str = "42", **facts: Any) -> Any:
    return SessionSource(platform, chat_id, chat_type=chat_type, **facts)


@pytest.mark.clause("H-X7")
@pytest.mark.parametrize(
    ("where", "options", "key"),
    [
        (source(), {}, "agent:main:telegram:dm:42"),
        (source(thread_id="7"), {}, "agent:main:telegram:dm:42:7"),
        (source(), {"profile": "work"}, "agent:work:telegram:dm:42"),
        (source(), {"profile": "default"}, "agent:main:telegram:dm:42"),
        (source(chat_id="", user_id="u", user_id_alt="a"), {}, "agent:main:telegram:dm:a"),
        (source(chat_id="", thread_id="7"), {}, "agent:main:telegram:dm:7"),
        (source(chat_id=""), {}, "agent:main:telegram:dm"),
        (source("group", user_id="u"), {}, "agent:main:telegram:group:42:u"),
        (source("group", user_id="u", user_id_alt="a"), {}, "agent:main:telegram:group:42:a"),
        (source("group", user_id="u"), {"group_sessions_per_user": False}, "agent:main:telegram:group:42"),
        (source("thread", user_id="u", thread_id="7"), {}, "agent:main:telegram:thread:42:7"),
        (
            source("group", user_id="u", thread_id="7"),
            {"thread_sessions_per_user": True},
            "agent:main:telegram:group:42:7:u",
        ),
        (
            source("group", user_id="u", thread_id="7"),
            {"thread_sessions_per_user": True, "group_sessions_per_user": False},
            "agent:main:telegram:group:42:7",
        ),
    ],
)
def test_a_conversation_has_the_key_that_hermes_gives_it(where: Any, options: dict[str, Any], key: str) -> None:
    assert build_session_key(where, **options) == key


@pytest.mark.clause("H-X7")
def test_one_person_has_one_key_on_whatsapp(home: Path) -> None:
    folder = home / "platforms" / "whatsapp" / "session"
    folder.mkdir(parents=True)
    (folder / "lid-mapping-999999.json").write_text('"60123@s.whatsapp.net"')
    (folder / "lid-mapping-60123_reverse.json").write_text("999999")
    keys = {
        build_session_key(source(platform=Platform.WHATSAPP, chat_id=chat))
        for chat in ("999999@lid", "60123:4@s.whatsapp.net", "+60123")
    }
    assert keys == {"agent:main:whatsapp:dm:60123"}
    assert whatsapp.expand_whatsapp_aliases("999999@lid") == {"999999", "60123"}
    group = source("group", Platform.WHATSAPP, "1@g.us", user_id="999999@lid")
    assert build_session_key(group) == "agent:main:whatsapp:group:1@g.us:60123"


@pytest.mark.parametrize(
    ("given_as", "jid"),
    [
        ("+60 (12) 3", "60123@s.whatsapp.net"),
        ("60:7@s.whatsapp.net", "60@s.whatsapp.net"),
        ("1234567890123456", "1234567890123456@g.us"),
        ("x@g.us", "x@g.us"),
        ("somebody", "somebody"),
        ("", ""),
    ],
)
def test_a_number_becomes_an_address_on_whatsapp(given_as: str, jid: str) -> None:
    assert whatsapp.to_whatsapp_jid(given_as) == jid


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("name", ["", "  ", "../../etc"])
def test_what_is_no_name_on_whatsapp_is_nobody(name: str) -> None:
    assert whatsapp.canonical_whatsapp_identifier(name) == ""


def test_a_source_survives_being_written_down() -> None:
    one = source("group", user_id="u", chat_name="Team", guild_id="g", message_id="m")
    assert SessionSource.from_dict(json.loads(json.dumps(one.to_dict()))) == one
    assert one.scope_id == "g"
    assert one.description == "group: Team"
    assert source(user_name="Anna", thread_id="7").description == "DM with Anna, thread: 7"


# What comes in.


def event(**facts: Any) -> MessageEvent:
    given: dict[str, Any] = {
        "text": "hi",
        "source": source("dm", user_id="u1", user_name="Anna"),
        "message_id": "m1",
        **facts,
    }
    return MessageEvent(**given)


def test_an_event_becomes_an_arrival() -> None:
    came = to_arrival(event(timestamp=datetime(2026, 1, 1, tzinfo=UTC), reply_to_text="what?"), "odd", 5.0)
    assert came is not None
    assert (came.message_id, came.text, came.kind, came.where) == ("m1", "hi", "dm", Address("odd", "42"))
    assert (came.sender, came.sent_at) == (Sender("u1", "Anna"), 1767225600.0)
    assert came.reply_to == Quoted("what?")


@pytest.mark.parametrize(
    ("where", "kind", "address", "who"),
    [
        (source("channel", user_id="u"), "group", Address("odd", "42"), "u"),
        (source("thread", user_id="u", thread_id="7"), "group", Address("odd", "42", "7"), "u"),
        (source("dm", user_id_alt="a"), "dm", Address("odd", "42"), "a"),
        (source("dm"), "dm", Address("odd", "42"), "42"),
        (source("group"), "group", Address("odd", "42"), ""),
    ],
)
def test_where_and_who_it_was_is_kept(where: Any, kind: str, address: Address, who: str) -> None:
    came = to_arrival(event(source=where), "odd", 5.0)
    assert came is not None
    assert (came.kind, came.where, came.sender.id) == (kind, address, who)


def test_nothing_arrives_from_nowhere_or_from_a_bot() -> None:
    assert to_arrival(event(source=None), "odd", 5.0) is None
    assert to_arrival(event(source=source(chat_id="")), "odd", 5.0) is None
    assert to_arrival(event(source=source(is_bot=True)), "odd", 5.0) is None


@pytest.mark.parametrize(
    ("facts", "attachment"),
    [
        ({"media_urls": ["/a/b.png"]}, Attachment("image", "/a/b.png", "b.png", "image/png")),
        (
            {"media_urls": ["/a/b"], "media_types": ["audio/ogg"], "message_type": MessageType.VOICE},
            Attachment("voice", "/a/b", "b", "audio/ogg"),
        ),
        ({"media_urls": ["/a/b.mp3"]}, Attachment("audio", "/a/b.mp3", "b.mp3", "audio/mpeg")),
        (
            {"media_urls": ["file:///a/b%20c"], "message_type": MessageType.PHOTO},
            Attachment("image", "/a/b c", "b c", ""),
        ),
        ({"media_urls": ["/a/b.mp4"], "media_types": ["video"]}, Attachment("video", "/a/b.mp4", "b.mp4", "video/mp4")),
        (
            {"media_urls": ["/a/b.pdf"], "message_type": MessageType.PHOTO},
            Attachment("document", "/a/b.pdf", "b.pdf", "application/pdf"),
        ),
    ],
)
def test_a_file_is_of_the_kind_that_it_is(facts: dict[str, Any], attachment: Attachment) -> None:
    came = to_arrival(event(**facts), "odd", 5.0)
    assert came is not None
    assert came.attachments == (attachment,)


def test_an_address_in_place_of_a_file_is_a_line_of_text() -> None:
    came = to_arrival(event(media_urls=["https://example.invalid/x.png"]), "odd", 5.0)
    assert came is not None
    assert (came.text, came.attachments) == ("hi\nhttps://example.invalid/x.png", ())


@pytest.mark.parametrize("time", [float("nan"), float("inf"), "soon", None])
def test_a_time_that_is_none_is_now(time: object) -> None:
    came = to_arrival(event(timestamp=time), "odd", 5.0)
    assert came is not None
    assert came.sent_at == 5.0


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.lists(st.one_of(st.text(), st.integers(), st.none())),
    st.dictionaries(st.text(), st.integers()),
    st.datetimes(),
)
NAMES = ("text", "message_id", "media_urls", "media_types", "message_type", "reply_to_text", "timestamp", "source")
OF_SOURCES = ("chat_id", "chat_type", "user_id", "user_id_alt", "user_name", "thread_id", "is_bot")


@given(st.dictionaries(st.sampled_from(NAMES), ANYTHING), st.dictionaries(st.sampled_from(OF_SOURCES), ANYTHING))
def test_whatever_the_fields_hold_it_is_read_or_left_out(facts: dict[str, Any], of_source: dict[str, Any]) -> None:
    came = to_arrival(SimpleNamespace(**{"source": SimpleNamespace(**of_source), **facts}), "odd", 5.0)
    if came is not None:
        assert came.message_id
        assert came.where.chat
        json.dumps([came.text, came.sender.id, came.sent_at], allow_nan=False).encode()


@pytest.mark.parametrize(
    ("text", "command", "arguments"),
    [("/New@bot  now", "new", "now"), ("/home/x", None, ""), ("hello", None, "hello"), ("/", None, "")],
)
def test_a_command_is_known_by_its_slash(text: str, command: str | None, arguments: str) -> None:
    assert (event(text=text).get_command(), event(text=text).get_command_args()) == (command, arguments)


# What goes out.


@pytest.mark.parametrize(
    ("result", "failure"),
    [
        (SendResult(False, error="x", retryable=True), NotTaken),
        (SendResult(False, error="x", retry_after=3), NotTaken),
        (SendResult(False, error="x", error_kind="rate_limited"), NotTaken),
        (SendResult(False, error="httpx.ConnectTimeout"), NotTaken),
        (SendResult(False, error="Connection refused"), NotTaken),
        (SendResult(False, error="httpx.ReadTimeout"), Unsure),
        (SendResult(False, error="Request timed out"), Unsure),
        (SendResult(False, error="ConnectionResetError: [Errno 104]"), Unsure),
        (SendResult(False, error="x", error_kind="forbidden"), AccessLost),
        (SendResult(False, error="Forbidden: bot was blocked by the user"), AccessLost),
        (SendResult(False, error="x", error_kind="not_found"), Rejected),
        (SendResult(False, error="timed out", error_kind="bad_format"), Rejected),
        (SendResult(False, error="no such room"), Rejected),
        (SendResult(False), Rejected),
        (SimpleNamespace(success=False, error=ValueError("no"), retry_after="x"), Rejected),
        (None, Unsure),
        ("sent", Unsure),
    ],
)
def test_a_failure_is_what_is_known_of_it(result: Any, failure: type[PlatformFailure]) -> None:
    with pytest.raises(PlatformFailure) as caught:
        read_sent_id(result, "key", "Odd")
    assert type(caught.value) is failure


def test_a_sent_message_is_called_as_the_service_calls_it_or_by_our_key() -> None:
    assert read_sent_id(SendResult(True, "m1"), "key", "Odd") == "m1"
    assert read_sent_id(SendResult(True, 7), "key", "Odd") == "7"  # pyright: ignore[reportArgumentType]
    assert read_sent_id(SendResult(True), "key", "Odd") == "key"
    assert read_sent_id(SimpleNamespace(success=True, message_id=0), "key", "Odd") == "0"


def test_an_answer_that_cannot_be_read_leaves_us_unsure() -> None:
    class Bad:
        success = True

        @property
        def message_id(self) -> str:
            raise ValueError("no")

    with pytest.raises(Unsure, match="raised ValueError: no"):
        read_sent_id(Bad(), "key", "Odd")


def test_a_failure_is_told_on_one_line_without_secrets() -> None:
    with pytest.raises(Rejected) as caught:
        read_sent_id(SendResult(False, error="bad\nrequest: token=abcdef123456 " + "x" * 900), "key", "Odd")
    assert "abcdef" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_adapters_classify_failures_with_the_same_words() -> None:
    assert classify_send_error(TimeoutError("x"), "") == "unknown"
    assert classify_send_error(None, "Too Many Requests") == "rate_limited"
    assert classify_send_error(ConnectionRefusedError("x")) == "transient"


# Splitting.

TEXTS = st.text(st.sampled_from(f"{string.ascii_lowercase[:3]}` \n😀"), max_size=400)


@given(TEXTS, st.integers(30, 90), st.sampled_from([len, utf16_len]))
def test_no_part_is_too_long_and_nothing_is_lost(text: str, limit: int, length: Any) -> None:
    made = BasePlatformAdapter.truncate_message(text, limit, length)
    assert all(length(part) <= limit for part in made)
    told = iter("".join(made))  # the language of a block that is opened again is told again
    assert all(char in told for char in text if char in "abc😀")


def test_a_code_block_is_closed_and_opened_again() -> None:
    code = "\n".join(f"line {number}" for number in range(12))
    made = BasePlatformAdapter.truncate_message(f"see\n```py\n{code}\n```\nend", 60)
    assert len(made) > 2
    assert all(part.count("```") % 2 == 0 for part in made)
    assert all("```py\n" in part for part in made[:-1])
    assert made[0].endswith(f"(1/{len(made)})")
    assert BasePlatformAdapter.truncate_message("short", 60) == ["short"]


# Files.


def test_files_are_kept_under_names_that_cannot_leave_their_folder(home: Path) -> None:
    file = Path(cache_document_from_bytes(b"x", "../../a/re\0port?.pdf"))
    assert file.parent == home / "cache" / "documents"
    assert file.name.partition("_")[2] == "re_port_.pdf"
    assert file.read_bytes() == b"x"
    assert cache_document_from_bytes(b"x", "../..") != cache_document_from_bytes(b"x", "../..")


def test_what_is_no_image_is_not_kept_as_one(home: Path) -> None:
    assert Path(cache_image_from_bytes(b"GIF89a...", ".gif")).read_bytes() == b"GIF89a..."
    assert Path(cache_image_from_bytes(b"RIFF1234WEBPxx", ".webp")).is_relative_to(home)
    with pytest.raises(ValueError, match="not an image"):
        cache_image_from_bytes(b"<html>not found</html>")


@pytest.mark.usefixtures("home")
async def test_an_image_is_not_fetched_from_a_private_address() -> None:
    with pytest.raises(ValueError, match=r"127\.0\.0\.1"):
        await cache_image_from_url("http://127.0.0.1:9/x.png")


# Small things.


def test_a_message_is_a_duplicate_only_the_second_time() -> None:
    seen = helpers.MessageDeduplicator(max_size=2)
    assert [seen.is_duplicate(id) for id in ("a", "a", "b", "", "")] == [False, True, False, False, False]
    assert not seen.is_duplicate("c")
    assert not seen.contains("a")
    assert seen.contains("c")
    seen.discard("c")
    assert not seen.is_duplicate("c")
    seen.clear()
    assert not seen.contains("c")
    forgetful = helpers.MessageDeduplicator(ttl_seconds=0)
    assert [forgetful.is_duplicate("a"), forgetful.is_duplicate("a")] == [False, False]


@pytest.mark.parametrize(
    ("phone", "shown"),
    [("+15551234567", "+155****4567"), ("12345678", "12****78"), ("1234", "****"), ("", "<none>")],
)
def test_a_phone_number_is_hidden_in_its_middle(phone: str, shown: str) -> None:
    assert helpers.redact_phone(phone) == shown


def test_marks_are_taken_out_of_text() -> None:
    text = "# Plan\n**bold** and *it* `code` [link](http://x) snake_case_name 2*3*4\n```py\nx = 1\n```"
    assert helpers.strip_markdown(text) == "Plan\nbold and it code link snake_case_name 2*3*4\nx = 1"


def test_a_channel_has_its_own_prompt_or_that_of_the_one_it_is_in() -> None:
    extra = {"channel_prompts": {"c1": " be brief ", "c2": " ", "p": "parent"}}
    assert resolve_channel_prompt(extra, "c1", "p") == "be brief"
    assert resolve_channel_prompt(extra, "c2", "p") == "parent"
    assert resolve_channel_prompt(extra, "c3") is None
    assert resolve_channel_prompt({"channel_prompts": ["x"]}, "c1") is None


def test_a_lock_is_held_once_and_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert status.acquire_scoped_lock("token", "secret-1") == (True, None)
    assert status.acquire_scoped_lock("token", "secret-1") == (True, None)
    assert status.acquire_scoped_lock("token", "secret-2", {"platform": "x"}) == (True, None)
    files = list((tmp_path / "talaria" / "locks").iterdir())
    assert len(files) == 2
    assert not any("secret" in file.name or "secret" in file.read_text() for file in files)
    status.release_scoped_lock("token", "secret-1")
    status.release_scoped_lock("token", "secret-1")
    status.release_scoped_lock("token", "secret-2")


def test_without_middleware_everything_passes_as_it_is() -> None:
    assert middleware.apply_llm_request_middleware({"a": 1}).payload == {"a": 1}
    assert middleware.apply_tool_request_middleware("t", {"a": 1}, session_id="s").changed is False
    assert middleware.run_llm_execution_middleware({"a": 1}, len) == 1
    assert middleware.run_tool_execution_middleware("t", {"a": 1}, len) == 1


def test_a_set_up_asks_until_it_is_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = iter(["", "  blue ", "maybe", "N", "", "9", "2", ""])

    def answer(_: str) -> str:
        return next(typed)

    monkeypatch.setattr(builtins, "input", answer)
    assert setup.prompt("Colour", default="red") == "red"
    assert setup.prompt("Colour") == "blue"
    assert setup.prompt_yes_no("Sure?") is False
    assert setup.prompt_yes_no("Sure?") is True
    assert setup.prompt_choice("Which?", ["a", "b"]) == 1
    assert setup.prompt_choice("Which?", ["a", "b"], default=1) == 1
    setup.print_success("done")
    assert "Type y or n." in (out := capsys.readouterr().out)
    assert "✓ done" in out
