import re
from hashlib import sha256
from typing import get_args

import pytest

from talaria.api.api_tokens import DEFAULT_SCOPES, SCOPES, check_name, digest_of, make_token
from talaria.core.errors import BadInput
from talaria.store.api_ports import Scope


def test_token_is_43_random_characters_that_need_no_quoting() -> None:
    made = {make_token() for _ in range(100)}

    assert len(made) == 100
    assert all(re.fullmatch(r"tal_[A-Za-z0-9_-]{43}", one) for one in made)


def test_digest_is_the_sha256_of_the_whole_token() -> None:
    assert digest_of("tal_x") == sha256(b"tal_x").hexdigest()


@pytest.mark.parametrize("token", ["", "ä", "\udcff", "x" * 100_000])
def test_anything_has_a_digest(token: str) -> None:
    assert re.fullmatch("[0-9a-f]{64}", digest_of(token))


def test_every_scope_is_described() -> None:
    assert set(SCOPES) == set(get_args(Scope))
    assert set(DEFAULT_SCOPES) < set(SCOPES)
    assert not {"approve", "metrics", "admin"} & set(DEFAULT_SCOPES)


@pytest.mark.parametrize("name", ["a", "7", "open-webui", "a.b_c-d", "x" * 64])
def test_name_of_a_token(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize(
    "name", ["", "A", "ä", "a b", "a\n", "\x1b[2J", ".a", "-a", "_a", "a/b", "a:b", "x" * 65, "server-key"]
)
def test_no_name_of_a_token(name: str) -> None:
    with pytest.raises(BadInput):
        check_name(name)
