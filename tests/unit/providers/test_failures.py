"""What endpoints say, and what kind of failure that is: the table, with words as vendors write them."""

import json
from typing import Any

import pytest

from talaria.core.errors import FailureKind, Repair
from talaria.providers import provider_failures

NOW = 1_800_000_000.0
HTTP_NOW = "Fri, 15 Jan 2027 08:00:00 GMT"


def said(message: str, **more: Any) -> bytes:
    return json.dumps({"error": {"message": message, **more}}).encode()


def kind_of(status: int, body: bytes = b"", *, is_large: bool = False) -> FailureKind:
    return provider_failures.from_response("x:m", status, {}, body, now=NOW, is_large=is_large).kind


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, said("Incorrect API key provided"), "auth"),
        (403, said("Your credit balance is too low; see billing"), "billing"),
        (403, said("Country, region, or territory not supported"), "forbidden"),
        (402, said("Insufficient credits. Add more"), "billing"),
        (402, said("You have hit your usage limit. Please try again at 5 pm"), "rate_limit"),
        (404, said("Free model credits are used up; add billing"), "billing"),
        (404, said("No endpoints found matching your data policy"), "policy_blocked"),
        (404, said("The model `gpt-9` does not exist or you do not have access to it."), "model_not_found"),
        (404, said("model: claude-9", type="not_found_error"), "model_not_found"),
        (404, b"<html>nginx</html>", "unknown"),
        (404, said("gpt-9 is not a valid model ID"), "model_not_found"),
        (400, said("API key not valid. Please pass a valid API key."), "auth"),
        (400, said("Your credit balance is too low to access the Anthropic API."), "billing"),
        (400, b'[{"error": {"code": 400, "message": "API key expired. Please renew the API key."}}]', "auth"),
        (429, b'[{"error": {"message": "You exceeded your current quota. Please retry in 21.7s."}}]', "rate_limit"),
        (400, said("Invalid schema for function 'get_billing': credit_card is no type"), "format_error"),
        (400, said("input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000"), "context_overflow"),
        (400, said("max_tokens is too large: 40000. maximum context length is 32768 tokens"), "format_error"),
        (400, said("Failed to call a function", code="tool_use_failed"), "invalid_answer"),
        (403, said("Key limit exceeded (monthly limit)"), "billing"),
        (
            422,
            b'{"detail": [{"msg": "Field required", "loc": ["body"], "input": "the context window and the payment"}]}',
            "format_error",
        ),
        (408, b"", "timeout"),
        (413, b"", "payload_too_large"),
        (429, said("Rate limit reached for requests"), "rate_limit"),
        (429, said("The engine is currently overloaded, please try again later"), "overloaded"),
        (429, said("You exceeded your current quota, please check your plan and billing details"), "billing"),
        (429, said("Extra usage is required for long context requests"), "long_context_tier"),
        (
            429,
            said("Provider returned error", code=429, metadata={"raw": "m is temporarily rate-limited upstream"}),
            "upstream_rate_limit",
        ),
        (400, said("prompt is too long: 213462 tokens > 200000 maximum"), "context_overflow"),
        (400, said("This model's maximum context length is 8192 tokens"), "context_overflow"),
        (400, said("Too much", code="context_length_exceeded"), "context_overflow"),
        (400, said("The input token count (1196265) exceeds the maximum number of tokens allowed"), "context_overflow"),
        (400, said("the request exceeds the available context size, try increasing it"), "context_overflow"),
        (413, said("Request too large: prompt is too long"), "context_overflow"),
        (500, said("This request exceeds the context window of this model"), "context_overflow"),
        (400, said("Unsupported parameter: 'frobnicate'"), "format_error"),
        (422, b"", "format_error"),
        (307, b"", "format_error"),
        (500, said("Validation error: 1 field is wrong"), "format_error"),
        (502, said("Bad request: messages must alternate"), "format_error"),
        (500, b"", "server_error"),
        (502, b"<html>bad gateway</html>", "server_error"),
        (503, b"", "overloaded"),
        (504, b"", "timeout"),
        (529, said("Overloaded", type="overloaded_error"), "overloaded"),
        (400, said("It was rejected by our safety system", code="content_policy_violation"), "content_policy_blocked"),
        (400, said("Invalid model name passed in"), "model_not_found"),
        (400, said("max_tokens is too large: 900000. It supports at most 16384 completion tokens"), "format_error"),
    ],
)  # fmt: skip
def test_a_refusal_is_of_the_kind_that_its_status_and_words_tell(status: int, body: bytes, kind: FailureKind) -> None:
    assert kind_of(status, body) == kind


