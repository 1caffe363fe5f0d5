"""Answers to webhook routes: signed, with a key, posted once, and what it means when they are not taken."""

import asyncio
import hashlib
import hmac
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from talaria.core.secret import Secret
from talaria.platforms.base import (
    AccessLost,
    Address,
    Attachment,
    File,
    Kit,
    NotTaken,
    Outbound,
    PlatformFailure,
    Rejected,
    SentId,
    Unsure,
)
from talaria.platforms.webhook import platform as webhook
from talaria.platforms.webhook.config import WebhookRoute, WebhookSettings
from talaria.platforms.webhook.platform import Webhook
from talaria.testing.manual_clock import ManualClock
from talaria.testing.servers.http_server import HttpRequest, HttpResponse, read_request, send
from talaria.testing.servers.scripted_replies import Faults

SECRET, OTHER = "a secret of the platform", "a secret of its own"
ANSWER = Outbound(Address("webhook", "ci/deploys", "t1"), "**Done.**", "s1:4", reply_to="m1")


class Receiver:
    """Whoever gets the answers. Says what it is told to say, to every request."""

    def __init__(self) -> None:
        self.requests: list[HttpRequest] = []
        self.came = asyncio.Event()
        self.reply = reply(200)
        self.port = 0

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            self.requests.append(await read_request(reader, HttpRequest))
            self.came.set()
            await send(self.reply, reader, writer)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks/private-part"


def reply(status: int, body: bytes = b"", faults: Faults | None = None, **headers: str) -> HttpResponse:
    headers = {"connection": "close", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return HttpResponse(status, "application/json", [body], headers=headers, faults=faults or Faults())


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    server = await asyncio.start_server(receiver.converse, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    async with server:
        yield receiver


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def platform(receiver: Receiver, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Webhook]:
    async with opened(receiver.url, clock, tmp_path) as running:
        yield running


@asynccontextmanager
async def opened(url: str, clock: ManualClock, home: Path) -> AsyncGenerator[Webhook]:
    routes = {"ci": WebhookRoute(reply_url=url), "desk": WebhookRoute(reply_url=url, secret=Secret(OTHER))}
    settings = WebhookSettings(secret=Secret(SECRET), routes=routes, listen_port=0)
    async with webhook.open(settings, Kit(home, clock, lambda _: True)) as running:
        yield running


async def test_an_answer_is_posted_with_its_key_and_a_signature(
    platform: Webhook, receiver: Receiver, clock: ManualClock
) -> None:
    await platform.send(ANSWER)
    [request] = receiver.requests
    assert (request.method, request.path) == ("POST", "/hooks/private-part")
    assert request.json == {"chat": "deploys", "thread": "t1", "text": "**Done.**", "key": "s1:4", "reply_to": "m1"}
    assert request.headers["idempotency-key"] == "s1:4"
    assert request.headers["x-talaria-timestamp"] == str(int(clock.now()))
    signed = request.headers["x-talaria-timestamp"].encode() + b"." + request.body
    digest = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert request.headers["x-talaria-signature"] == f"v1={digest}"


async def test_a_route_gets_its_answers_under_its_own_secret_and_name(platform: Webhook, receiver: Receiver) -> None:
    await platform.send(Outbound(Address("webhook", "desk"), "hi", "k"))
    [request] = receiver.requests
    signed = request.headers["x-talaria-timestamp"].encode() + b"." + request.body
    digest = hmac.new(OTHER.encode(), signed, hashlib.sha256).hexdigest()
    assert request.headers["x-talaria-signature"] == f"v1={digest}"
    assert request.json["chat"] == "desk"


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        (b'{"id": "r-7"}', "r-7"),
        (b'{"id": 7, "more": []}', "7"),
        (b"", "s1:4"),
        (b"thanks", "s1:4"),
        (b'{"id": ""}', "s1:4"),
        (b'{"id": {"no": 1}}', "s1:4"),
        (b"[" * 100_000, "s1:4"),
    ],
)
async def test_the_receiver_may_say_what_it_calls_it(
    platform: Webhook, receiver: Receiver, body: bytes, sent: str
) -> None:
    receiver.reply = reply(201, body)
    assert await platform.send(ANSWER) == SentId(sent)


async def test_what_was_taken_stays_taken_when_the_rest_of_the_answer_is_lost(
    platform: Webhook, receiver: Receiver
) -> None:
    receiver.reply = reply(200, b'{"id": "r-7"}', Faults(cut_at=5))
    assert await platform.send(ANSWER) == SentId("s1:4")


