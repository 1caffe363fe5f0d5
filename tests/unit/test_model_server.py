"""`ModelServer` misbehaves exactly as told, and serves many at once; seen through plain sockets and `http.client`."""

import asyncio
import http.client
import json
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from talaria.testing.patience import PATIENCE_S
from talaria.testing.servers.model_server import ModelServer, RecordedRequest
from talaria.testing.servers.scripted_replies import Call, Failure, Faults, Reply, call

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
END_MARKERS = {"chat": b"[DONE]", "responses": b"response.completed", "messages": b"message_stop"}
CALLS = (call("weather", city="Zürich 🌦"), call("time", id="call_2"))

every_wire = pytest.mark.parametrize("wire", PATHS)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def port_of(server: ModelServer) -> int:
    return int(server.url.rpartition(":")[2])


def connect(server: ModelServer, timeout_s: float = 5) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=timeout_s)


def question(*, stream: bool, **more: object) -> bytes:
    return json.dumps({"model": "m", "stream": stream, **more}).encode()


def post(
    server: ModelServer, path: str = PATHS["chat"], *, stream: bool = True, timeout_s: float = 5
) -> tuple[http.client.HTTPResponse, bytes]:
    """The response and as much of its body as arrived."""
    connection = connect(server, timeout_s)
    try:
        connection.request("POST", path, question(stream=stream))
        response = connection.getresponse()
        try:
            return response, response.read()
        except http.client.IncompleteRead as cut:
            return response, cut.partial
    finally:
        connection.close()


def body_of(server: ModelServer, reply: Reply, wire: str = "chat", *, stream: bool = True) -> bytes:
    server.say(reply)
    return post(server, PATHS[wire], stream=stream)[1]


def raw_request(server: ModelServer) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port_of(server)), PATIENCE_S)
    content = question(stream=True)
    client.sendall(b"POST /v1/messages HTTP/1.1\r\nconnection: close\r\n")
    client.sendall(b"content-length: %d\r\n\r\n%b" % (len(content), content))
    return client


def received_until(client: socket.socket, end: type[BaseException] | None = None) -> bytes:
    """All bytes until the peer closes, or until `end` is raised."""
    parts: list[bytes] = []
    try:
        while part := client.recv(65536):
            parts.append(part)
    except OSError as error:
        if end is None or not isinstance(error, end):
            raise
    else:
        assert end is None, f"closed in order, not by {end}"
    return b"".join(parts)


def assert_silent(client: socket.socket) -> None:
    client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.recv(1)


def events_in(body: bytes) -> list[tuple[str, str]]:
    """Server-sent events as the WHATWG parsing rules see them: an event without data is not dispatched."""
    events: list[tuple[str, str]] = []
    for block in body.decode().replace("\r\n", "\n").split("\n\n"):
        fields = [line.partition(":") for line in block.split("\n") if line and not line.startswith(":")]
        data = "\n".join(value.removeprefix(" ") for name, _, value in fields if name == "data")
        if data:
            kind = next((value.removeprefix(" ") for name, _, value in fields if name == "event"), "message")
            events.append((kind, data))
    return events


@every_wire
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "document"])
def test_body_is_cut_at_exactly_the_chosen_byte(server: ModelServer, wire: str, stream: bool) -> None:
    reply = Reply("Zürich 🌦", calls=CALLS)
    whole = body_of(server, reply, wire, stream=stream)
    for offset in {0, 1, *range(0, len(whole), 97), *around(whole, "🌦".encode()), len(whole) - 1}:
        cut = body_of(server, Reply("Zürich 🌦", calls=CALLS, faults=Faults(cut_at=offset)), wire, stream=stream)
        assert cut == whole[:offset]


def around(body: bytes, character: bytes) -> range:
    start = body.index(character)
    return range(start, start + len(character) + 1)


def test_cut_stream_lacks_the_last_chunk_even_when_all_bytes_are_sent(server: ModelServer) -> None:
    server.say(Reply("Hello.", faults=Faults(cut_at=10**6)))
    with raw_request(server) as client:
        received = received_until(client)
    assert b"message_stop" in received
    assert not received.endswith(b"0\r\n\r\n")


