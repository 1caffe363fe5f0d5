"""Text from the web, without what people would not see."""

import re

_UNSEEN = re.compile(
    "["
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # controls
    "\u00ad\u200b\u2060-\u2064\ufeff"  # without width
    "\u202a-\u202e\u2066-\u2069"  # turning the direction around
    "\U000e0000-\U000e007f"  # tags: a whole hidden alphabet
    "\ud800-\udfff"  # halves of pairs
    "]"
)
"""Joiners stay: scripts and pictures are made with them."""


def strip_invisible(text: str) -> str:
    return _UNSEEN.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
