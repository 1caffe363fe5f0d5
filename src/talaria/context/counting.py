"""Usage as engines and plugins read it: the names of old, and the buckets that do not overlap.

From how many tokens on a conversation is made shorter.
"""

from dataclasses import asdict, dataclass

from talaria.core.usage import Usage


@dataclass(frozen=True, slots=True)
class CanonicalUsage:
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens

    @property
    def completion_tokens(self) -> int:
        return self.output_tokens

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


def canonical(usage: Usage) -> CanonicalUsage:
    return CanonicalUsage(usage.input, usage.output, usage.cache_read, usage.cache_write, usage.reasoning)


def as_dict(usage: CanonicalUsage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        **asdict(usage),
    }


SHARE = 0.5
SMALL_WINDOW = 512_000
SMALL_SHARE = 0.75
"""In a small window more of it is used before work is interrupted."""
FLOOR = 64_000
LAST_SHARE = 0.85
"""Where the floor would leave no room at all."""


def threshold(window: int, max_output: int | None = None, share: float = SHARE) -> int:
    """Of the window, less what the answer may take."""
    room = window - max_output if max_output and max_output <= window // 2 else window
    wanted = room * (max(share, SMALL_SHARE) if window < SMALL_WINDOW else share)
    at_least = max(wanted, FLOOR)
    return int(at_least if at_least < room else room * LAST_SHARE)
