"""A fetch dials what it checked, and checks all that it dials."""

from collections.abc import Sequence

import pytest
from tests.unit.web.conftest import PRIVATE, PUBLIC, Names, Serve, Site, answer, redirect

from talaria.core.errors import BadConfig, ToolFailed
from talaria.net.fetch import MAX_REDIRECTS, Fetch
from talaria.net.urls import system_lookup
from talaria.net.web_settings import WebSettings
from talaria.testing.manual_clock import ManualClock

REFUSED = "is not on the public internet, so it is not fetched."


async def test_name_that_changes_its_address_is_dialled_where_it_was_checked(
    fetch: Fetch, site: Site, canary: Site, names: Names
) -> None:
    names.say("rebinding.example", [PUBLIC], [PRIVATE])
    site.pages["*"] = answer(b"public")
    assert (await fetch.page(f"http://rebinding.example:{site.port}/")).body == b"public"
    assert names.asked == ["rebinding.example"]
    assert (site.connections, canary.connections) == (1, 0)


async def test_name_that_changes_its_address_between_redirects_is_checked_again(
    fetch: Fetch, site: Site, canary: Site, names: Names
) -> None:
    names.say("rebinding.example", [PUBLIC], [PRIVATE])
    site.pages["*"] = redirect("/again")
    with pytest.raises(ToolFailed, match=REFUSED):
        await fetch.page(f"http://rebinding.example:{site.port}/")
    assert (site.connections, canary.connections) == (1, 0)


@pytest.mark.parametrize("addresses", [[PRIVATE], [PUBLIC, PRIVATE], [PRIVATE, PUBLIC], [PUBLIC, "::1"], ["fe80::1%1"]])
async def test_one_private_address_among_several_is_enough_to_refuse(
    fetch: Fetch, site: Site, canary: Site, names: Names, addresses: Sequence[str]
) -> None:
    names.say("mixed.example", addresses)
    with pytest.raises(ToolFailed) as told:
        await fetch.page(f"http://mixed.example:{site.port}/")
    assert str(told.value) == f"mixed.example {REFUSED}"
    assert (site.connections, canary.connections) == (0, 0)


@pytest.mark.parametrize(
    "host",
    [
        *(PRIVATE, "169.254.169.254", "10.0.0.1", "0.0.0.0", "[::1]", "[::]", f"[::ffff:{PRIVATE}]", "[fd00::1]"),
        *("[64:ff9b::7f00:3]", "[2002:7f00:3::]", "[2001:0:7f00:3::]", "localhost", "127.3", "0x7f000003"),
    ],
)
@pytest.mark.parametrize("way", ["asked", "redirected"])
async def test_no_form_of_a_private_address_is_reached(
    settings: WebSettings, clock: ManualClock, site: Site, canary: Site, host: str, way: str
) -> None:
    async def lookup(name: str) -> Sequence[str]:
        return [PUBLIC] if name == "pages.example" else await system_lookup(name)

    fetch = Fetch(settings, clock, lookup=lookup)
    target = f"http://{host}:{canary.port}/secret"
    site.pages["/"] = redirect(target)
    with pytest.raises(ToolFailed):
        await fetch.page(target if way == "asked" else f"http://pages.example:{site.port}/")
    assert canary.connections == 0
    assert site.connections == (way == "redirected")


async def test_chain_that_ends_at_a_private_address_stops_before_it(fetch: Fetch, site: Site, canary: Site) -> None:
    for step, status in enumerate((301, 302, 303, 307)):
        site.pages[f"/{step}"] = redirect(f"/{step + 1}", status)
    site.pages["/4"] = redirect(f"//{PRIVATE}:{canary.port}/", 308)
    with pytest.raises(ToolFailed, match=REFUSED):
        await fetch.page(f"http://pages.example:{site.port}/0")
    assert site.paths == ["/0", "/1", "/2", "/3", "/4"]
    assert canary.connections == 0


async def test_redirects_are_followed_up_to_a_number(fetch: Fetch, site: Site) -> None:
    for step in range(MAX_REDIRECTS + 1):
        site.pages[f"/{step}"] = redirect(f"/{step + 1}")
    site.pages[f"/{MAX_REDIRECTS + 1}"] = answer(b"there")
    fetched = await fetch.page(f"http://pages.example:{site.port}/1")
    assert (fetched.body, fetched.url) == (b"there", f"http://pages.example:{site.port}/{MAX_REDIRECTS + 1}")
    with pytest.raises(ToolFailed, match="still redirects after 5 redirects"):
        await fetch.page(f"http://pages.example:{site.port}/0")


@pytest.mark.parametrize(
    "location", ["file:///etc/passwd", "gopher://pages.example/", "http://a@pages.example/", "http://["]
)
async def test_redirect_to_what_is_no_page_is_refused(fetch: Fetch, site: Site, location: str) -> None:
    site.pages["*"] = redirect(location)
    with pytest.raises(ToolFailed):
        await fetch.page(f"http://pages.example:{site.port}/")
    assert len(site.heard) == 1