def test_reset_cut_is_a_connection_reset(server: ModelServer) -> None:
    server.say(Reply("Hello.", faults=Faults(cut_at=20, reset=True)))
    with raw_request(server) as client:
        received_until(client, ConnectionResetError)


@every_wire
def test_stream_without_end_marker_ends_or_breaks_off(server: ModelServer, wire: str) -> None:
    whole = body_of(server, Reply("Hello."), wire)
    ended = body_of(server, Reply("Hello.", faults=Faults(omit_end_marker=True)), wire)
    broken = body_of(server, Reply("Hello.", faults=Faults(cut_before_end=True)), wire)
    assert END_MARKERS[wire] in whole
    assert END_MARKERS[wire] not in ended
    assert ended == broken
    assert whole.startswith(ended)


def test_cut_before_end_does_not_end_the_http_response_and_omitting_the_marker_does(server: ModelServer) -> None:
    server.say(Reply("a", faults=Faults(cut_before_end=True)), Reply("a", faults=Faults(omit_end_marker=True)))
    with raw_request(server) as client:
        assert not received_until(client).endswith(b"0\r\n\r\n")
    with raw_request(server) as client:
        assert received_until(client).endswith(b"0\r\n\r\n")


def test_stall_sends_its_bytes_and_then_nothing(server: ModelServer) -> None:
    whole = body_of(server, Reply("Hello."), "messages")
    server.say(Reply("Hello.", faults=Faults(stall_at=20)))
    with raw_request(server) as client:
        received = b""
        while not received.endswith(b"\r\n\r\n14\r\n%b\r\n" % whole[:20]):
            received += client.recv(65536)
        assert_silent(client)


def test_hang_never_answers(server: ModelServer) -> None:
    server.say(Reply(faults=Faults(hang=True)))
    with raw_request(server) as client:
        server.wait_for_requests(1)
        assert_silent(client)


def test_client_that_gives_up_on_a_hanging_answer_is_noticed(server: ModelServer) -> None:
    server.say(Reply(faults=Faults(hang=True)))
    with raw_request(server):
        server.wait_for_requests(1)
        assert server.connections == 1
    server.wait_for_connections(0)


def test_closing_does_not_wait_for_hanging_or_idle_clients() -> None:
    with ModelServer() as server:
        server.say(Reply(faults=Faults(hang=True)), Reply(faults=Faults(first_byte_delay_s=60)))
        clients = [raw_request(server), raw_request(server), socket.create_connection(("127.0.0.1", port_of(server)))]
        server.wait_for_requests(2)
        server.wait_for_connections(3)
    for client in clients:  # if closing waited for them, the test would hang here
        client.close()


def test_first_byte_and_each_chunk_wait_for_their_delays(server: ModelServer) -> None:
    started = time.monotonic()
    body_of(server, Reply("Hello.", faults=Faults(first_byte_delay_s=0.05, chunk_delay_s=0.01)), "messages")
    assert time.monotonic() - started >= 0.05 + 7 * 0.01


@every_wire
@pytest.mark.parametrize(
    "faults",
    [
        Faults(crlf=True),
        Faults(noise=True),
        Faults(no_space_after_colon=True),
        Faults(crlf=True, noise=True, no_space_after_colon=True),
    ],
    ids=["crlf", "noise", "no space", "all"],
)
def test_dialects_of_server_sent_events_carry_the_same_events(server: ModelServer, wire: str, faults: Faults) -> None:
    plain = body_of(server, Reply("a: b", "c", CALLS), wire)
    spoken = body_of(server, Reply("a: b", "c", CALLS, faults=faults), wire)
    assert spoken != plain
    assert events_in(spoken) == events_in(plain)


def test_crlf_ends_each_line_and_no_space_follows_a_colon(server: ModelServer) -> None:
    body = body_of(server, Reply("Hello.", faults=Faults(crlf=True, no_space_after_colon=True)), "messages")
    assert body.count(b"\n") == body.count(b"\r\n")
    assert b"event:message_start\r\ndata:{" in body


