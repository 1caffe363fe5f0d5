"""Token counts as vendors report them, sorted into the buckets of `Usage`."""

from talaria.model.usage import Usage


def inclusive(
    *, prompt: int | None, output: int | None, read: int | None, written: int | None, reasoning: int | None
) -> Usage:
    """OpenAI's way: the prompt includes what was read from and written to a cache."""
    return exclusive(
        input=_count(prompt) - _count(read) - _count(written),
        output=output,
        read=read,
        written=written,
        reasoning=reasoning,
    )


def exclusive(
    *, input: int | None, output: int | None, read: int | None, written: int | None, reasoning: int | None
) -> Usage:
    """Anthropic's way: three counts of the prompt that do not overlap."""
    return Usage(_count(input), _count(output), _count(read), _count(written), _count(reasoning))


MAX_COUNT = 10**12
"""No call has that many; what a broken counter says must not break a sum."""


def _count(tokens: int | None) -> int:
    return min(max(0, tokens or 0), MAX_COUNT)
