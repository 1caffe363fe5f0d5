"""From how many tokens on a conversation is made shorter."""

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
