"""What may be spent, and what a call may still cost, told from values alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talaria.agent.budget import MIN_OUTPUT, Cap, PlannedCall, cost_usd, fit
from talaria.core.errors import LimitReached
from talaria.core.messages import Usage
from talaria.providers.base import Prices
from talaria.store.base import Amount

PRICES = Prices(input=3.0, output=15.0)


def test_a_cost_counts_each_bucket_at_its_own_price() -> None:
    usage = Usage(input=1_000_000, output=100_000, cache_read=2_000_000, cache_write=500_000)
    assert cost_usd(usage, Prices(3.0, 15.0, 0.3, 3.75)) == pytest.approx(3.0 + 1.5 + 0.6 + 1.875)


def test_cached_tokens_without_a_price_of_their_own_cost_as_much_as_others() -> None:
    assert cost_usd(Usage(cache_read=1_000_000, cache_write=1_000_000), Prices(2.0, 8.0)) == pytest.approx(4.0)


def test_an_unknown_price_is_no_cost_but_unknown() -> None:
    assert cost_usd(Usage(input=10**9), None) is None


def test_what_is_not_limited_may_be_spent() -> None:
    call = PlannedCall(10**9, 10**9, PRICES)
    assert fit(call, Cap(), Amount(10**12, 10**6), "turn") == call


def test_an_answer_is_shortened_to_what_is_left() -> None:
    assert fit(PlannedCall(1_000, 32_000, None), Cap(tokens=10_000), Amount(5_000), "turn").output == 4_000
    by_money = fit(PlannedCall(1_000, 32_000, PRICES), Cap(cost_usd=0.1), Amount(0, 0.037), "turn")
    assert by_money.output == 4_000


@pytest.mark.parametrize(
    ("cap", "spent", "says"),
    [
        (
            Cap(tokens=10_000),
            Amount(9_000),
            "all work today has used 9,000 of 10,000 tokens, and the next call needs about 1,2",
        ),
        (
            Cap(cost_usd=0.5),
            Amount(0, 0.499),
            "all work today has cost $0.50 of $0.50, and the next call needs up to $0.01",
        ),
        (Cap(cost_usd=0.5), Amount(0, 7.0), "all work today has cost $7.00 of $0.50"),
    ],
)
def test_a_cap_that_leaves_too_little_is_told_in_figures(cap: Cap, spent: Amount, says: str) -> None:
    with pytest.raises(LimitReached, match="Stopped: ") as told:
        fit(PlannedCall(1_000, 32_000, PRICES), cap, spent, "day")
    assert says in str(told.value)


@given(
    prompt=st.integers(0, 10**6),
    output=st.integers(1, 10**6),
    cap=st.builds(Cap, st.none() | st.integers(1, 10**7), st.none() | st.floats(0.01, 100)),
    spent=st.builds(Amount, st.integers(0, 10**7), st.floats(0, 100)),
    prices=st.none() | st.builds(Prices, st.floats(0, 100), st.floats(0, 100)),
)
def test_what_is_allowed_never_exceeds_the_cap(
    prompt: int, output: int, cap: Cap, spent: Amount, prices: Prices | None
) -> None:
    call = PlannedCall(prompt, output, prices)
    try:
        allowed = fit(call, cap, spent, "turn")
    except LimitReached:
        return
    assert min(MIN_OUTPUT, output) <= allowed.output <= output
    if cap.tokens is not None:
        assert spent.tokens + allowed.amount.tokens <= cap.tokens
    if cap.cost_usd is not None:
        assert allowed.amount.cost_usd == 0 or spent.cost_usd + allowed.amount.cost_usd <= cap.cost_usd + 1e-6
