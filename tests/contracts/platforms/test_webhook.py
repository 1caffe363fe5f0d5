"""The webhook platform through its port: whoever proves to be a route is heard, once, and nobody else is."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from talaria.core.secret import Secret
from talaria.platforms.base import Address, Arrival, Batch, Kit, NotTaken, Platform, Refused, Sender
from talaria.platforms.webhook import platform as webhook
from talaria.platforms.webhook.config import WebhookRoute, WebhookSettings
from talaria.platforms.webhook.platform import Webhook
from talaria.testing.manual_clock import ManualClock

SECRET, OTHER = "a secret of the platform", "a secret of its own"
REPLY_URL = "https://example.org/replies"
SETTINGS = WebhookSettings(
    secret=Secret(SECRET),
    listen_port=0,
    routes={
        "ci": WebhookRoute(reply_url=REPLY_URL, user="The build"),
        "desk": WebhookRoute(reply_url=REPLY_URL, secret=Secret(OTHER)),
        "repo": WebhookRoute(reply_url=REPLY_URL, kind="github", prompt="Review this."),
    },
)
MESSAGE = {"id": "m1", "text": "The build is red."}
Said = tuple[int, dict[str, str]]


class Line:
    """The platform, and a gateway that keeps what arrives."""

    def __init__(self, platform: Webhook, clock: ManualClock) -> None:
        self.platform = platform
        self.clock = clock
        self.arrivals: list[Arrival] = []
        self.batches: asyncio.Queue[Batch] = asyncio.Queue()
        self.keeps = True
        self.writers: list[asyncio.StreamWriter] = []

    async def keep(self) -> None:
        async with aclosing(self.platform.receive(None)) as batches:
            async for batch in batches:
                self.arrivals += [item for item in batch.items if isinstance(item, Arrival)]
                self.batches.put_nowait(batch)
                if self.keeps:
                    await self.platform.acknowledge(batch)

    def signed(self, body: bytes, *, secret: str = SECRET, age_s: float = 0.0) -> dict[str, str]:
        timestamp = str(int(self.clock.now() - age_s))
        digest = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
        return {"X-Talaria-Timestamp": timestamp, "X-Talaria-Signature": f"v1={digest}"}

    async def post(
        self, body: bytes | object = MESSAGE, headers: Mapping[str, str] | None = None, path: str = "/webhook/ci"
    ) -> Said:
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.request("POST", path, body, self.signed(body) if headers is None else headers)

    async def request(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Said:
        reader, writer = await self.connected()
        writer.write(head(method, path, {"Content-Length": str(len(body)), **headers}) + body)
        return await answer(reader, writer)

    async def connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.platform.port)
        self.writers.append(writer)
        return reader, writer

    async def hang_up(self) -> None:
        for writer in self.writers:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()


def head(method: str, path: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: here", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Said:
    said = await reader.readuntil(b"\r\n\r\n")
    length = next(line.split(b":")[1] for line in said.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    body = await reader.readexactly(int(length))
    writer.close()
    return int(said.split()[1]), json.loads(body)


@pytest.fixture
async def line(tmp_path: Path) -> AsyncIterator[Line]:
    async with opened(tmp_path) as running:
        yield running


@asynccontextmanager
async def opened(home: Path, settings: WebhookSettings = SETTINGS) -> AsyncGenerator[Line]:
    clock = ManualClock()
    async with webhook.open(settings, Kit(home, clock, lambda _: True)) as platform:
        line = Line(platform, clock)
        keeping = asyncio.create_task(line.keep())
        try:
            yield line
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])
    await line.hang_up()


async def test_it_is_a_platform(line: Line) -> None:
    platform: Platform = line.platform
    assert (platform.name, platform.account) == ("webhook", "webhook")


async def test_a_signed_message_arrives_from_its_route(line: Line) -> None:
    assert await line.post() == (202, {"status": "accepted"})
    assert line.arrivals == [
        Arrival(
            "m1",
            Address("webhook", "ci"),
            "dm",
            Sender("ci", "The build"),
            "The build is red.",
            sent_at=line.clock.now(),
        )
    ]


async def test_a_message_may_name_a_chat_and_a_thread(line: Line) -> None:
    await line.post({"id": 7, "text": "hi", "chat": "desk", "thread": "t:1"})
    [arrival] = line.arrivals
    assert arrival.message_id == "7"
    assert arrival.where == Address("webhook", "ci/desk", "t:1"), "no route speaks in a chat of another"


async def test_a_route_may_have_a_secret_of_its_own(line: Line) -> None:
    body = json.dumps(MESSAGE).encode()
    assert (await line.post(body, line.signed(body, secret=OTHER), "/webhook/desk"))[0] == 202
    assert (await line.post(body, line.signed(body), "/webhook/desk"))[0] == 401
    assert [arrival.sender.id for arrival in line.arrivals] == ["desk"]


async def test_many_at_once_are_each_heard_once(line: Line) -> None:
    answers = await asyncio.gather(*(line.post({"id": f"m{n}", "text": "hi"}) for n in range(50)))
    assert {status for status, _ in answers} == {202}
    assert sorted(arrival.message_id for arrival in line.arrivals) == sorted(f"m{n}" for n in range(50))


async def test_what_is_not_on_the_disk_is_not_confirmed(line: Line) -> None:
    line.keeps = False
    posting = asyncio.create_task(line.post())
    batch = await line.batches.get()
    line.clock.advance(20)
    status, said = await posting
    assert (status, said) == (503, {"error": "The message could not be stored. Try again later."})
    await line.platform.acknowledge(batch)  # too late: nobody waits any more


async def test_what_was_not_confirmed_may_be_sent_again_as_it_was(line: Line) -> None:
    line.keeps = False
    body = json.dumps(MESSAGE).encode()
    headers = line.signed(body)
    posting = asyncio.create_task(line.post(body, headers))
    await line.batches.get()
    line.clock.advance(20)
    assert (await posting)[0] == 503
    line.keeps = True
    assert (await line.post(body, headers))[0] == 202


async def test_whoever_waits_when_it_ends_is_told_to_try_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as line:
        line.keeps = False
        posting = asyncio.create_task(line.post())
        await line.batches.get()
    assert (await posting)[0] == 503


async def test_a_request_that_comes_twice_is_heard_once(line: Line) -> None:
    body = json.dumps(MESSAGE).encode()
    headers = line.signed(body)
    assert (await line.post(body, headers))[0] == 202
    for path in ("/webhook/ci", "/webhook/ci?again"):
        assert await line.post(body, headers, path) == (409, {"error": "This exact request was already received."})
    line.clock.advance(299)
    assert (await line.post(body, headers))[0] == 409
    line.clock.advance(2)
    assert (await line.post(body, headers))[0] == 401
    assert len(line.arrivals) == 1


async def test_a_request_from_the_future_cannot_outlive_the_memory_of_it(line: Line) -> None:
    body = json.dumps(MESSAGE).encode()
    headers = line.signed(body, age_s=-299)
    assert (await line.post(body, headers))[0] == 202
    for _ in range(6):
        line.clock.advance(99)
        assert (await line.post(body, headers))[0] == 409
    line.clock.advance(10)
    assert (await line.post(body, headers))[0] == 401


async def test_a_message_that_is_already_here_is_known_however_it_is_signed(line: Line) -> None:
    assert (await line.post())[0] == 202
    line.clock.advance(1)
    assert await line.post() == (200, {"status": "known"})
    assert (await line.post({**MESSAGE, "chat": "another"}))[0] == 202
    assert len(line.arrivals) == 2


@pytest.mark.parametrize("age_s", [301, -301, 10**6])
async def test_what_is_signed_too_early_or_too_late_is_refused(line: Line, age_s: float) -> None:
    body = json.dumps(MESSAGE).encode()
    status, said = await line.post(body, line.signed(body, age_s=age_s))
    assert (status, line.arrivals) == (401, [])
    assert "300 s" in said["error"]


@pytest.mark.parametrize("age_s", [299, -299])
async def test_clocks_may_differ_a_little(line: Line, age_s: float) -> None:
    body = json.dumps(MESSAGE).encode()
    assert (await line.post(body, line.signed(body, age_s=age_s)))[0] == 202


Forge = Callable[[dict[str, str], bytes], Mapping[str, str]]


def resigned(secret: str, prefix: str = "") -> Forge:
    def forge(headers: dict[str, str], body: bytes) -> dict[str, str]:
        signed = (prefix or headers["X-Talaria-Timestamp"] + ".").encode() + body
        return {**headers, "X-Talaria-Signature": "v1=" + hmac.new(secret.encode(), signed, "sha256").hexdigest()}

    return forge


def without(name: str) -> Forge:
    return lambda headers, _: {key: value for key, value in headers.items() if key != name}


def replaced(name: str, change: Callable[[str], str]) -> Forge:
    return lambda headers, _: {**headers, name: change(headers[name])}


def by_github(headers: dict[str, str], body: bytes) -> dict[str, str]:
    return {"X-Hub-Signature-256": "sha256=" + hmac.new(SECRET.encode(), body, "sha256").hexdigest()}


ARABIC = {48 + digit: 0x660 + digit for digit in range(10)}
FORGERIES: dict[str, Forge] = {
    "no headers": lambda _, __: {},
    "no signature": without("X-Talaria-Signature"),
    "no timestamp": without("X-Talaria-Timestamp"),
    "another secret": resigned("another secret of theirs"),
    "no secret": resigned(""),
    "another route's secret": resigned(OTHER),
    "another body": lambda headers, body: resigned(SECRET)(headers, body + b" "),
    "the body alone": resigned(SECRET, prefix=" "),
    "GitHub's way": by_github,
    "an empty signature": replaced("X-Talaria-Signature", lambda _: "v1="),
    "half a signature": replaced("X-Talaria-Signature", lambda given: given[:20]),
    "another version": replaced("X-Talaria-Signature", lambda given: given.replace("v1", "v0")),
    "big letters": replaced("X-Talaria-Signature", lambda given: "v1=" + given[3:].upper()),
    "no letters at all": replaced("X-Talaria-Signature", lambda given: "v1=" + "é" * 64),
    "no text at all": replaced("X-Talaria-Signature", lambda _: "v1=" + "\udcff" * 64),
    "another time": replaced("X-Talaria-Timestamp", lambda given: str(int(given) + 1)),
    "a time in words": replaced("X-Talaria-Timestamp", lambda _: "now"),
    "a time with a sign": replaced("X-Talaria-Timestamp", lambda given: f"+{given}"),
    "a time in other digits": replaced(
        "X-Talaria-Timestamp", lambda given: given.translate(dict(zip(range(48, 58), range(0x660, 0x66A), strict=True)))
    ),
    "a time in raised digits": replaced("X-Talaria-Timestamp", lambda _: "²"),
    "a time without end": replaced("X-Talaria-Timestamp", lambda given: given * 50),
    "no number": replaced("X-Talaria-Timestamp", lambda _: "nan"),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES.keys())
async def test_forgeries_are_refused(line: Line, forge: Forge) -> None:
    body = json.dumps(MESSAGE).encode()
    status, said = await line.post(body, forge(line.signed(body), body))
    assert (status, line.arrivals) == (401, [])
    assert SECRET not in said["error"]


BODIES: dict[str, Any] = {
    "nothing": b"",
    "no JSON": b"id=1&text=hi",
    "no UTF-8": b'{"id":"1","text":"\xff"}',
    "half a pair": b'{"id":"1","text":"\\ud800"}',
    "no object": [MESSAGE],
    "deep lists": b"[" * 500_000,
    "a deep text": b'{"id":"1","text":' + b"[" * 500_000,
    "a deep stranger": b'{"id":"1","text":"hi","more":' + b'{"a":' * 100_000,
    "a stranger": {**MESSAGE, "sender": "admin"},
    "a blank text": {"id": "1", "text": " \n"},
    "no text": {"id": "1"},
    "no id": {"text": "hi"},
    "an empty id": {"id": "", "text": "hi"},
    "a list as id": {"id": ["1"], "text": "hi"},
    "a fraction as id": {"id": 1.5, "text": "hi"},
    "a huge id": {"id": 10**400, "text": "hi"},
    "a long id": {"id": "1" * 201, "text": "hi"},
    "a long chat": {**MESSAGE, "chat": "c" * 201},
    "a number as text": {"id": "1", "text": 1},
    "an answer of ours": {"chat": "ci", "thread": "", "text": "hi", "key": "k", "reply_to": "m1"},
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
async def test_bodies_of_another_form_are_refused(line: Line, body: object) -> None:
    status, said = await line.post(body)
    assert (status, line.arrivals) == (400, []), said


@pytest.mark.parametrize(
    "path", ["/webhook/", "/webhook", "/webhook/nobody", "/webhook/ci/", "/ci", "/", "/webhook/CI", "//webhook/ci"]
)
async def test_other_paths_lead_nowhere(line: Line, path: str) -> None:
    assert (await line.post(path=path))[0] == 404
    assert line.arrivals == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_other_methods_are_refused(line: Line, method: str) -> None:
    body = json.dumps(MESSAGE).encode()
    assert (await line.request(method, "/webhook/ci", body, line.signed(body)))[0] == 405
    assert line.arrivals == []


async def test_a_body_that_says_it_is_too_large_is_not_read(line: Line) -> None:
    reader, writer = await line.connected()
    writer.write(head("POST", "/webhook/ci", {"Content-Length": str(2**20 + 1), **line.signed(b"")}))
    assert (await answer(reader, writer))[0] == 413


async def test_a_body_without_a_length_is_read_up_to_the_cap(line: Line) -> None:
    reader, writer = await line.connected()
    writer.write(head("POST", "/webhook/ci", {"Transfer-Encoding": "chunked", **line.signed(b"")}))
    piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    writer.writelines([piece] * 17)
    assert (await answer(reader, writer))[0] == 413
    assert line.arrivals == []


async def test_a_body_of_a_megabyte_is_taken(line: Line) -> None:
    body = json.dumps({"id": "1", "text": "x" * (2**20 - 25)}).encode()
    assert len(body) > 2**20 - 10
    assert (await line.post(body))[0] == 202


async def test_a_body_that_trickles_in_is_given_up_after_ten_seconds(line: Line) -> None:
    body = json.dumps(MESSAGE).encode()
    reader, writer = await line.connected()
    writer.write(head("POST", "/webhook/ci", {"Content-Length": str(len(body)), **line.signed(body)}) + body[:5])
    trickling = asyncio.create_task(answer(reader, writer))
    while not trickling.done():  # however often something comes
        line.clock.advance(1)
        await line.post(headers={})
    assert (await trickling)[0] == 408
    assert line.arrivals == []


async def test_a_body_that_breaks_off_is_nothing(line: Line) -> None:
    body = json.dumps(MESSAGE).encode()
    _, writer = await line.connected()
    writer.write(head("POST", "/webhook/ci", {"Content-Length": str(len(body)), **line.signed(body)}) + body[:-1])
    await writer.drain()
    writer.transport.abort()
    assert (await line.post({"id": "m2", "text": "still here"}))[0] == 202
    assert [arrival.message_id for arrival in line.arrivals] == ["m2"]


async def test_a_packed_body_is_not_unpacked(line: Line) -> None:
    body = json.dumps(MESSAGE).encode()
    headers = {**line.signed(body), "Content-Encoding": "gzip"}
    assert (await line.post(body, headers))[0] == 202, "the signature is over what was sent"


@pytest.mark.parametrize(
    "noise", [b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"POST /webhook/ci HTTP/1.1\r\nContent-Length: x\r\n\r\n"]
)
async def test_what_is_no_http_is_answered_and_forgotten(
    line: Line, noise: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await line.connected()
    writer.write(noise)
    assert b" 400 " in await reader.readline()
    writer.close()
    assert (await line.post())[0] == 202
    assert caplog.records == []


async def test_a_flood_is_turned_away_before_it_is_read(line: Line) -> None:
    body = json.dumps(MESSAGE).encode()
    announced = head("POST", "/webhook/ci", {"Content-Length": str(len(body)), **line.signed(body)})
    statuses: list[int] = []
    for _ in range(70):
        reader, writer = await line.connected()
        writer.write(announced if len(statuses) >= 60 else head("GET", "/", {}))
        statuses.append((await answer(reader, writer))[0])
    assert statuses == [404] * 60 + [429] * 10
    assert line.arrivals == []
    line.clock.advance(1)
    assert (await line.post())[0] == 202


async def test_connections_are_counted(line: Line) -> None:
    idle = [await line.connected() for _ in range(256)]
    reader, writer = await line.connected()
    writer.write(head("GET", "/", {}))
    with suppress(ConnectionError):
        assert await reader.read() == b""
    for _, each in idle:
        each.transport.abort()
    assert (await retried(line.post))[0] == 202


async def retried(post: Callable[[], Awaitable[Said]]) -> Said:
    """Until the server has noticed that others are gone."""
    while True:
        try:
            return await post()
        except (ConnectionError, asyncio.IncompleteReadError):
            await asyncio.sleep(0)


async def test_all_bodies_together_take_little_memory(line: Line) -> None:
    async def announce() -> Said:
        reader, writer = await line.connected()
        writer.write(
            head("POST", "/webhook/ci", {"Content-Length": str(2**20), **line.signed(b"")}) + b"x" * (2**20 - 1)
        )
        return await answer(reader, writer)

    announced = [asyncio.create_task(announce()) for _ in range(40)]
    done, waiting = await asyncio.wait(announced, return_when=asyncio.FIRST_COMPLETED)
    assert {task.result()[0] for task in done} == {503}
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    await line.hang_up()
    assert line.arrivals == []


def event(content: object, *, secret: str = SECRET, **more: str) -> tuple[bytes, dict[str, str]]:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return body, {"X-Hub-Signature-256": f"sha256={digest}", "X-GitHub-Event": "pull_request", **more}


async def test_an_event_of_github_arrives_under_the_routes_prompt(line: Line) -> None:
    body, headers = event({"action": "opened", "number": 7})
    assert (await line.post(body, headers, "/webhook/repo"))[0] == 202
    [arrival] = line.arrivals
    assert arrival.text == 'Review this.\n\npull_request: {"action": "opened", "number": 7}'
    assert (arrival.sender.id, arrival.where) == ("repo", Address("webhook", "repo"))


async def test_an_event_that_is_delivered_again_is_known_by_what_it_says(line: Line) -> None:
    for delivery, status in (("d-1", 202), ("d-1", 200), ("d-2", 200)):
        body, headers = event({"number": 7}, **{"X-GitHub-Delivery": delivery})
        assert (await line.post(body, headers, "/webhook/repo"))[0] == status
    body, headers = event({"number": 8}, **{"X-GitHub-Delivery": "d-1"})
    assert (await line.post(body, headers, "/webhook/repo"))[0] == 202
    assert len(line.arrivals) == 2


async def test_a_long_event_is_cut(line: Line) -> None:
    body, headers = event({"diff": "x" * 200_000})
    assert (await line.post(body, headers, "/webhook/repo"))[0] == 202
    assert len(line.arrivals[0].text) < 50_100
    assert line.arrivals[0].text.endswith("… (cut)")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X-Hub-Signature-256": "sha256=00"}, 401),
        ({"X-Hub-Signature-256": ""}, 401),
        ({"X-Hub-Signature": "sha1=00", "X-Hub-Signature-256": "sha1=00"}, 401),
        ({"X-GitHub-Event": ""}, 400),
        ({"X-GitHub-Event": "/approve"}, 400),
    ],
)
async def test_events_of_strangers_are_refused(line: Line, headers: dict[str, str], status: int) -> None:
    body, signed = event({"number": 7})
    assert (await line.post(body, {**signed, **headers}, "/webhook/repo"))[0] == status
    assert line.arrivals == []


async def test_a_message_is_no_event_and_an_event_no_message(line: Line) -> None:
    assert (await line.post(path="/webhook/repo"))[0] == 401
    body, headers = event(MESSAGE)
    assert (await line.post(body, headers))[0] == 401
    for body, headers in (event([MESSAGE]), event(b'{"a":' + b"[" * 500_000)):
        assert (await line.post(body, headers, "/webhook/repo"))[0] == 400
    assert line.arrivals == []


async def test_a_quiet_line_shows_that_it_is_alive(line: Line) -> None:
    async with aclosing(line.platform.receive(None)):
        beat = asyncio.create_task(line.batches.get())
        while not beat.done():
            line.clock.advance(30)
            await asyncio.sleep(0)
    assert await beat == Batch()


async def test_a_line_that_nobody_can_reach_is_not_alive(tmp_path: Path) -> None:
    async with opened(tmp_path) as line:
        pass
    async with aclosing(line.platform.receive(None)) as batches:
        beat = asyncio.ensure_future(anext(batches))
        while not beat.done():
            line.clock.advance(30)
            await asyncio.sleep(0)
        with pytest.raises(NotTaken, match="cannot reach itself"):
            await beat


async def test_a_port_that_is_taken_is_told(line: Line, tmp_path: Path) -> None:
    taken = WebhookSettings(secret=Secret(SECRET), routes=SETTINGS.routes, listen_port=line.platform.port)
    with pytest.raises(Refused, match=f"port {line.platform.port}: .*listen_port"):
        async with webhook.open(taken, Kit(tmp_path, line.clock, lambda _: True)):
            pass
