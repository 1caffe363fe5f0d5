"""Secrets taken out of what endpoints say: some quote the key that they refuse."""

from collections.abc import Iterable

from talaria.core.secret_finder import HIDDEN

CUT = "…"
MIN_CHARS = 6
"""What is shorter is no secret but a placeholder, and may be part of any word."""


def redact_secrets(text: str, secrets: Iterable[str]) -> str:
    """Also where a quotation was cut in the middle of one."""
    for secret in secrets:
        if len(secret) >= MIN_CHARS:
            text = _without_half(text.replace(secret, HIDDEN), secret)
    return text


def _without_half(text: str, secret: str) -> str:
    shown, cut, rest = text.partition(CUT)
    if not cut:
        return text
    length = next((size for size in range(len(secret), MIN_CHARS - 1, -1) if shown.endswith(secret[:size])), 0)
    kept = shown.removesuffix(secret[:length]) + HIDDEN if length else shown
    return kept + cut + _without_half(rest, secret)
