"""Which key is used next, and which ones rest."""

import asyncio
from collections.abc import Sequence

import pytest

from talaria.core.errors import KeyRejected, ProviderFailure, RateLimited
from talaria.core.secret import NO_SECRET, Secret
from talaria.providers.base import Rotation
from talaria.providers.upstream import KeyPool
from talaria.testing.manual_clock import ManualClock

A, B, C = (Secret(f"sk-{letter}") for letter in "abc")
BILLING = KeyRejected("Pay.", kind="billing")
LIMITED = RateLimited("Slow down.")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def pool(clock: ManualClock, rotation: Rotation = "fill_first", keys: Sequence[Secret] = (A, B, C)) -> KeyPool:
    return KeyPool(keys, rotation, clock)


async def taken(keys: KeyPool, times: int, model: str = "m") -> list[Secret]:
    return [await keys.take(model) for _ in range(times)]


async def test_without_keys_none_is_used(clock: ManualClock) -> None:
    assert await pool(clock, keys=()).take("m") == NO_SECRET


async def test_fill_first_stays_with_the_first_until_it_rests(clock: ManualClock) -> None:
    keys = pool(clock)
    assert await taken(keys, 3) == [A, A, A]
    keys.rest(A, "m", BILLING)
    assert await taken(keys, 2) == [B, B]
    clock.advance(3_601)
    assert await taken(keys, 1) == [A]


async def test_round_robin_goes_around_and_passes_by_those_that_rest(clock: ManualClock) -> None:
    keys = pool(clock, "round_robin")
    assert await taken(keys, 4) == [A, B, C, A]
    keys.rest(B, "m", BILLING)
    assert await taken(keys, 3) == [C, A, C]


async def test_least_used_evens_out(clock: ManualClock) -> None:
    keys = pool(clock, "least_used")
    keys.rest(C, "m", LIMITED)
    assert sorted(key.reveal() for key in await taken(keys, 4)) == ["sk-a", "sk-a", "sk-b", "sk-b"]
    clock.advance(3_601)
    assert await taken(keys, 2) == [C, C]


async def test_random_uses_them_all_but_those_that_rest(clock: ManualClock) -> None:
    keys = pool(clock, "random")
    assert set(await taken(keys, 200)) == {A, B, C}
    keys.rest(B, "m", BILLING)
    assert set(await taken(keys, 200)) == {A, C}


@pytest.mark.parametrize(
    ("failure", "rests_s"),
    [
        (KeyRejected("Wrong."), 300),
        (BILLING, 3_600),
        (LIMITED, 3_600),
        (RateLimited("Slow down.", retry_after_s=20), 20),
        (RateLimited("Slow down.", retry_after_s=1e9), 3_600),
    ],
    ids=["rejected", "without money", "limited", "limited for a while", "limited for ever"],
)
async def test_how_long_a_key_rests_depends_on_the_reason(
    clock: ManualClock, failure: ProviderFailure, rests_s: float
) -> None:
    keys = pool(clock)
    keys.rest(A, "m", failure)
    clock.advance(rests_s - 1)
    assert await taken(keys, 1) == [B]
    clock.advance(2)
    assert await taken(keys, 1) == [A]


async def test_the_limit_of_one_model_does_not_rest_the_key_for_another(clock: ManualClock) -> None:
    keys = pool(clock)
    keys.rest(A, "big", LIMITED)
    assert await taken(keys, 1, "big") == [B]
    assert await taken(keys, 1, "small") == [A]
    keys.rest(A, "big", BILLING)
    assert await taken(keys, 1, "small") == [B]


async def test_when_all_rest_the_one_that_wakes_soonest_is_tried(clock: ManualClock) -> None:
    keys = pool(clock)
    keys.rest(A, "m", BILLING)
    keys.rest(B, "m", RateLimited("Slow down.", retry_after_s=5))
    keys.rest(C, "m", BILLING)
    assert not keys.has_other({A}, "m")
    assert await taken(keys, 1) == [B]


async def test_a_single_key_has_no_other_and_is_never_given_up(clock: ManualClock) -> None:
    keys = pool(clock, keys=(A,))
    keys.rest(A, "m", BILLING)
    assert not keys.has_other({A}, "m")
    assert await taken(keys, 1) == [A]


async def test_a_made_key_is_made_once_and_anew_when_it_is_not_taken_any_more(clock: ManualClock) -> None:
    made: list[Secret] = []

    async def mint() -> Secret:
        await asyncio.sleep(0)
        made.append(Secret(f"token-{len(made) + 1}"))
        return made[-1]

    keys = KeyPool((A,), "fill_first", clock, mint)
    assert await asyncio.gather(*(keys.take("m") for _ in range(5))) == [Secret("token-1")] * 5
    refreshed = await asyncio.gather(*(keys.refresh(Secret("token-1")) for _ in range(5)))
    assert (refreshed, len(made)) == ([True] * 5, 2)
    assert await keys.take("m") == Secret("token-2")
    assert keys.has_other({Secret("token-2")}, "m")
    assert not keys.can_refresh(A)


async def test_a_refresh_that_brings_the_same_key_does_not_help(clock: ManualClock) -> None:
    async def mint() -> Secret:
        return Secret("token")

    keys = KeyPool((), "fill_first", clock, mint)
    assert not await keys.refresh(await keys.take("m"))


def test_no_key_is_ever_printed(clock: ManualClock) -> None:
    keys = pool(clock)
    keys.rest(A, "m", BILLING)
    assert "sk-" not in f"{keys!r} {vars(keys)!r}"
