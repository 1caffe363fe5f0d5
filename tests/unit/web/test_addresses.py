from ipaddress import ip_address

import pytest

from talaria.core.errors import BadConfig
from talaria.net.urls import EVERYWHERE, Allowance, is_public, parse_allowance

PRIVATE = [
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200", "100.127.255.255"),
    *("127.0.0.1", "127.255.255.254", "168.63.129.16", "169.254.169.254", "172.16.0.1", "172.31.255.255"),
    *("192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.0.1", "198.18.0.1", "198.19.255.255", "198.51.100.1"),
    *("203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *(
        "::",
        "::1",
        "::7f00:1",
        "fe80::1",
        "fe80::1%1",
        "fec0::1",
        "fc00::1",
        "fd00:ec2::254",
        "fd20:ce::254",
        "ff02::1",
    ),
    *("100::1", "2001:db8::1", "3fff::1", "5f00::1", "4000::1", "2001:2::1", "2001:10::1", "2001:20::1"),
    *("::ffff:10.0.0.1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:0:127.0.0.1"),
    *("64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::808:808"),
    *("2002:7f00:1::1", "2002:a00:1::", "2002:a9fe:a9fe::"),
    *("2001:0:7f00:1::", "2001:0:4136:e378:8000:63bf:f5ff:fffe", "2606:4700:4700::1111%1"),
    *("2606:4700::5efe:127.0.0.1", "2606:4700::200:5efe:a00:1"),
]
PUBLIC = [
    *(
        "1.1.1.1",
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.1",
    ),
    *("169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "192.0.1.1", "192.167.255.255", "192.169.0.0"),
    *("198.17.255.255", "198.20.0.0", "223.255.255.255"),
    *("2606:4700:4700::1111", "2a00:1450::1", "2001:4860:4860::8888", "2001:200::1", "2606:4700::5efe:8.8.8.8"),
    *("::ffff:8.8.8.8", "64:ff9b::8.8.8.8"),
]


@pytest.mark.parametrize("address", PRIVATE)
def test_special_address_is_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    ("entry", "host", "address"),
    [
        ("nas.lan", "nas.lan", "192.168.1.5"),
        ("NAS.lan.", "nas.lan", "192.168.1.5"),
        ("192.168.1.5", "other", "192.168.1.5"),
        ("192.168.1.5", "other", "::ffff:192.168.1.5"),
        ("192.168.0.0/16", "other", "192.168.1.5"),
        ("fd00::/8", "other", "fd00::5"),
        ("[::1]", "other", "::1"),
        ("bücher.lan", "xn--bcher-kva.lan", "10.0.0.1"),
    ],
)
def test_listed_host_address_or_network_is_permitted(entry: str, host: str, address: str) -> None:
    assert parse_allowance((entry,)).permits(host, ip_address(address))
    assert not Allowance().permits(host, ip_address(address))


@pytest.mark.parametrize(
    ("host", "address"), [("evil.nas.lan", "192.168.1.5"), ("nas.lan.evil", "192.168.1.5"), ("x", "192.169.0.1")]
)
def test_what_only_resembles_a_listed_host_gains_nothing(host: str, address: str) -> None:
    permitted = parse_allowance(("nas.lan", "192.168.1.6/32")).permits(host, ip_address(address))
    assert permitted == is_public(ip_address(address))


def test_operator_may_go_everywhere() -> None:
    assert all(EVERYWHERE.permits("h", ip_address(address)) for address in PRIVATE if "%" not in address)


@pytest.mark.parametrize(
    "entry", ["", "not a host", "10.0.0.1/8", "10.0.0/8", "localhost:80", "http://x/", "a_b", "*.lan"]
)
def test_entry_that_is_none_is_told(entry: str) -> None:
    with pytest.raises(BadConfig) as told:
        parse_allowance((entry,))
    assert str(told.value) == f"web.allow_private: {entry!r} is not a host name, address or network."
