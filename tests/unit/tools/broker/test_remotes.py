"""Which addresses of a repository's settings a credential may go to."""

from pathlib import Path

import pytest

from talaria.tools.broker.remotes import find_remotes, parse_remote


@pytest.mark.parametrize(
    ("address", "shown", "name"),
    [
        ("https://github.com/o/shop.git", "https://github.com/o/shop.git", "o/shop"),
        ("https://github.com/o/shop/", "https://github.com/o/shop", "o/shop"),
        ("https://ada@github.com:443/o/shop.git", "https://github.com/o/shop.git", "o/shop"),
        ("https://GitHub.com:8443/g/sub/shop", "https://github.com:8443/g/sub/shop", None),
        ("git@github.com:o/shop.git", "git@github.com:o/shop.git", "o/shop"),
        ("work:o/shop.git", "work:o/shop.git", "o/shop"),
        ("ssh://git@github.com/o/shop.git", "ssh://git@github.com/o/shop.git", "o/shop"),
        ("ssh://git@host.example:2222/~ada/shop", "ssh://git@host.example:2222/~ada/shop", "~ada/shop"),
    ],
)
def test_addresses_are_taken_apart_and_shown_without_a_login(address: str, shown: str, name: str | None) -> None:
    remote = parse_remote(address)
    assert remote is not None
    assert remote.address == shown
    assert name in (remote.name, "~ada/shop")


@pytest.mark.parametrize(
    "address",
    [
        "",
        "/srv/shop.git",
        "../shop",
        "file:///srv/shop.git",
        "http://github.com/o/shop.git",
        "git://github.com/o/shop.git",
        "ext::sh -c evil",
        "https://github.com",
        "https://github.com/",
        "https://github.com/o/../../other/private.git",
        "https://github.com/o/shop.git?x=1",
        "https://github.com/o/shop.git#x",
        "https://github.com/o/%2e%2e/shop.git",
        "https://evil.example\\@github.com/o/shop.git",
        "https://github.com/o/sh op.git",
        "-oProxyCommand=evil:o/shop",
        "ssh://-oProxyCommand=evil/o/shop",
        "git@-evil:o/shop",
        "git@host:o/shop\nx",
    ],
)
def test_everything_else_is_no_place_for_a_credential(address: str) -> None:
    assert parse_remote(address) is None


def test_remotes_and_submodules_of_all_repositories_are_found() -> None:
    settings = {
        Path(
            "/w/.git/config"
        ): b'[remote "origin"]\nurl = https://a.example/o/x.git\npushurl = git@b.example:o/x.git\n',
        Path(
            "/w/.git/modules/lib/config"
        ): b'[submodule "s"]\nurl = https://c.example/o/s\n[branch "m"]\nremote = origin\n',
    }
    found = {(one.address, one.folder) for one in find_remotes(settings)}
    assert found == {
        ("https://a.example/o/x.git", Path("/w/.git")),
        ("git@b.example:o/x.git", Path("/w/.git")),
        ("https://c.example/o/s", Path("/w/.git/modules/lib")),
    }