def test_noise_is_comments_bare_data_lines_and_pings_without_data(server: ModelServer) -> None:
    body = body_of(server, Reply("Hello.", faults=Faults(noise=True)))
    assert body.startswith(b": keep-alive\n\ndata:\n\nevent: ping\n\ndata: {")


@every_wire
def test_huge_line_is_one_data_line_that_is_still_json(server: ModelServer, wire: str) -> None:
    body = body_of(server, Reply("Hello.", faults=Faults(huge_line_bytes=1_000_000)), wire)
    line = max(body.splitlines(), key=len)
    assert len(line) >= 1_000_000
    assert json.loads(line.removeprefix(b"data: "))


@every_wire
def test_duplicate_ids_give_all_calls_the_first_id(server: ModelServer, wire: str) -> None:
    body = body_of(server, Reply(calls=CALLS, faults=Faults(duplicate_ids=True)), wire)
    assert b"call_1" in body
    assert b"call_2" not in body


def test_hanging_up_closes_the_connection_without_a_word(server: ModelServer) -> None:
    server.say(Reply(faults=Faults(hang_up=True)), Reply(faults=Faults(hang_up=True, reset=True)))
    with raw_request(server) as client:
        assert received_until(client) == b""
    with raw_request(server) as client:
        assert received_until(client, ConnectionResetError) == b""


def test_dripping_sends_each_byte_as_a_chunk_of_its_own(server: ModelServer) -> None:
    server.say(Reply("Hello.", faults=Faults(drip=True, cut_at=3)))
    with raw_request(server) as client:
        assert received_until(client).endswith(b"\r\n\r\n1\r\ne\r\n1\r\nv\r\n1\r\ne\r\n")
    assert body_of(server, Reply("Hello.", faults=Faults(drip=True))) == body_of(server, Reply("Hello."))


@every_wire
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "document"])
def test_cut_inside_a_character_leaves_half_of_it(server: ModelServer, wire: str, stream: bool) -> None:
    whole = body_of(server, Reply("Zürich 🌦"), wire, stream=stream)
    cut = body_of(server, Reply("Zürich 🌦", faults=Faults(cut_inside="🌦".encode())), wire, stream=stream)
    assert cut == whole[: whole.index("🌦".encode()) + 2]


def test_cut_inside_something_that_is_not_said_is_a_500_that_says_so(server: ModelServer) -> None:
    server.say(Reply("Hello.", faults=Faults(cut_inside=b"Good bye")))
    response, body = post(server)
    assert response.status == 500
    assert b"does not contain" in body


def test_tidy_cut_ends_the_http_response_as_if_all_were_well(server: ModelServer) -> None:
    server.say(Reply("Hello.", faults=Faults(cut_at=5, is_tidy=True)))
    with raw_request(server) as client:
        assert received_until(client).endswith(b"5\r\nevent\r\n0\r\n\r\n")


@every_wire
def test_twice_sends_every_event_two_times(server: ModelServer, wire: str) -> None:
    once = events_in(body_of(server, Reply("Hello.", calls=CALLS), wire))
    twice = events_in(body_of(server, Reply("Hello.", calls=CALLS, faults=Faults(twice=True)), wire))
    assert twice == [event for event in once for _ in range(2)]


@every_wire
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "document"])
def test_swapped_bytes_are_sent_in_place_of_others(server: ModelServer, wire: str, stream: bool) -> None:
    whole = body_of(server, Reply("Hello."), wire, stream=stream)
    swapped = body_of(server, Reply("Hello.", faults=Faults(swap=(b"Hello", b"H\xff"))), wire, stream=stream)
    assert swapped == whole.replace(b"Hello", b"H\xff") != whole