@pytest.mark.parametrize("body", [b"", said("Error"), said("Bad Request"), b"{}"])
def test_a_refusal_without_a_reason_of_a_long_conversation_may_mean_its_length(body: bytes) -> None:
    assert kind_of(400, body, is_large=True) == "suspected_overflow"
    assert kind_of(400, body) == "format_error"
    assert kind_of(400, said("tools[0].name is missing"), is_large=True) == "format_error"


@pytest.mark.parametrize(
    ("message", "repair"),
    [
        ("messages.1.content.0.thinking: Invalid `signature` in `thinking` block", "drop_thinking"),
        ("The encrypted content gAAA could not be verified", "drop_thinking"),
        ("messages.0.content.1.image.source.base64: image exceeds 5 MB maximum", "drop_images"),
        ("Invalid value: content must be a string", "drop_images"),
        ("Unsupported API revision", "drop_extras"),
        ("Encrypted content is not supported with this model", "drop_extras"),
        ("Item 'rs_12ab' of type 'reasoning' was provided without its required following item", "drop_thinking"),
        ('"m" does not support thinking', "drop_extras"),
        ("Failed to parse grammar", "plain_schemas"),
        ("Unsupported parameter: 'max_tokens' is not supported, use 'max_completion_tokens' instead.", "rename_limit"),
        ("Unsupported parameter: 'reasoning_effort'", "drop_extras"),
        ("Unsupported value: 'none' is not supported with the 'x' model. Supported values are: 'low'.", "drop_effort"),
        ("Invalid value for reasoning_effort: none", "drop_effort"),
        ("reasoning_effort must be one of low, medium, high", "drop_effort"),
        ('invalid think value: "none" (must be "high", "medium", "low", true, or false)', "drop_effort"),
        ("cache_control: Extra inputs are not permitted", "drop_extras"),
        ("Unrecognized request argument supplied: stream_options", "drop_extras"),
        ("messages: roles must alternate", None),
    ],
)
def test_a_request_that_can_be_mended_says_how(message: str, repair: Repair | None) -> None:
    failure = provider_failures.from_response("x:m", 400, {}, said(message), now=NOW)
    assert (failure.kind, failure.repair) == ("format_error", repair)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"type": "overloaded_error", "message": "Overloaded"}, "overloaded"),
        ({"type": "api_error", "message": "Internal server error"}, "server_error"),
        ({"type": "rate_limit_error", "message": "slow"}, "rate_limit"),
        ({"code": "rate_limit_exceeded", "message": "slow"}, "rate_limit"),
        ({"code": 429, "message": "Provider returned error"}, "upstream_rate_limit"),
        ({"code": 502, "message": "bad gateway"}, "server_error"),
        ({"code": "insufficient_quota", "message": "pay"}, "billing"),
        ({"type": "authentication_error", "message": "who?"}, "auth"),
        ({"code": "context_length_exceeded", "message": "Your input exceeds the context window"}, "context_overflow"),
        ({"code": "invalid_prompt", "message": "flagged by our usage policy"}, "content_policy_blocked"),
        ({"code": "invalid_prompt", "message": "bad item"}, "format_error"),
        ({"message": "something"}, "unknown"),
    ],
)
def test_an_error_inside_a_stream_is_as_telling_as_a_status(error: dict[str, Any], kind: FailureKind) -> None:
    assert provider_failures.from_stream_error("x:m", json.dumps(error).encode()).kind == kind


