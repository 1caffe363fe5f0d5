"""What OpenAI's two wires have in common: the header of the key, the shape of a person's message,
the output limit, the token counts."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from talaria.core.entries import Effort
from talaria.core.messages import Context, Image, Text, Usage, User, UserPart
from talaria.core.secret import Secret
from talaria.providers.base import Endpoint, ModelRequest
from talaria.providers.wire_parts import clamp_count

Encoded = dict[str, Any]
_FAMILY = re.compile(r"(?P<five>gpt-5(?P<dot>\.\d)?)|o[134]\b")


def headers(key: Secret) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {key.reveal()}"} if key else {}


def user_message(message: User, encode_part: Callable[[UserPart], Encoded]) -> Encoded:
    """Plain text where that is enough: not every endpoint takes a list of parts."""
    if any(isinstance(part, Image) for part in message.parts):
        return {"role": "user", "content": [encode_part(part) for part in message.parts]}
    text = "\n\n".join(part.text for part in message.parts if isinstance(part, Text | Context))
    return {"role": "user", "content": text}


def output_limit(request: ModelRequest, endpoint: Endpoint) -> int | None:
    return min((limit for limit in (request.max_output, endpoint.max_output) if limit is not None), default=None)


def effort(request: ModelRequest, endpoint: Endpoint) -> Effort | None:
    """As the model knows it. Each family of OpenAI's has its own least effort: `none` from gpt-5.1
    on (which has no `minimal`), `minimal` for gpt-5, `low` for those before."""
    wanted = request.effort
    family = _FAMILY.match(endpoint.model.rpartition("/")[2])
    if family is None or wanted not in ("none", "minimal"):
        return wanted
    if family["dot"]:
        return "low" if wanted == "minimal" or "codex" in endpoint.model else "none"
    return "minimal" if family["five"] and "codex" not in endpoint.model else "low"


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


def count_usage(
    prompt: int | None, output: int | None, of_prompt: PromptDetails | None, of_output: OutputDetails | None
) -> Usage:
    """`prompt` includes what was read from and written to a cache."""
    details = of_prompt or PromptDetails()
    read, written = clamp_count(details.cached_tokens), clamp_count(details.cache_write_tokens)
    reasoning = clamp_count((of_output or OutputDetails()).reasoning_tokens)
    return Usage(clamp_count(clamp_count(prompt) - read - written), clamp_count(output), read, written, reasoning)
