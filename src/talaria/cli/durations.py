"""Durations on the command line: 90d, 12h, 8w."""

import re

from talaria.core.errors import BadInput

_UNITS = {"h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}
_DURATION = re.compile(r"([0-9]{1,5})([hdw])")


def parse_duration(text: str, noun: str) -> float:
    """In seconds. Raises `BadInput`; `noun` completes "is not"."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise BadInput(f"{text!r} is not {noun}: give a number and h, d or w, as in 90d.")
    return int(found[1]) * _UNITS[found[2]]