FAILURES: list[tuple[HttpResponse, type[PlatformFailure], float | None]] = [
    (reply(429), NotTaken, None),
    (reply(429, retry_after="7"), NotTaken, 7.0),
    (reply(429, retry_after="-7"), NotTaken, 0.0),
    (reply(429, retry_after="inf"), NotTaken, None),
    (reply(429, retry_after="Fri, 15 Jan 2027 08:01:00 GMT"), NotTaken, 60.0),
    (reply(429, retry_after="soon"), NotTaken, None),
    (reply(408), NotTaken, None),
    (reply(425), NotTaken, None),
    (reply(503, retry_after="3"), NotTaken, 3.0),
    (reply(503), Unsure, None),
    (reply(500), Unsure, None),
    (reply(502, retry_after="3"), Unsure, None),
    (reply(504), Unsure, None),
    (reply(400), Rejected, None),
    (reply(401), Rejected, None),
    (reply(403), Rejected, None),
    (reply(404), Rejected, None),
    (reply(409), Rejected, None),
    (reply(413), Rejected, None),
    (reply(410), AccessLost, None),
    (reply(302, location="/elsewhere"), Rejected, None),
    (reply(308, location="https://example.org/"), Rejected, None),
    (reply(200, faults=Faults(hang_up=True)), Unsure, None),
    (reply(200, faults=Faults(hang_up=True, reset=True)), Unsure, None),
]


@pytest.mark.parametrize(("answered", "failure", "retry_after_s"), FAILURES)
async def test_what_is_not_taken_is_told_exactly_and_never_repeated(
    platform: Webhook,
    receiver: Receiver,
    answered: HttpResponse,
    failure: type[PlatformFailure],
    retry_after_s: float | None,
) -> None:
    receiver.reply = answered
    with pytest.raises(PlatformFailure) as told:
        await platform.send(ANSWER)
    assert type(told.value) is failure
    assert getattr(told.value, "retry_after_s", None) == retry_after_s
    assert len(receiver.requests) == 1
    assert "private-part" not in str(told.value)
    assert SECRET not in str(told.value)


async def test_silence_leaves_it_open_whether_it_was_taken(
    platform: Webhook, receiver: Receiver, clock: ManualClock
) -> None:
    receiver.reply = reply(200, faults=Faults(hang=True))
    sending = asyncio.create_task(platform.send(ANSWER))
    await receiver.came.wait()
    clock.advance(30)
    with pytest.raises(Unsure, match="did not answer within 30 s"):
        await sending
    assert len(receiver.requests) == 1


async def test_where_nobody_listens_nothing_is_taken(clock: ManualClock, tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and nobody listens there
        url = f"http://127.0.0.1:{held.getsockname()[1]}/private-part"
        async with opened(url, clock, tmp_path) as platform:
            with pytest.raises(NotTaken, match="cannot be reached") as told:
                await platform.send(ANSWER)
    assert "private-part" not in str(told.value)


async def test_where_nobody_speaks_tls_nothing_is_taken(clock: ManualClock, tmp_path: Path) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server, opened(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", clock, tmp_path) as platform:
        with pytest.raises(NotTaken):
            await platform.send(ANSWER)


async def test_a_route_that_is_gone_is_told(platform: Webhook, receiver: Receiver) -> None:
    with pytest.raises(AccessLost, match="no webhook route gone"):
        await platform.send(Outbound(Address("webhook", "gone/deploys"), "hi", "k"))
    assert receiver.requests == []


async def test_what_a_webhook_cannot_do_is_refused_or_nothing(
    platform: Webhook, receiver: Receiver, tmp_path: Path
) -> None:
    where = ANSWER.where
    with pytest.raises(Rejected):
        await platform.edit(SentId("1"), ANSWER)
    with pytest.raises(Rejected):
        await platform.delete(SentId("1"), where)
    with pytest.raises(Rejected):
        await platform.fetch(Attachment("image", "1"), tmp_path / "file", 10)
    with pytest.raises(Rejected):
        await platform.send(Outbound(where, "", "k", file=File(tmp_path / "file", "file")))
    await platform.show_typing(where)
    await platform.react(where, "m1", "👍")
    await platform.offer_commands([("help", "All commands.")])
    assert await platform.create_thread(where, "name") is None
    assert receiver.requests == []
