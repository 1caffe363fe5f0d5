"""What is done about a failure, decided from values alone."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talaria.agent.retry import AttemptState, Decision, Mend, Reconnect, Retry, decide
from talaria.core.errors import FailureKind, ProviderFailure, Repair
from talaria.providers.provider_failures import TREATMENTS

KINDS: tuple[FailureKind, ...] = get_args(FailureKind)
REPAIRS: tuple[Repair, ...] = get_args(Repair)


def failure(kind: FailureKind, retry_after_s: float | None = None, repair: Repair | None = None) -> ProviderFailure:
    return ProviderFailure("It failed.", kind=kind, retry_after_s=retry_after_s, repair=repair)


def test_every_kind_of_failure_has_its_treatment() -> None:
    assert set(TREATMENTS) == set(KINDS)


@given(failures=st.integers(1, 50), jitter=st.floats(0, 0.999))
def test_each_retry_waits_twice_as_long_up_to_a_minute_and_up_to_half_more(failures: int, jitter: float) -> None:
    decision = decide(failure("overloaded"), AttemptState(failures=failures, max_attempts=99), jitter)
    assert isinstance(decision, Retry)
    shortest_s = min(2.0 * 2 ** (failures - 1), 60)
    assert shortest_s <= decision.delay_s <= shortest_s * 1.5


@pytest.mark.parametrize(("said_s", "waits_s"), [(0, 0), (7, 7), (600, 600), (86_400, 600), (1e9, 600)])
def test_the_endpoint_may_name_the_wait_within_reason(said_s: float, waits_s: float) -> None:
    assert decide(failure("rate_limit", said_s), AttemptState(), 0.5) == Retry(waits_s)


@pytest.mark.parametrize(("has_fallback", "expected"), [(False, "give_up"), (True, "fall_back")])
def test_a_wait_beyond_the_turns_time_is_not_begun(has_fallback: bool, expected: Decision) -> None:
    short = AttemptState(seconds_left=30, has_fallback=has_fallback)
    assert decide(failure("overloaded", 30), short, 0.0) == expected
    assert decide(failure("overloaded", 29), short, 0.0) == Retry(29)


@pytest.mark.parametrize("kind", ["rate_limit", "upstream_rate_limit", "billing"])
def test_limits_fall_back_at_once_when_no_other_key_can_be_used(kind: FailureKind) -> None:
    assert decide(failure(kind), AttemptState(has_fallback=True), 0.0) == "fall_back"


def test_a_key_that_is_asked_to_slow_down_gets_a_second_chance_before_another_takes_over() -> None:
    pool = AttemptState(has_other_key=True, has_fallback=True)
    assert decide(failure("rate_limit"), pool, 0.0) == Retry(2)
    assert (
        decide(failure("rate_limit"), AttemptState(failures=2, failures_of_key=2, has_other_key=True), 0.0)
        == "rotate_key"
    )


def test_a_long_wait_is_not_made_while_another_key_is_awake() -> None:
    assert decide(failure("rate_limit", 11), AttemptState(has_other_key=True), 0.0) == "rotate_key"


def test_an_upstream_limit_is_not_the_keys_fault() -> None:
    assert isinstance(decide(failure("upstream_rate_limit"), AttemptState(has_other_key=True), 0.0), Retry)


def test_a_key_without_money_is_replaced_at_once() -> None:
    assert decide(failure("billing"), AttemptState(has_other_key=True, has_fallback=True), 0.0) == "rotate_key"
    assert decide(failure("billing"), AttemptState(), 0.0) == "give_up"


def test_a_rejected_key_is_made_anew_then_replaced_then_its_endpoint_left() -> None:
    everything = AttemptState(can_refresh=True, has_other_key=True, has_fallback=True)
    assert decide(failure("auth"), everything, 0.0) == "refresh_key"
    assert decide(failure("auth"), AttemptState(has_other_key=True, has_fallback=True), 0.0) == "rotate_key"
    assert decide(failure("auth"), AttemptState(has_fallback=True), 0.0) == "fall_back"
    assert decide(failure("auth"), AttemptState(), 0.0) == "give_up"


def test_transport_is_retried_then_reconnected_then_left() -> None:
    fault = failure("transport")
    assert isinstance(decide(fault, AttemptState(failures=2, may_reconnect=True, has_fallback=True), 0.0), Retry)
    assert decide(fault, AttemptState(failures=3, may_reconnect=True, has_fallback=True), 0.0) == Reconnect(6)
    assert decide(fault, AttemptState(failures=10, max_attempts=10, may_reconnect=True), 0.0) == Reconnect(8)
    assert decide(fault, AttemptState(failures=3, has_fallback=True), 0.0) == "fall_back"
    assert decide(fault, AttemptState(failures=3), 0.0) == "give_up"


@pytest.mark.parametrize("kind", ["overloaded", "server_error", "timeout", "invalid_answer", "unknown"])
def test_trouble_of_the_server_is_retried_then_left_without_new_connections(kind: FailureKind) -> None:
    assert isinstance(decide(failure(kind), AttemptState(failures=2, has_fallback=True), 0.0), Retry)
    assert decide(failure(kind), AttemptState(failures=3, may_reconnect=True, has_fallback=True), 0.0) == "fall_back"


@pytest.mark.parametrize(
    "kind", ["format_error", "model_not_found", "content_policy_blocked", "ssl_cert_verification", "forbidden"]
)
def test_what_would_be_refused_again_is_not_asked_again(kind: FailureKind) -> None:
    assert decide(failure(kind), AttemptState(has_fallback=True), 0.0) == "fall_back"
    assert decide(failure(kind), AttemptState(), 0.0) == "give_up"


def test_a_privacy_setting_is_not_worked_around_by_going_elsewhere() -> None:
    assert decide(failure("policy_blocked"), AttemptState(has_fallback=True), 0.0) == "give_up"


def test_a_conversation_that_is_too_long_goes_only_where_there_is_more_room() -> None:
    assert decide(failure("context_overflow"), AttemptState(has_fallback=True), 0.0) == "give_up"
    roomy = AttemptState(has_fallback=True, has_wider_fallback=True)
    assert decide(failure("context_overflow"), roomy, 0.0) == "fall_back"


@pytest.mark.parametrize("kind", ["context_overflow", "suspected_overflow", "payload_too_large", "long_context_tier"])
def test_what_is_too_long_is_made_shorter_first(kind: FailureKind) -> None:
    assert (
        decide(failure(kind), AttemptState(may_compact=True, has_fallback=True, has_wider_fallback=True), 0.0)
        == "compact"
    )


def test_a_request_is_mended_once_before_anything_else() -> None:
    fault = failure("format_error", repair="drop_extras")
    assert decide(fault, AttemptState(has_fallback=True), 0.0) == Mend("drop_extras")
    assert decide(fault, AttemptState(has_fallback=True, repairs=frozenset({"drop_extras"})), 0.0) == "fall_back"


@given(
    kind=st.sampled_from(KINDS),
    retry_after_s=st.none() | st.floats(0, 1e9),
    repair=st.none() | st.sampled_from(REPAIRS),
    standing=st.builds(
        AttemptState,
        failures=st.integers(1, 12),
        max_attempts=st.integers(1, 10),
        failures_of_key=st.integers(1, 12),
        has_other_key=st.booleans(),
        can_refresh=st.booleans(),
        may_reconnect=st.booleans(),
        repairs=st.frozensets(st.sampled_from(REPAIRS)),
        may_compact=st.booleans(),
        has_fallback=st.booleans(),
        has_wider_fallback=st.just(False),
        seconds_left=st.none() | st.floats(-10, 1e4),
    ),
    jitter=st.floats(0, 0.999),
)
def test_no_decision_asks_for_what_is_not_there(
    kind: FailureKind, retry_after_s: float | None, repair: Repair | None, standing: AttemptState, jitter: float
) -> None:
    match decide(failure(kind, retry_after_s, repair), standing, jitter):
        case Retry(delay_s):
            assert 0 <= delay_s <= 600
            assert standing.failures < standing.max_attempts
            assert standing.seconds_left is None or delay_s < standing.seconds_left
        case Reconnect(delay_s):
            assert standing.may_reconnect
            assert delay_s <= 8
            assert standing.seconds_left is None or delay_s < standing.seconds_left
        case Mend(mended):
            assert mended not in standing.repairs
        case "rotate_key":
            assert standing.has_other_key
        case "refresh_key":
            assert standing.can_refresh
        case "fall_back":
            assert standing.has_fallback
        case "compact":
            assert standing.may_compact
        case "give_up":
            pass
