"""Errors as OpenAI's clients expect them, and which of ours become which."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from talaria.core.errors import (
    BadInput,
    LimitName,
    LimitReached,
    OperatorError,
    ProviderFailure,
    SessionBusy,
    StoreUnavailable,
    TalariaError,
    TitleTaken,
    UnknownSession,
)

RETRY_S = 5
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
}
DO_NOT_RETRY = {"x-should-retry": "false"}
"""OpenAI's clients send a request again by themselves, after 409, 429 and 5xx."""


class ErrorDetails(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None = None
    """Which part of the request is wrong."""
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorDetails


class ApiError(TalariaError):
    def __init__(
        self,
        status: int,
        sentence: str,
        code: str | None = None,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.code = code
        self.param = param
        self.headers = headers or {}

    @property
    def body(self) -> ErrorBody:
        return ErrorBody(ErrorDetails(str(self), _TYPES.get(self.status, "server_error"), self.param, self.code))


def not_found(what: str, id: str) -> ApiError:
    """Also if it is somebody else's: nobody learns that it exists."""
    return ApiError(404, f"There is no {what} {id!r}.", f"{what}_not_found")


def too_large(most_bytes: int) -> ApiError:
    """The connection stays: most clients read the answer only once they have sent all, which nobody keeps."""
    return ApiError(413, f"The body may have at most {most_bytes:,} bytes.", "body_too_large")


def later(sentence: str, retry_s: int = RETRY_S) -> ApiError:
    return ApiError(503, sentence, "unavailable", headers={"Retry-After": str(retry_s)})


def wrong_field(sentence: str, param: str) -> ApiError:
    return ApiError(400, sentence, "invalid_value", param=param)


def limit_reached(sentence: str, limit: LimitName) -> ApiError:
    until = " This holds until midnight, where Talaria runs." if limit in ("day", "person") else ""
    return ApiError(429, f"{sentence}{until}", f"limit_{limit or 'reached'}", headers=DO_NOT_RETRY)


def translate(fault: TalariaError) -> ApiError:
    """For whoever asked."""
    match fault:
        case ApiError():
            return fault
        case UnknownSession():
            return ApiError(404, str(fault), "session_not_found")
        case SessionBusy():
            return ApiError(409, str(fault), "session_busy")
        case LimitReached():
            return limit_reached(str(fault), fault.limit)
        case TitleTaken(title=title):
            return ApiError(409, f"The title {title!r} is already used; choose another.", "title_taken", param="title")
        case BadInput():
            return ApiError(400, str(fault), "invalid_value")
        case StoreUnavailable():
            return later(str(fault))
        case ProviderFailure():
            return ApiError(502, str(fault), "model_failed", headers=DO_NOT_RETRY)
        case OperatorError():
            return ApiError(500, str(fault), "misconfigured", headers=DO_NOT_RETRY)
        case _:
            return ApiError(500, str(fault), headers=DO_NOT_RETRY)


_PLACE = re.compile(r" - at `\$\.?(?P<path>.*)`$")


def decode_body(decoder: "msgspec.json.Decoder[Any]", body: bytes) -> Any:
    """Raises `ApiError`, which names the field."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as fault:
        sentence = str(fault)
        place = _PLACE.search(sentence)
        path = place["path"].replace("[...]", "[]") if place else ""
        said = sentence[: place.start()] if place else sentence
        if missing := re.search(r"missing required field `(.*?)`", said):
            path = f"{path}.{missing[1]}".strip(".")
        raise wrong_field(f"{path}: {said}." if path else f"{said}.", path or "body") from fault
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise ApiError(400, f"The body is not the JSON that it should be: {fault}.", "invalid_json") from fault
