"""A model that repeats itself: what counts as the same outcome."""

from talaria.agent.turn import WITH_SUCCESSES, Breaker
from talaria.core.ids import CallId
from talaria.core.messages import Image, ToolCall, ToolResult

CALL = ToolCall(CallId("c"), "screenshot", "{}")


def judged(*pictures: str) -> Breaker:
    breaker = Breaker()
    for data in pictures:
        breaker.begin_round()
        breaker.judge(CALL, ToolResult(CALL.id, CALL.name, "the screen", images=(Image("image/png", data),)))
    return breaker


def test_the_same_words_with_another_image_are_another_outcome() -> None:
    rounds = WITH_SUCCESSES.stop_at
    assert judged(*(f"image {number}" for number in range(rounds))).has_tripped is False
    assert judged(*["the same"] * rounds).has_tripped
