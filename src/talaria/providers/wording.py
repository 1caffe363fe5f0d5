"""The words by which endpoints tell what went wrong, where their status does not. Everything is in small letters."""

import re

from talaria.model.errors import Repair

_OVERFLOW = re.compile(
    r"context.?(?:length|window|size|limit)|maximum context|prompt.{0,20} too long|input.{0,20} too long"
    r"|prompt length is|token count.{0,40} exceeds|exceeds the (?:maximum number of tokens|limit of \d+)"
    r"|model token limit|token limit exceeded|too many (?:input )?tokens|reduce the length of the messages"
    r"|greater than the context|range of input length"
)
_TOO_MUCH_OUTPUT = re.compile(r"max_(?:completion_|output_)?tokens\W.{0,60}too (?:large|high|big)")
_BILLING = (
    *("billing", "credit", "payment", "insufficient_quota", "insufficient quota", "insufficient balance"),
    *("exceeded your current quota", "not enough balance", "top up", "arrears", "key limit exceeded"),
)
_BAD_KEY = re.compile(
    r"(?:invalid|incorrect|expired|unauthorized) (?:api[ _]?key|x-api-key)|api[ _]?key (?:not valid|expired)"
)
_UNPAID = re.compile(
    r"credit balance|insufficient (?:credit|quota|balance|funds)|purchase (?:more )?credits|out of credits"
)
_WAIT = re.compile(r"(?:try again|retry) (?:in|after) \d")
_TRY_AGAIN = ("try again", "usage limit", "resets at", "reset at")
_OVERLOAD = ("overload", "capacity", "server is busy", "engine is busy", "temporarily unavailable")
_UPSTREAM = ("upstream", "provider returned error", "error from provider")
_PRIVACY = ("data policy", "privacy", "guardrail restrictions")
_MODEL_MISSING = re.compile(
    r"model.{0,60}(?:not found|not exist|is not supported|is not available|not a valid)"
    r"|(?:unknown|invalid|no such|unsupported|a valid) model|model_not_found|not_found_error|no endpoints found"
)
_POLICY = (
    *("content policy", "content_policy", "content filter", "content_filter", "usage policies", "usage policy"),
    *("safety", "responsible ai", "moderation", "flagged"),
)
_VALIDATION = ("invalid_request", "invalid request", "validation error", "unsupported parameter", "bad request")
_VAGUE = frozenset({"", "error", "bad request", "invalid request", "invalid_request_error", "400", "400 bad request"})

_THINKING = re.compile(
    r"signature|thinking block|encrypted.?content.{0,80}(?:verif|decrypt)|reasoning.{0,40}(?:verif|decrypt|not found)"
    r"|'rs_\w+'"
)
_IMAGES = re.compile(r"image|media_type|\bvision\b|multimodal|content.{0,30}(?:must be|expected).{0,10}string")
_SCHEMAS = re.compile(r"grammar|json.?schema|input_schema|invalid schema|schema.{0,60}(?:unsupported|not supported)")
_EXTRAS = re.compile(
    r"unsupported|not supported|unrecognized|unknown (?:parameter|field|name|argument)|unexpected keyword"
    r"|extra inputs|extra fields|not permitted|additional properties|invalid parameter"
    r"|does not support thinking|thinking\.|reasoning|cache_control|stream_options|tool_choice"
)
_LIMIT_NAME = re.compile(r"max_completion_tokens")
_REPAIRS: tuple[tuple[re.Pattern[str], Repair], ...] = (
    (_THINKING, "drop_thinking"),
    (_IMAGES, "drop_images"),
    (_SCHEMAS, "plain_schemas"),
    (_LIMIT_NAME, "rename_limit"),
    (_EXTRAS, "drop_extras"),
)


def says_overflow(said: str) -> bool:
    """The conversation does not fit; an output limit that is too high is another matter."""
    return _OVERFLOW.search(said) is not None and _TOO_MUCH_OUTPUT.search(said) is None


def says_billing(said: str) -> bool:
    return _any(_BILLING, said)


def says_unpaid(said: str) -> bool:
    """Whole phrases only: a refused request may be about anything, also about credit cards."""
    return _UNPAID.search(said) is not None


def says_bad_key(said: str) -> bool:
    return _BAD_KEY.search(said) is not None


def names_a_wait(said: str) -> bool:
    """It will pass by itself: no bill has to be paid."""
    return _WAIT.search(said) is not None


def says_try_again(said: str) -> bool:
    """A plan's limit that is lifted by time, not by money."""
    return "usage limit" in said and _any(_TRY_AGAIN, said.replace("usage limit", "", 1))


def says_overload(said: str) -> bool:
    return _any(_OVERLOAD, said)


def says_upstream(said: str) -> bool:
    return _any(_UPSTREAM, said)


def says_long_context_tier(said: str) -> bool:
    return "long context" in said and ("extra usage" in said or "tier" in said)


def says_privacy(said: str) -> bool:
    return _any(_PRIVACY, said)


def says_model_missing(said: str) -> bool:
    return _MODEL_MISSING.search(said) is not None


def says_policy(said: str) -> bool:
    return _any(_POLICY, said)


def blames_the_request(said: str) -> bool:
    """Some endpoints answer a malformed request with a 5xx."""
    return _any(_VALIDATION, said)


def is_vague(message: str) -> bool:
    """No reason was given that anybody could act on."""
    return message.strip(" .!").lower() in _VAGUE


def repair_for(said: str) -> Repair | None:
    return next((repair for pattern, repair in _REPAIRS if pattern.search(said)), None)


def _any(phrases: tuple[str, ...], said: str) -> bool:
    return any(phrase in said for phrase in phrases)