@every_wire
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "document"])
def test_usage_is_whatever_the_faults_say(server: ModelServer, wire: str, stream: bool) -> None:
    body = body_of(server, Reply("Hello.", faults=Faults(usage="a lot")), wire, stream=stream)
    if wire != "chat" or not stream:  # there it is told only to those who ask for it
        assert b'"usage":"a lot"' in body
    assert b"_tokens" not in body


@every_wire
def test_malformed_arguments_are_sent_as_they_were_written(server: ModelServer, wire: str) -> None:
    body = body_of(server, Reply(calls=(Call("call_1", "weather", "{oops"),)), wire, stream=False)
    assert b"{oops" in body


def test_raw_body_replaces_the_answer_with_a_good_status(server: ModelServer) -> None:
    server.say(Reply(faults=Faults(raw_body=b"<html>Log in</html>", content_type="text/html; charset=utf-8")))
    response, body = post(server)
    assert (response.status, body) == (200, b"<html>Log in</html>")
    assert response.headers["content-type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize(
    ("body", "sent"),
    [(b"upstream died", b"upstream died"), ({"detail": "no"}, b'{"detail":"no"}'), (b"", b"")],
    ids=["bytes", "object", "empty"],
)
def test_failure_sends_its_status_headers_and_body(
    server: ModelServer, body: bytes | dict[str, Any], sent: bytes
) -> None:
    server.say(Failure(503, body, {"retry-after": "12", "x-request-id": "r1"}))
    response, received = post(server)
    assert (response.status, received) == (503, sent)
    assert (response.headers["retry-after"], response.headers["x-request-id"]) == ("12", "r1")


@every_wire
def test_exhausted_script_answers_500_and_says_so(server: ModelServer, wire: str) -> None:
    response, body = post(server, PATHS[wire])
    assert response.status == 500
    assert b"script" in body
    assert b"exhausted" in body


def test_script_is_told_in_order_and_then_respond_is_asked() -> None:
    def respond(request: RecordedRequest) -> str:
        return f"{request.wire} for {request.json['model']}"

    with ModelServer(respond=respond) as server:
        server.say("first", Reply("second"))
        bodies = [post(server, stream=False)[1] for _ in range(3)]
    texts = [json.loads(body)["choices"][0]["message"]["content"] for body in bodies]
    assert texts == ["first", "second", "chat for m"]


def test_respond_that_raises_is_a_500_that_names_the_error(caplog: pytest.LogCaptureFixture) -> None:
    def respond(request: RecordedRequest) -> str:
        raise LookupError(f"nothing to say to {request.path}")

    with ModelServer(respond=respond) as server:
        response, body = post(server)
    assert response.status == 500
    assert b"nothing to say to /v1/chat/completions" in body
    assert "respond failed" in caplog.text


@every_wire
def test_requests_are_recorded_and_the_version_prefix_is_optional(server: ModelServer, wire: str) -> None:
    server.say("a", "b")
    post(server, PATHS[wire].removeprefix("/v1"))
    post(server, PATHS[wire] + "?beta=true")
    short, long = server.wait_for_requests(2)
    assert (short.method, short.path, short.wire) == ("POST", PATHS[wire].removeprefix("/v1"), wire)
    assert (long.path, long.query, long.wire) == (PATHS[wire], "beta=true", wire)
    assert long.json == {"model": "m", "stream": True}
    assert long.headers["content-length"] == str(len(long.body))


def test_unknown_routes_and_bodies_that_are_not_objects_leave_the_script_alone(server: ModelServer) -> None:
    server.say("kept")
    connection = connect(server)
    for path, body, status in (("/v2/messages", b"{}", 404), ("/v1/messages", b"[]", 400), ("/messages", b"{", 400)):
        connection.request("POST", path, body)
        response = connection.getresponse()
        response.read()
        assert response.status == status
    connection.close()
    assert b"kept" in post(server, stream=False)[1]


def test_client_that_does_not_speak_http_is_hung_up_on(server: ModelServer) -> None:
    with socket.create_connection(("127.0.0.1", port_of(server)), 5) as client:
        client.sendall(b"POST / HTTP/1.1\r\ncontent-length: many\r\n\r\n")
        assert received_until(client) == b""
    assert b"alive" in body_of(server, Reply("alive"))


