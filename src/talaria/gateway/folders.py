"""What the folder is called in which the agent works for somebody in a chat."""

import hashlib


def folder_name(platform: str, whose: str) -> str:
    """No two people share one, whatever signs their ids have; what is said together has one of its own."""
    safe = "".join(sign if sign.isalnum() or sign in "-_" else "-" for sign in whose)[:60]
    told_apart = "" if safe == whose else f"-{hashlib.sha256(whose.encode()).hexdigest()[:8]}"
    return f"{platform}-{safe}{told_apart}"
