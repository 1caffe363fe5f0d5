"""What strangers cost a webhook: little, however many they are and whatever they send."""

import json
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from talaria.core.errors import BadInput
from talaria.core.secret import Secret
from talaria.platforms.webhook import config, intake
from talaria.platforms.webhook.config import WebhookRoute
from talaria.platforms.webhook.server import Pace, Recent

MESSAGES = WebhookRoute(reply_url="https://example.org")
EVENTS = WebhookRoute(reply_url="https://example.org", kind="github")

jsonish = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["id", "text", "chat", "x"]) | st.text(), inner),
    max_leaves=8,
)


bodies = st.binary() | jsonish.map(lambda value: json.dumps(value).encode())


@given(bodies)
def test_any_body_is_an_arrival_or_refused(body: bytes) -> None:
    for route in (MESSAGES, EVENTS):
        try:
            arrival = intake.arrival("ci", route, body, {"X-GitHub-Event": "push"}, 1.0)
        except BadInput:
            continue
        assert arrival.sender.id == "ci"
        assert arrival.text.strip()
        assert (arrival.where.chat + "/").startswith("ci/")


@given(
    st.dictionaries(
        st.sampled_from([config.TIMESTAMP, config.SIGNATURE, config.GITHUB_SIGNATURE]),
        st.text(),
    )
)
def test_any_headers_prove_nothing(headers: dict[str, str]) -> None:
    for route in (MESSAGES, EVENTS):
        proof = config.proof(route, headers)
        assert proof is None or not proof.holds(Secret("s" * 16), b"{}")


def test_an_address_is_heard_at_its_pace() -> None:
    pace = Pace()
    assert [pace.allows("192.0.2.1", 0.0) for _ in range(61)] == [True] * 60 + [False]
    assert pace.allows("192.0.2.2", 0.0), "another is not held up"
    assert [pace.allows("192.0.2.1", 0.5) for _ in range(6)] == [True] * 5 + [False]
    assert [pace.allows("192.0.2.1", 1e6) for _ in range(61)] == [True] * 60 + [False]


def test_addresses_of_one_network_are_one() -> None:
    pace = Pace()
    heard = [pace.allows(f"2001:db8::{n:x}", 0.0) for n in range(1, 100)]
    assert heard == [True] * 60 + [False] * 39
    assert pace.allows("2001:db8:0:1::1", 0.0)


def test_not_every_address_is_remembered() -> None:
    pace = Pace()
    tracemalloc.start()
    for n in range(20_000):
        pace.allows(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", float(n))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 2 << 20


def test_keys_are_remembered_for_as_long_as_they_must() -> None:
    recent = Recent(600.0, 1_000)
    for start in (0.0, 599.0, 601.0, 1_900.0):
        key = f"at {start}"
        assert not recent.has(key, start)
        recent.add(key, start)
        assert all(recent.has(key, start + later) for later in (0.0, 300.0, 599.0))
    assert not recent.has("at 0.0", 4_000.0)


def test_when_the_memory_is_full_nothing_is_forgotten_for_it() -> None:
    recent = Recent(600.0, 3)
    assert [recent.add(n, 0.0) for n in range(4)] == [True, True, True, False]
    assert [recent.has(n, 0.0) for n in range(4)] == [True, True, True, False]
    recent.forget(0)
    assert recent.add(4, 0.0)
    assert recent.add(5, 1_300.0)
    assert not recent.has(1, 1_300.0)