def test_one_connection_carries_many_exchanges(server: ModelServer) -> None:
    server.say("one", "two", Failure(500), "three")
    connection = connect(server)
    statuses: list[int] = []
    for stream in (True, False, True, True):
        connection.request("POST", PATHS["chat"], question(stream=stream))
        response = connection.getresponse()
        response.read()
        statuses.append(response.status)
        assert server.connections == 1
    connection.close()
    assert statuses == [200, 200, 500, 200]


def test_chunked_request_body_is_joined(server: ModelServer) -> None:
    server.say("heard")
    connection = connect(server)
    connection.request("POST", PATHS["chat"], iter([b'{"model":', b'"m"}']), encode_chunked=True)
    assert b"heard" in connection.getresponse().read()
    connection.close()
    assert server.requests[0].body == b'{"model":"m"}'


def test_four_hundred_clients_are_answered_at_once() -> None:
    with ModelServer(respond=lambda _: Reply("Hello.", faults=Faults(first_byte_delay_s=0.2))) as server:
        clients = [raw_request(server) for _ in range(400)]
        server.wait_for_requests(400)
        answers = [client.recv(15) for client in clients]
        for client in clients:
            client.close()
    assert answers == [b"HTTP/1.1 200 OK"] * 400


async def test_async_client_in_the_same_process_is_served(server: ModelServer) -> None:
    server.say("Hello.")
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
    content = question(stream=False)
    writer.write(b"POST /v1/messages HTTP/1.1\r\nconnection: close\r\n")
    writer.write(b"content-length: %d\r\n\r\n%b" % (len(content), content))
    assert b"Hello." in await reader.read()
    writer.close()
    await writer.wait_closed()


def test_child_process_is_served(server: ModelServer) -> None:
    program = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())"
    ran = subprocess.run(
        [sys.executable, "-c", program, f"{server.base_url}/models"],
        capture_output=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert [model["id"] for model in json.loads(ran.stdout)["data"]] == ["test-model"]


def test_waiting_for_requests_that_never_come_times_out(server: ModelServer) -> None:
    with pytest.raises(TimeoutError, match="for 1 requests; there are 0 requests"):
        server.wait_for_requests(1, timeout_s=0.01)


def test_server_that_went_away_refuses_and_may_come_back_on_its_port(server: ModelServer) -> None:
    with ModelServer() as first:
        port = port_of(first)
    with pytest.raises(ConnectionRefusedError):
        post(first)
    with ModelServer(port=port) as second:
        assert second.url == first.url
        assert b"back" in body_of(second, Reply("back"))


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command to make a certificate")
    pem = tmp_path / "loopback.pem"
    options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=127.0.0.1"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(pem), "-out", str(tmp_path / "cert.pem")]
    subprocess.run([openssl, *options.split(), *names], check=True, capture_output=True)
    pem.write_text(pem.read_text() + (tmp_path / "cert.pem").read_text())
    return pem


def test_tls_is_spoken_when_a_context_is_given(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    trust = ssl.create_default_context(cafile=str(certificate))
    with ModelServer(tls=context) as server:
        assert server.url.startswith("https://127.0.0.1:")
        server.say("sealed", Reply("cut", faults=Faults(cut_at=40)))
        with closing(http.client.HTTPSConnection("127.0.0.1", port_of(server), timeout=5, context=trust)) as connection:
            connection.request("POST", PATHS["chat"], question(stream=False))
            assert b"sealed" in connection.getresponse().read()
            connection.request("POST", PATHS["chat"], question(stream=True))
            with connection.getresponse() as response, pytest.raises(http.client.IncompleteRead) as cut:
                response.read()
    assert len(cut.value.partial) == 40


def test_plain_client_does_not_bring_down_a_tls_server(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with ModelServer(tls=context) as server:
        with raw_request(server) as client, suppress(ConnectionResetError):  # how it says no is its own affair
            received_until(client)
        server.wait_for_connections(0)
