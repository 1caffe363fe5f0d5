"""How much of an endpoint's window a request takes, about."""

from talaria.providers.base import Endpoint, ModelRequest

LARGE_SHARE = 0.4
LARGE_TOKENS = 80_000
LARGE_MESSAGES = 80
LONG_WINDOW = 256_000

_SCHEMA_CHARS = 400
"""What a tool's schema takes on the wire besides its description."""


def prompt_tokens(request: ModelRequest) -> int:
    described = sum(len(tool.description) + _SCHEMA_CHARS for tool in request.tools)
    return request.history.tokens(len(request.system) + described)


def is_large(request: ModelRequest, endpoint: Endpoint) -> bool:
    """So long that a refusal without a reason may mean just that."""
    tokens = prompt_tokens(request)
    if endpoint.window is not None and tokens > LARGE_SHARE * endpoint.window:
        return True
    is_short = endpoint.window is None or endpoint.window <= LONG_WINDOW
    return is_short and (tokens > LARGE_TOKENS or len(request.history) > LARGE_MESSAGES)
