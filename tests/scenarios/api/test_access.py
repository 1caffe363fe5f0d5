"""Who may use the HTTP API, and where it listens: every route of its table, without and with all kinds of tokens."""

import asyncio
import re
import time
from itertools import product
from pathlib import Path

import httpx2
import pytest
from tests.scenarios.api.served_api import ServedApi, chat_body

from talaria.api.api_server import Operation
from talaria.api.api_settings import ApiSettings, check_api_settings
from talaria.api.api_tokens import digest_of, make_token
from talaria.api.operations import OPERATIONS
from talaria.app.build import open_store
from talaria.core.errors import BadConfig
from talaria.store.api_ports import ApiToken, Scope
from talaria.testing.harness import Harness

SCOPES: tuple[Scope, ...] = ("chat", "runs", "sessions", "approve", "metrics")
SESSION = "20260101_000000_00000000"
ORIGIN = "https://chat.example.org"


def path_of(operation: Operation) -> str:
    id = f"{'0' * 32}" if "/runs/" in operation.path or "/responses/" in operation.path else SESSION
    return re.sub(r"\{.*?\}", id, operation.path)


def line_of(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


async def send(http: httpx2.AsyncClient, operation: Operation, **headers: str) -> httpx2.Response:
    content = b"{}" if operation.method in ("POST", "PATCH") else None
    return await http.request(operation.method, path_of(operation), content=content, headers=headers)


async def test_every_route_wants_a_token_and_reads_nothing_before(api: ServedApi) -> None:
    """With `Expect: 100-continue`, a client sends its body only if the server asks for it."""
    expired = await api.add_token("old", expires_at=time.time() - 1)
    revoked = await api.add_token("gone")
    await api.store.api_tokens.revoke("gone")
    given = (
        "",
        "Bearer ",
        "Bearer tal_wrong",
        f"Bearer {expired}",
        f"Bearer {revoked}",
        f"Basic {api.token}",
        api.token,
    )
    for operation, authorization in product(OPERATIONS, given):
        head = await send_head(api, operation, f"Authorization: {authorization}" if authorization else "X-Nothing: 1")
        assert head.startswith("HTTP/1.1 401 "), (line_of(operation), authorization)
        assert "www-authenticate: bearer" in head.lower()
    assert api.model.requests == []


async def send_head(api: ServedApi, operation: Operation, *headers: str) -> str:
    """What is answered to the head of a request, before its body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    lines = (
        f"{operation.method} {path_of(operation)} HTTP/1.1",
        *(f"Host: 127.0.0.1:{api.port}", "Content-Length: 100000", "Expect: 100-continue"),
        *headers,
    )
    writer.write("\r\n".join((*lines, "", "")).encode())
    try:
        return (await reader.readuntil(b"\r\n\r\n")).decode()
    finally:
        writer.close()


async def test_every_route_wants_its_scope(api: ServedApi) -> None:
    tokens = {scope: await api.add_token(scope, [scope]) for scope in SCOPES}
    for scope, token in tokens.items():
        async with api.http(token) as http:
            for operation in OPERATIONS:
                if operation.scope == scope:
                    continue
                response = await send(http, operation)
                assert response.status_code == 403, (line_of(operation), scope)
                error = response.json()["error"]
                assert (error["code"], error["type"]) == ("missing_scope", "permission_error")
                assert f"scope {operation.scope}" in error["message"]


async def test_every_route_lets_its_scope_and_admins_in(api: ServedApi) -> None:
    tokens = [(scope, await api.add_token(scope, [scope])) for scope in (*SCOPES, "admin")]
    for scope, token in tokens:
        async with api.http(token) as http:
            for operation in OPERATIONS:
                if scope in (operation.scope, "admin"):
                    status = (await send(http, operation)).status_code
                    assert status in (200, 400, 404), (line_of(operation), scope)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.", "", "169.254.169.254"])
async def test_every_route_refuses_foreign_hosts(api: ServedApi, host: str) -> None:
    async with api.http() as http:
        for operation in OPERATIONS:
            response = await send(http, operation, Host=host)
            assert (response.status_code, response.json()["error"]["code"]) == (403, "host"), line_of(operation)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "[::1]", "[::1]:8642", "127.0.0.1", "agent.example.org:443"]
)
async def test_own_hosts_are_served(harness: Harness, host: str) -> None:
    harness.config["api"]["hosts"] = ["Agent.example.org"]
    async with ServedApi.serve(harness) as api, api.http(Host=host) as http:
        assert (await http.get("/v1/models")).status_code == 200


async def test_every_route_refuses_foreign_origins(harness: Harness) -> None:
    harness.config["api"]["origins"] = [ORIGIN]
    async with ServedApi.serve(harness) as api, api.http() as http:
        for operation, origin in product(OPERATIONS, ("null", f"{ORIGIN}.evil.example", "")):
            response = await send(http, operation, Origin=origin)
            assert (response.status_code, response.json()["error"]["code"]) == (403, "origin"), line_of(operation)
            assert "access-control-allow-origin" not in response.headers
            asked = await http.options(path_of(operation), headers={"Origin": origin})
            assert asked.status_code == 403


async def test_page_that_is_allowed_may_call_every_route(harness: Harness) -> None:
    harness.config["api"]["origins"] = [ORIGIN]
    async with ServedApi.serve(harness) as api, api.http() as http, api.http("") as stranger:
        for operation in OPERATIONS:
            asked = await stranger.options(
                path_of(operation),
                headers={
                    "Origin": ORIGIN,
                    "Access-Control-Request-Method": operation.method,
                    "Access-Control-Request-Headers": "authorization, x-stainless-lang",
                },
            )
            assert asked.status_code == 204
            assert asked.headers["Access-Control-Allow-Origin"] == ORIGIN
            assert operation.method in asked.headers["Access-Control-Allow-Methods"]
            assert asked.headers["Access-Control-Allow-Headers"] == "authorization, x-stainless-lang"
        answer = await http.get("/v1/models", headers={"Origin": ORIGIN})
        assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (200, ORIGIN)
        refused = await stranger.get("/v1/models", headers={"Origin": ORIGIN})
        assert (refused.status_code, refused.headers["Access-Control-Allow-Origin"]) == (401, ORIGIN), (
            "pages may read why"
        )
        harness.model.say("Hello.")
        streamed = await http.post("/v1/chat/completions", json=chat_body(stream=True), headers={"Origin": ORIGIN})
        assert streamed.headers["Access-Control-Allow-Origin"] == ORIGIN
        exposed = streamed.headers["Access-Control-Expose-Headers"]
        assert all(name in exposed for name in ("X-Talaria-Session", "X-Talaria-Run", "Retry-After"))


async def test_unknown_paths_and_methods_are_told_to_those_with_a_token_only(api: ServedApi) -> None:
    async with api.http() as http, api.http("") as stranger:
        for path in ("/", "/v1", "/v1/models/", "/docs", "/v1/files/", "/../etc/passwd", "/v1/sessions/a/b"):
            assert (await stranger.get(path)).status_code == 401
            assert (await http.get(path)).json()["error"]["code"] == "unknown_path"
        wrong = await http.delete("/v1/models")
        assert (wrong.status_code, wrong.headers["Allow"]) == (405, "GET")
        assert (await stranger.delete("/v1/models")).status_code == 401


async def test_revoking_a_token_in_another_process_takes_effect_at_the_next_request(api: ServedApi) -> None:
    async with api.http() as http:
        assert (await http.get("/v1/models")).status_code == 200
        async with open_store(api.harness.home) as store:
            assert await store.api_tokens.revoke("me")
        assert (await http.get("/v1/models")).status_code == 401
        assert (await http.post("/v1/chat/completions", json=chat_body())).status_code == 401


async def test_token_from_another_process_is_valid_at_once(api: ServedApi) -> None:
    api.model.say("Hello.")
    token = make_token()
    async with open_store(api.harness.home) as store:
        await store.api_tokens.add(ApiToken(name="new", digest=digest_of(token)))
    async with api.http(token) as http:
        assert (await http.post("/v1/chat/completions", json=chat_body())).status_code == 200


async def test_key_of_the_environment_may_chat_and_nothing_else(harness: Harness) -> None:
    key = "a key of sixteen characters"
    harness.environment["API_SERVER_KEY"] = key
    harness.model.say("Hello.")
    async with ServedApi.serve(harness) as api, api.http(key) as http:
        assert (await http.post("/v1/chat/completions", json=chat_body())).status_code == 200
        for operation in OPERATIONS:
            if operation.scope != "chat":
                assert (await send(http, operation)).status_code == 403
    del harness.environment["API_SERVER_KEY"]
    async with ServedApi.serve(harness, api.token) as api, api.http(key) as http:
        assert (await http.get("/v1/models")).status_code == 401


async def test_it_listens_on_loopback_only(api: ServedApi) -> None:
    assert ApiSettings().host == "127.0.0.1"
    listening = await asyncio.to_thread(listeners, api.port)
    assert listening == {"0100007F"}


def listeners(port: int) -> set[str]:
    """The addresses, as the kernel writes them, on which this machine listens at a port."""
    found: set[str] = set()
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(file).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, _, at = local.partition(":")
            if state == "0A" and int(at, 16) == port:
                found.add(address)
    return found


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.8.9.10", "::1", "localhost", "0.0.0.0", "::", "192.0.2.1", "", "agent.example.org"]
)
@pytest.mark.parametrize("has_tls", [False, True])
@pytest.mark.parametrize("behind_proxy", [False, True])
def test_public_addresses_want_tls_or_a_proxy(host: str, has_tls: bool, behind_proxy: bool) -> None:
    cert, key = ("cert.pem", "key.pem") if has_tls else ("", "")
    settings = ApiSettings(host=host, behind_proxy=behind_proxy, tls_cert=cert, tls_key=key)
    is_local = host in ("127.0.0.1", "127.8.9.10", "::1", "localhost")
    if is_local or has_tls or behind_proxy:
        check_api_settings(settings)
        return
    with pytest.raises(BadConfig, match="without TLS"):
        check_api_settings(settings)


@pytest.mark.parametrize(("cert", "key"), [("cert.pem", ""), ("", "key.pem")])
def test_certificate_and_key_belong_together(cert: str, key: str) -> None:
    with pytest.raises(BadConfig, match="belong together"):
        check_api_settings(ApiSettings(host="0.0.0.0", tls_cert=cert, tls_key=key))


async def test_public_address_without_tls_is_a_problem_of_the_gateway_and_nothing_listens(harness: Harness) -> None:
    harness.config["api"]["host"] = "0.0.0.0"
    with pytest.raises(BadConfig, match=r"api\.host is '0\.0\.0\.0', which others can reach without TLS"):
        async with harness.serve(is_api_only=True):
            pass