async def test_status_of_a_redirect_without_a_place_is_a_page(fetch: Fetch, site: Site) -> None:
    site.pages["*"] = answer(b"multiple", 302)
    assert (await fetch.page(f"http://pages.example:{site.port}/")).body == b"multiple"


async def test_cookies_are_not_carried_along(fetch: Fetch, site: Site) -> None:
    site.pages["/"] = redirect("/next", set_cookie="session=1; Path=/")
    site.pages["/next"] = answer()
    await fetch.page(f"http://pages.example:{site.port}/")
    await fetch.page(f"http://pages.example:{site.port}/next")
    assert len(site.heard) == 3
    assert not any("cookie" in heard.headers for heard in site.heard)


async def test_listed_host_is_reached_by_its_name_only(
    clock: ManualClock, site: Site, canary: Site, names: Names
) -> None:
    names.say("nas.lan", [PRIVATE])
    names.say("evil.example", [PRIVATE])
    canary.pages["*"] = answer(b"home")
    fetch = Fetch(WebSettings(allow_private=("nas.lan",)), clock, lookup=names)
    assert (await fetch.page(f"http://nas.lan:{canary.port}/")).body == b"home"
    with pytest.raises(ToolFailed, match=REFUSED):
        await fetch.page(f"http://evil.example:{canary.port}/")
    assert canary.connections == 1


async def test_operator_may_call_a_private_address_with_a_key_that_goes_nowhere_else(
    fetch: Fetch, site: Site, canary: Site
) -> None:
    url = f"http://{PRIVATE}:{canary.port}/search"
    canary.pages["/search"] = answer(b"{}")
    assert (await fetch.call(url, headers={"x-key": "secret"}, body=b"{}")).body == b"{}"
    assert canary.heard[0].headers["x-key"] == "secret"
    canary.pages["/search"] = redirect(f"http://pages.example:{site.port}/")
    with pytest.raises(ToolFailed, match="redirects to another address, which this request may not follow"):
        await fetch.call(url, headers={"x-key": "secret"})
    assert site.connections == 0


async def test_ipv6_site_is_dialled_where_it_was_checked(serve: Serve, clock: ManualClock, names: Names) -> None:
    site = await serve("::1")
    site.pages["*"] = answer(b"six")
    names.say("six.example", ["::1"])
    fetch = Fetch(WebSettings(allow_private=("::1/128",)), clock, lookup=names)
    for host in ("six.example", "[0:0::1]"):
        assert (await fetch.page(f"http://{host}:{site.port}/")).body == b"six"
    assert [heard.at for heard in site.heard] == ["::1", "::1"]


async def test_behind_a_proxy_names_that_are_unknown_here_are_left_to_it(
    fetch: Fetch, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = await serve(PRIVATE)
    proxy.pages["*"] = answer(b"by proxy")
    monkeypatch.setenv("HTTP_PROXY", f"http://u:p@{PRIVATE}:{proxy.port}")
    assert (await fetch.page("http://inside.example/a")).body == b"by proxy"
    assert proxy.heard[0].line == "GET http://inside.example/a HTTP/1.1"


async def test_behind_a_proxy_what_is_private_here_is_still_refused(
    fetch: Fetch, serve: Serve, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = await serve(PRIVATE)
    proxy.pages["*"] = redirect("http://169.254.169.254/latest")
    monkeypatch.setenv("HTTP_PROXY", f"http://{PRIVATE}:{proxy.port}")
    names.say("intranet.example", ["10.0.0.1"])
    for url in ("http://169.254.169.254/", "http://intranet.example/", "http://[::1]/"):
        with pytest.raises(ToolFailed, match=REFUSED):
            await fetch.page(url)
    assert proxy.connections == 0
    with pytest.raises(ToolFailed, match=REFUSED):
        await fetch.page("http://unknown.example/")
    assert proxy.connections == 1


async def test_proxy_that_fails_is_told_without_its_password(fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:hush@127.0.0.3:9")
    with pytest.raises(ToolFailed) as told:
        await fetch.page("http://unknown.example/")
    assert str(told.value) == "The proxy did not allow the request to unknown.example."
    monkeypatch.setenv("HTTP_PROXY", "socks5://user:hush@127.0.0.3:9")
    with pytest.raises(ToolFailed, match="HTTP_PROXY is not a usable proxy") as told:
        await fetch.page("http://unknown.example/")
    assert "hush" not in str(told.value)


def test_wrong_setting_is_told_when_everything_is_put_together(clock: ManualClock) -> None:
    with pytest.raises(BadConfig, match=r"web\.allow_private: 'a b' is not a host name"):
        Fetch(WebSettings(allow_private=("a b",)), clock)


async def test_system_knows_localhost_and_not_what_is_invalid() -> None:
    assert set(await system_lookup("localhost")) <= {"127.0.0.1", "::1"}
    assert await system_lookup("localhost") != []
    assert await system_lookup("no-such-host.invalid") == []
