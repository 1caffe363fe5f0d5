"""What holds for a session that is taken over from elsewhere. Shared by all stores."""

from collections.abc import Callable
from itertools import count

from talaria.store.base import BrokenRuleError, Session


def free_title(wanted: str | None, is_taken: Callable[[str], bool]) -> str | None:
    """`wanted`, with a number behind it if another session is called so; None if it says nothing."""
    if wanted is None or not wanted.strip():
        return None
    numbered = (f"{wanted} ({number})" for number in count(2))
    return wanted if not is_taken(wanted) else next(title for title in numbered if not is_taken(title))


def check_at_rest(session: Session) -> None:
    if session.open_turn is not None:
        raise BrokenRuleError(f"turn {session.open_turn} has not ended")
