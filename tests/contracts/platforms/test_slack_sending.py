"""What we say on Slack: shown as meant, never sent twice by the library, and every refusal with its meaning."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from pathlib import Path

import aiohttp.test_utils
import msgspec
import pytest
from aiohttp import web
from tests.servers.slack_server import SlackServer

from talaria.core.clock import SystemClock
from talaria.core.secret import decode_secret
from talaria.platforms.base import (
    AccessLost,
    Address,
    Arrival,
    Attachment,
    Button,
    File,
    Item,
    Kit,
    NotTaken,
    Outbound,
    Platform,
    Press,
    Refused,
    Rejected,
    Sender,
    SentId,
    Unsure,
)
from talaria.platforms.slack.config import SlackSettings
from talaria.platforms.slack.platform import open as open_slack
from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.chat_service import Fault, LostAnswer, Refusal

DM = Address("slack", "D1001")
CHANNEL = Address("slack", "C7")
YES_NO = (Button("Yes", "y:1", "good"), Button("No", "n:1", "bad"))


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
async def server() -> AsyncIterator[SlackServer]:
    async with SlackServer() as server:
        yield server


def opened(server: SlackServer) -> AbstractAsyncContextManager[Platform]:
    settings = msgspec.convert(server.settings, SlackSettings, dec_hook=decode_secret)
    return open_slack(settings, Kit(Path("unused"), SystemClock(), lambda _: True))


@pytest.fixture
async def slack(server: SlackServer) -> AsyncIterator[Platform]:
    async with asyncio.timeout(PATIENCE_S), opened(server) as platform:
        yield platform


def words(text: str, where: Address = DM, *, buttons: tuple[Button, ...] = (), file: File | None = None) -> Outbound:
    return Outbound(where, text, "o-1.0", buttons=buttons, file=file)


async def items(slack: Platform, count: int) -> list[Item]:
    found: list[Item] = []
    stream = slack.receive(None)
    while len(found) < count:
        found += (await anext(stream)).items
    return found


async def test_a_message_is_shown_without_its_markup(server: SlackServer, slack: Platform) -> None:
    sent = await slack.send(words("**Hello** <!channel> & [you](https://a.example)"))
    (seen,) = server.list_messages()
    assert (seen.id, seen.text) == (sent, "Hello <!channel> & you")


async def test_a_message_has_no_previews_and_can_be_found_by_its_key(server: SlackServer, slack: Platform) -> None:
    await slack.send(words("https://a.example <!here>"))
    (call,) = server.calls("chat.postMessage")
    assert (call["unfurl_links"], call["unfurl_media"]) == (False, False)
    assert call["metadata"] == {"event_type": "talaria_message", "event_payload": {"key": "o-1.0"}}
    assert call["text"] == "https://a.example &lt;!here&gt;"
    assert "thread_ts" not in call


async def test_the_longest_message_is_taken_whatever_it_is_made_of(server: SlackServer, slack: Platform) -> None:
    most = slack.capabilities.max_chars
    for text in ("&" * most, "*a* " * (most // 4), "\n".join("- x" for _ in range(most // 4)), "#" * most):
        await slack.send(words(text))
    assert len(server.list_messages()) == 4


async def test_an_answer_in_a_thread_stays_there(server: SlackServer, slack: Platform) -> None:
    thread = await server.say("top", chat="C7")
    await slack.send(words("reply", Address("slack", "C7", thread)))
    assert [seen.thread for seen in server.list_messages(chat="C7")] == [thread]


async def test_a_message_changes_with_its_buttons_and_goes(server: SlackServer, slack: Platform) -> None:
    sent = await slack.send(words("May I?", buttons=YES_NO))
    assert server.list_messages()[0].buttons == (("Yes", "y:1"), ("No", "n:1"))
    await slack.edit(sent, words("You may."))
    await slack.edit(sent, words("You may."))
    (seen,) = server.list_messages()
    assert (seen.text, seen.buttons) == ("You may.", ())
    await slack.delete(sent, DM)
    assert server.list_messages() == []


async def test_a_message_that_is_gone_cannot_be_changed(server: SlackServer, slack: Platform) -> None:
    sent = await slack.send(words("x"))
    await slack.delete(sent, DM)
    with pytest.raises(Rejected):
        await slack.edit(sent, words("y"))
    with pytest.raises(Rejected):
        await slack.delete(sent, DM)


async def test_a_button_is_pressed_and_only_whoever_did_is_answered(server: SlackServer, slack: Platform) -> None:
    thread = await server.say("top", chat="C7")
    sent = await slack.send(words("May I?", Address("slack", "C7", thread), buttons=YES_NO))
    await server.press(sent, "n:1", user="1002", chat="C7")
    _, press = await items(slack, 2)
    assert isinstance(press, Press)
    assert (press.data, press.message_id, press.kind) == ("n:1", sent, "group")
    assert (press.where, press.sender) == (Address("slack", "C7", thread), Sender("U1002", "name-of-U1002"))
    await slack.answer(press, "")  # there is nothing to tell
    await slack.answer(press, "Not <you>.")
    assert server.whispers == ({"channel": "C7", "user": "U1002", "text": "Not &lt;you&gt;."},)


async def test_a_reaction_is_named_as_slack_names_it_and_given_once(server: SlackServer, slack: Platform) -> None:
    id = await server.say("x")
    await slack.react(DM, id, "👀")
    await slack.react(DM, id, "👀")
    await slack.react(DM, id, ":tada:")
    assert server.reactions(id) == ("eyes", "tada")
    with pytest.raises(Rejected):
        await slack.react(DM, id, "🦭")


async def test_a_thread_begins_under_a_message_with_its_name(server: SlackServer, slack: Platform) -> None:
    await server.say("x", chat="C7")
    thread = await slack.create_thread(CHANNEL, "A <new> thing")
    (parent,) = server.list_messages(chat="C7")
    assert thread == Address("slack", "C7", parent.id)
    assert parent.text == "A <new> thing"


async def test_typing_and_the_menu_ask_nothing_of_slack(server: SlackServer, slack: Platform) -> None:
    assert not slack.capabilities.can_type
    await slack.show_typing(DM)
    await slack.offer_commands([("help", "What there is")])
    assert server.list_messages() == []


FAULTS: list[tuple[Fault, type[Exception], float | None]] = [
    (Refusal(429, retry_after_s=7), NotTaken, 7),
    (Refusal(429, words="in_other_words", retry_after_s=2), NotTaken, 2),
    (Refusal(429), NotTaken, None),
    (Refusal(200, words="ratelimited"), NotTaken, None),
    (Refusal(200, words="request_timeout"), NotTaken, None),
    (Refusal(200, words="team_added_to_org"), NotTaken, None),
    (Refusal(500), Unsure, None),
    (Refusal(503, words="service_unavailable"), Unsure, None),
    (Refusal(200, words="internal_error"), Unsure, None),
    (Refusal(200, words="fatal_error"), Unsure, None),
    (LostAnswer(), Unsure, None),
    (Refusal(200, words="channel_not_found"), AccessLost, None),
    (Refusal(200, words="not_in_channel"), AccessLost, None),
    (Refusal(200, words="is_archived"), AccessLost, None),
    (Refusal(200, words="user_disabled"), AccessLost, None),
    (Refusal(200, words="restricted_action_read_only_channel"), AccessLost, None),
    (Refusal(200, words="invalid_auth"), Refused, None),
    (Refusal(200, words="token_revoked"), Refused, None),
    (Refusal(200, words="account_inactive"), Refused, None),
    (Refusal(200, words="missing_scope", extra={"needed": "chat:write"}), Refused, None),
    (Refusal(200, words="no_text"), Rejected, None),
    (Refusal(200, words="something_new"), Rejected, None),
]


@pytest.mark.parametrize(("fault", "meaning", "retry_after_s"), FAULTS, ids=str)
@pytest.mark.parametrize("method", ["chat.postMessage", "chat.update", "chat.delete"])
async def test_every_refusal_has_its_meaning_and_nothing_is_tried_twice(
    server: SlackServer,
    slack: Platform,
    method: str,
    fault: Fault,
    meaning: type[Exception],
    retry_after_s: float | None,
) -> None:
    sent = await slack.send(words("first"))
    before = len(server.calls(method))
    server.fault(method, fault)
    with pytest.raises(meaning) as failure:
        await do(slack, method, sent)
    assert len(server.calls(method)) == before + 1
    assert getattr(failure.value, "retry_after_s", None) == retry_after_s
    assert "xoxb" not in str(failure.value)
    if isinstance(fault, Refusal) and "needed" in fault.extra:
        assert "chat:write" in str(failure.value)


async def do(slack: Platform, method: str, sent: SentId) -> None:
    match method:
        case "chat.postMessage":
            await slack.send(words("second"))
        case "chat.update":
            await slack.edit(sent, words("changed"))
        case _:
            await slack.delete(sent, DM)


async def test_an_answer_that_is_lost_was_taken_once(server: SlackServer, slack: Platform) -> None:
    server.fault("chat.postMessage", LostAnswer())
    with pytest.raises(Unsure):
        await slack.send(words("perhaps"))
    assert [seen.text for seen in server.list_messages()] == ["perhaps"]


async def test_a_server_that_is_not_there_has_taken_nothing() -> None:
    async with AsyncExitStack() as stack:
        async with SlackServer() as server:
            slack = await stack.enter_async_context(opened(server))
        with suppress(Unsure, NotTaken):
            await slack.delete(SentId("1.1"), DM)  # may still go into a connection that was kept
        with pytest.raises(NotTaken):
            await slack.send(words("x"))


@pytest.mark.parametrize("word", ["invalid_blocks", "msg_blocks_too_long", "msg_too_long", "invalid_arguments"])
async def test_what_slack_does_not_understand_is_said_in_plain_words_once(
    server: SlackServer, slack: Platform, word: str
) -> None:
    server.fault("chat.postMessage", Refusal(200, words=word))
    await slack.send(words("**Hello** <you>", buttons=YES_NO))
    (seen,) = server.list_messages()
    assert (seen.text, seen.buttons) == ("Hello <you>", (("Yes", "y:1"), ("No", "n:1")))
    server.fault("chat.postMessage", Refusal(200, words=word), Refusal(200, words=word))
    with pytest.raises(Rejected):
        await slack.send(words("**Hello**"))
    assert len(server.calls("chat.postMessage")) == 4


async def test_an_edit_that_is_not_understood_is_made_in_plain_words(server: SlackServer, slack: Platform) -> None:
    sent = await slack.send(words("**Hello**"))
    server.fault("chat.update", Refusal(200, words="block_mismatch"))
    await slack.edit(sent, words("**Bye**"))
    assert server.list_messages()[0].text == "Bye"
    assert server.calls("chat.update")[-1]["blocks"] == []


async def test_a_channel_that_we_were_removed_from_is_lost(server: SlackServer, slack: Platform) -> None:
    await server.say("x", chat="C7")
    server.remove_bot("C7")
    with pytest.raises(AccessLost):
        await slack.send(words("x", CHANNEL))
    with pytest.raises(AccessLost):
        await slack.send(words("x", Address("slack", "C404")))


def file_of(folder: Path, content: bytes) -> File:
    path = folder / "kept-under-another-name"
    path.write_bytes(content)
    return File(path, "report.pdf", "application/pdf")


async def test_a_file_is_sent_with_its_caption(server: SlackServer, slack: Platform, tmp_path: Path) -> None:
    thread = await server.say("top", chat="C7")
    where = Address("slack", "C7", thread)
    sent = await slack.send(words("**Here** <it> is", where, file=file_of(tmp_path, b"%PDF" * 1000)))
    (seen,) = server.list_messages(chat="C7")
    assert (seen.id, seen.file, seen.text, seen.thread) == (sent, "report.pdf", "Here <it> is", thread)
    assert server.uploaded("report.pdf") == b"%PDF" * 1000
    with pytest.raises(Rejected):
        await slack.edit(sent, words("x", where))
    await slack.delete(sent, where)
    assert server.list_messages(chat="C7") == []


UPLOADS: list[tuple[str, Fault, type[Exception]]] = [
    ("files.getUploadURLExternal", LostAnswer(), NotTaken),
    ("files.getUploadURLExternal", Refusal(500), NotTaken),
    ("files.getUploadURLExternal", Refusal(200, words="missing_scope", extra={"needed": "files:write"}), Refused),
    ("files.upload", LostAnswer(), NotTaken),
    ("files.upload", Refusal(500), NotTaken),
    ("files.upload", Refusal(400), Rejected),
    ("files.completeUploadExternal", LostAnswer(), Unsure),
    ("files.completeUploadExternal", Refusal(500), Unsure),
    ("files.completeUploadExternal", Refusal(429, retry_after_s=3), NotTaken),
    ("files.completeUploadExternal", Refusal(200, words="channel_not_found"), AccessLost),
]


@pytest.mark.parametrize(("method", "fault", "meaning"), UPLOADS, ids=str)
async def test_a_file_that_nobody_has_seen_was_surely_not_taken(
    server: SlackServer, slack: Platform, tmp_path: Path, method: str, fault: Fault, meaning: type[Exception]
) -> None:
    server.fault(method, fault)
    with pytest.raises(meaning):
        await slack.send(words("x", file=file_of(tmp_path, b"x")))
    assert len(server.calls(method)) == 1


async def test_a_file_that_is_not_there_is_rejected(slack: Platform, tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=r"report\.pdf cannot be read"):
        await slack.send(words("x", file=File(tmp_path / "gone", "report.pdf")))


async def received(server: SlackServer, slack: Platform, content: bytes) -> Attachment:
    await server.share("a.bin", content, "application/octet-stream")
    (item,) = await items(slack, 1)
    assert isinstance(item, Arrival)
    return item.attachments[0]


async def test_a_file_is_fetched(server: SlackServer, slack: Platform, tmp_path: Path) -> None:
    content = bytes(range(256)) * 4096
    attachment = await received(server, slack, content)
    await slack.fetch(attachment, tmp_path / "a", len(content))
    assert (tmp_path / "a").read_bytes() == content


async def test_a_file_that_is_larger_than_allowed_leaves_nothing_behind(
    server: SlackServer, slack: Platform, tmp_path: Path
) -> None:
    attachment = msgspec.structs.replace(await received(server, slack, b"x" * 1001), size_bytes=1)
    with pytest.raises(Rejected, match="larger than 1,000 bytes"):
        await slack.fetch(attachment, tmp_path / "a", 1000)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("method", "fault", "meaning"),
    [
        ("files.info", Refusal(200, words="file_deleted"), Rejected),
        ("files.info", Refusal(429, retry_after_s=5), NotTaken),
        ("files.download", Refusal(404), Rejected),
        ("files.download", Refusal(503), NotTaken),
    ],
    ids=str,
)
async def test_a_file_that_cannot_be_had_leaves_nothing_behind(
    server: SlackServer, slack: Platform, tmp_path: Path, method: str, fault: Fault, meaning: type[Exception]
) -> None:
    attachment = await received(server, slack, b"x")
    server.fault(method, fault)
    with pytest.raises(meaning):
        await slack.fetch(attachment, tmp_path / "a", 1000)
    assert list(tmp_path.iterdir()) == []


async def test_a_file_whose_connection_breaks_leaves_nothing_behind(
    server: SlackServer, slack: Platform, tmp_path: Path
) -> None:
    attachment = await received(server, slack, b"x")
    server.fault("files.download", LostAnswer(), LostAnswer())  # reading is tried twice
    with pytest.raises(NotTaken):
        await slack.fetch(attachment, tmp_path / "a", 1000)
    assert list(tmp_path.iterdir()) == []


async def test_the_token_never_goes_to_another_host(server: SlackServer, slack: Platform, tmp_path: Path) -> None:
    heard: list[str] = []

    async def listen(request: web.Request) -> web.Response:
        heard.append(request.headers.get("Authorization", ""))
        return web.Response(text="stolen")

    elsewhere = web.Application()
    elsewhere.router.add_route("*", "/{any}", listen)
    attachment = await received(server, slack, b"x")
    async with aiohttp.test_utils.TestServer(elsewhere, host="127.0.0.1") as trap:
        server.fault("files.download", Refusal(302, extra={"Location": str(trap.make_url("/redirected"))}))
        with pytest.raises(Rejected):
            await slack.fetch(attachment, tmp_path / "a", 1000)
        for url in (str(trap.make_url("/direct")), "http://files.slack.com/x", "https://slack.com.evil.example/x"):
            server.move_file("a.bin", url)
            with pytest.raises(Rejected, match="not stored by Slack"):
                await slack.fetch(attachment, tmp_path / "a", 1000)
    assert heard == []
