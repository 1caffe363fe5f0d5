from types import SimpleNamespace

import pytest

from talaria.tools.base import Scope
from talaria.tools.hosts import claim_host


@pytest.mark.parametrize(
    ("url", "host"), [("https://Docs.Example.com:8443/a?b", "docs.example.com"), ("not an address", "")]
)
def test_the_host_of_an_address_is_claimed_and_what_comes_from_there_is_not_trusted(
    scope: Scope, url: str, host: str
) -> None:
    claim = claim_host(SimpleNamespace(url=url), scope)
    assert (claim.hosts, claim.is_untrusted) == ((host,), True)
