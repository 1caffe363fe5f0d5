import asyncio

import msgspec

from talaria.store.api_ports import ApiToken
from talaria.store.base import Store

WHOLE = ApiToken(
    name="phone",
    digest="digest of phone",
    scopes=("chat", "runs"),
    created_at=7.5,
    expires_at=99.25,
    tokens_per_day=1_000,
    usd_per_day=0.5,
    requests_per_minute=3,
)


def token(name: str, created_at: float = 1.0) -> ApiToken:
    return ApiToken(name=name, digest=f"digest of {name}", created_at=created_at)


async def names(store: Store) -> list[str]:
    return [one.name for one in await store.api_tokens.list()]


async def test_token_is_kept_as_it_was_added(store: Store) -> None:
    assert await store.api_tokens.add(WHOLE)
    assert await store.api_tokens.add(token("plain"))

    assert await store.api_tokens.find(WHOLE.digest) == WHOLE
    assert await store.api_tokens.find("digest of plain") == token("plain")


async def test_unknown_digest_finds_nothing(store: Store) -> None:
    await store.api_tokens.add(WHOLE)

    for digest in ("", "phone", "digest of", "DIGEST OF PHONE", "digest of phone "):
        assert await store.api_tokens.find(digest) is None


async def test_token_that_has_expired_is_still_found(store: Store) -> None:
    old = msgspec.structs.replace(WHOLE, expires_at=0.0)
    await store.api_tokens.add(old)

    assert await store.api_tokens.find(WHOLE.digest) == old
    assert await names(store) == ["phone"]


async def test_name_and_digest_belong_to_one_token(store: Store) -> None:
    assert await store.api_tokens.add(WHOLE)

    assert not await store.api_tokens.add(msgspec.structs.replace(WHOLE, digest="other"))
    assert not await store.api_tokens.add(msgspec.structs.replace(WHOLE, name="other"))

    assert await store.api_tokens.list() == [WHOLE]


async def test_of_many_with_one_name_that_are_added_at_once_one_is(store: Store) -> None:
    new = [msgspec.structs.replace(WHOLE, digest=str(number)) for number in range(5)]

    assert sorted(await asyncio.gather(*map(store.api_tokens.add, new))) == [False] * 4 + [True]
    assert await names(store) == ["phone"]


async def test_list_shows_the_oldest_first(store: Store) -> None:
    for name, created_at in (("b", 2.0), ("c", 1.0), ("a", 2.0)):
        await store.api_tokens.add(token(name, created_at))

    assert await names(store) == ["c", "a", "b"]


async def test_revoked_token_is_gone_and_its_name_free(store: Store) -> None:
    await store.api_tokens.add(WHOLE)
    await store.api_tokens.add(token("plain"))

    assert await store.api_tokens.revoke("phone")
    assert not await store.api_tokens.revoke("phone")
    assert not await store.api_tokens.revoke("plai")

    assert await store.api_tokens.find(WHOLE.digest) is None
    assert await names(store) == ["plain"]
    assert await store.api_tokens.add(token("phone"))


def test_token_belongs_to_a_person_of_its_name() -> None:
    assert WHOLE.person == "api:phone"


def test_token_is_valid_until_it_expires() -> None:
    assert WHOLE.is_valid(99.0)
    assert not WHOLE.is_valid(99.25)
    assert token("plain").is_valid(9e12)
