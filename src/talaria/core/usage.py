"""Tokens of one or many model calls, in buckets that do not overlap (except `reasoning`, a part of `output`)."""

import msgspec


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    input: int = 0
    """Prompt tokens that were neither read from nor written to a cache."""
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    """Part of `output`."""

    @property
    def prompt(self) -> int:
        return self.input + self.cache_read + self.cache_write

    @property
    def total(self) -> int:
        return self.prompt + self.output

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.reasoning + other.reasoning,
        )


NO_USAGE = Usage()
