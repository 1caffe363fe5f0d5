"""What strangers may cost: how often one is heard, and how much is remembered of whom."""

from collections.abc import Hashable
from ipaddress import IPv6Address, ip_address

BURST = 60.0
PER_S = 10.0
_MOST_SENDERS = 4_096


class Pace:
    """How often each address is heard. What is not heard of for long is forgotten."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[float, float]] = {}
        """Requests that are left, and when that was so; who was heard last stands last."""

    def allows(self, remote: str, now: float) -> bool:
        who = _network(remote)
        left, since = self._left.pop(who, (BURST, now))
        left = min(BURST, left + (now - since) * PER_S)
        self._left[who] = (max(left - 1, 0.0), now)
        if len(self._left) > _MOST_SENDERS:
            del self._left[next(iter(self._left))]
        return left >= 1


class Recent:
    """Remembers keys for at least `keep_s` and at most twice as long."""

    def __init__(self, keep_s: float, most: int) -> None:
        self._keep_s = keep_s
        self._most = most
        self._new: set[Hashable] = set()
        self._old: set[Hashable] = set()
        self._turned_at = 0.0

    def has(self, key: Hashable, now: float) -> bool:
        self._turn(now)
        return key in self._new or key in self._old

    def add(self, key: Hashable, now: float) -> bool:
        """False: there is no room for it."""
        self._turn(now)
        has_room = len(self._new) + len(self._old) < self._most
        if has_room:
            self._new.add(key)
        return has_room

    def forget(self, key: Hashable) -> None:
        self._new.discard(key)
        self._old.discard(key)

    def _turn(self, now: float) -> None:
        if now - self._turned_at < self._keep_s:
            return
        is_gap = now - self._turned_at >= 2 * self._keep_s
        self._new, self._old, self._turned_at = set(), set() if is_gap else self._new, now


def _network(remote: str) -> str:
    """Whoever has one IPv6 address has 2⁶⁴ of them."""
    try:
        address = ip_address(remote)
    except ValueError:
        return remote
    return remote if not isinstance(address, IPv6Address) else address.exploded[:19]
