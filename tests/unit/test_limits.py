"""Budgets, prices and retries, decided from values alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talaria.agent.limits import Limits, Spent, check, cost_usd
from talaria.agent.retry import GiveUp, Retry, decide
from talaria.model.errors import LimitReached, Overloaded, RateLimited
from talaria.model.usage import Usage
from talaria.providers.base import Prices


def test_a_cost_counts_each_bucket_at_its_own_price() -> None:
    usage = Usage(input=1_000_000, output=100_000, cache_read=2_000_000, cache_write=500_000)
    assert cost_usd(usage, Prices(3.0, 15.0, 0.3, 3.75)) == pytest.approx(3.0 + 1.5 + 0.6 + 1.875)


def test_cached_tokens_without_a_price_of_their_own_cost_as_much_as_others() -> None:
    assert cost_usd(Usage(cache_read=1_000_000, cache_write=1_000_000), Prices(2.0, 8.0)) == pytest.approx(4.0)


def test_an_unknown_price_is_no_cost() -> None:
    assert cost_usd(Usage(input=10**9), None) == 0.0


@pytest.mark.parametrize(
    ("limits", "spent", "says"),
    [
        (Limits(max_tokens=10), Spent(Usage(input=6, output=4)), "10 of 10 tokens"),
        (Limits(max_cost_usd=0.5), Spent(cost_usd=0.51), "$0.51 of $0.50"),
        (Limits(max_seconds=60), Spent(seconds=61), "61 of 60 seconds"),
    ],
)
def test_a_spent_budget_is_told_in_figures(limits: Limits, spent: Spent, says: str) -> None:
    with pytest.raises(LimitReached, match="Stopped") as told:
        check(limits, spent)
    assert says in str(told.value)


def test_what_is_not_limited_may_be_spent() -> None:
    check(Limits(), Spent(Usage(input=10**9), cost_usd=10**6, seconds=10**6))


@given(attempt=st.integers(1, 3), jitter=st.floats(0, 0.999))
def test_each_retry_waits_longer_within_its_bounds(attempt: int, jitter: float) -> None:
    decision = decide(Overloaded("hot"), attempt, jitter, None)
    assert isinstance(decision, Retry)
    shortest = 2.0 * 2 ** (attempt - 1)
    assert shortest <= decision.delay_s <= shortest * 1.5


def test_the_fourth_failure_is_the_last() -> None:
    assert decide(Overloaded("hot"), 4, 0.0, None) == GiveUp()


def test_the_provider_may_name_the_wait_within_reason() -> None:
    assert decide(RateLimited("slow", retry_after_s=7), 1, 0.5, None) == Retry(7)
    assert decide(RateLimited("slow", retry_after_s=86_400), 1, 0.5, None) == Retry(600)


def test_a_wait_beyond_the_turns_time_is_not_begun() -> None:
    assert decide(RateLimited("slow", retry_after_s=30), 1, 0.0, 30) == GiveUp()
    assert decide(RateLimited("slow", retry_after_s=30), 1, 0.0, 31) == Retry(30)