@pytest.mark.parametrize(
    ("headers", "body", "waits_s"),
    [
        ({}, b"", None),
        ({"retry-after": "7"}, b"", 7),
        ({"retry-after": "0.5"}, b"", 0.5),
        ({"retry-after": "-3"}, b"", 0),
        ({"retry-after": "1000000000"}, b"", 1e9),
        ({"retry-after": "soon"}, b"", None),
        ({"retry-after": "nan"}, b"", None),
        ({"retry-after": "inf"}, b"", None),
        ({"retry-after": ""}, b"", None),
        ({"retry-after": "1m30s"}, b"", 90),
        ({"retry-after": "250ms"}, b"", 0.25),
        ({"retry-after-ms": "1500", "retry-after": "60"}, b"", 1.5),
        ({"retry-after-ms": "soon", "retry-after": "60"}, b"", 60),
        ({"retry-after": "Fri, 15 Jan 2027 08:00:30 GMT"}, b"", 30),
        ({"retry-after": "Fri, 15 Jan 2027 07:00:00 GMT"}, b"", 0),
        ({"retry-after": "Fri, 15 Jan 2027 09:00:30 GMT", "date": "Fri, 15 Jan 2027 09:00:00 GMT"}, b"", 30),
        ({"retry-after": "Fri, 99 Jan 2027 09:00:30 GMT"}, b"", None),
        ({}, said("Rate limit reached. Please try again in 6.5s."), 6.5),
        ({"retry-after": "2"}, said("Please try again in 6s."), 2),
        ({}, said("Please retry after 26 seconds."), 26),
        ({"x-ratelimit-reset-requests": "6m0s", "x-ratelimit-remaining-requests": "0"}, b"", 360),
        ({"x-ratelimit-reset-requests": "6m0s", "x-ratelimit-remaining-requests": "3"}, b"", None),
        ({"x-ratelimit-reset-tokens": "9s"}, b"", None),
        ({"retry-after": "2", "x-ratelimit-reset": "60"}, b"", 2),
        ({"X-RateLimit-Reset": "60"}, b"", 60),
        ({"x-ratelimit-reset": "60", "x-ratelimit-remaining": "1"}, b"", None),
        ({"x-ratelimit-reset": str(int(NOW) + 30)}, b"", 30),
        ({"x-ratelimit-reset": str(int(NOW * 1000) + 30_000)}, b"", 30),
        ({"ratelimit-reset": "30", "ratelimit-remaining": "0"}, b"", 30),
        ({"ratelimit-reset": "later"}, b"", None),
        (
            {
                "anthropic-ratelimit-requests-remaining": "0",
                "anthropic-ratelimit-requests-reset": "2027-01-15T08:00:30Z",
            },
            b"",
            30,
        ),
        (
            {
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": "6s",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-tokens": "9s",
            },
            b"",
            9,
        ),
    ],
)
def test_a_wait_is_understood_in_whatever_way_it_is_said(
    headers: dict[str, str], body: bytes, waits_s: float | None
) -> None:
    assert provider_failures.from_response("x:m", 429, headers, body, now=NOW).retry_after_s == waits_s


def test_the_reset_of_a_limit_says_nothing_about_another_failure() -> None:
    headers = {"x-ratelimit-reset": "60", "x-ratelimit-remaining": "0"}
    assert provider_failures.from_response("x:m", 500, headers, b"", now=NOW).retry_after_s is None


def test_what_the_provider_behind_an_aggregator_said_is_passed_on() -> None:
    body = said("Provider returned error", metadata={"raw": "Model m is at capacity in eu-1"})
    assert "Model m is at capacity in eu-1" in str(provider_failures.from_response("x:m", 502, {}, body, now=NOW))


@pytest.mark.parametrize(
    "body",
    [b"\xff\xfe", b"[]", b"null", b'{"error": []}', b'{"error": {"message": 5}}', b"[" * 100_000, b'"' + b"x" * 9_000],
)
def test_a_body_of_any_kind_is_one_short_sentence(body: bytes) -> None:
    assert len(str(provider_failures.from_response("x:m", 500, {}, body, now=NOW))) < 400
