"""The keys of one provider: which one is used next, and which ones need rest. Never shared, never printed."""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from talaria.core.clock import Clock
from talaria.core.errors import FailureKind, ProviderFailure
from talaria.core.secret import NO_SECRET, Secret
from talaria.providers.base import Rotation

AFTER_REJECTION_S = 300.0
AFTER_ANYTHING_ELSE_S = 3600.0

Mint = Callable[[], Awaitable[Secret]]
"""Makes a key: at first use, and anew when the last one is not taken any more."""


@dataclass(slots=True)
class _State:
    resting_until: dict[str, float] = field(default_factory=dict[str, float])
    """By model: one model's limit is not another's. Under "" what concerns them all."""
    guessed: set[str] = field(default_factory=set[str])
    """Models whose limit named no time: how long the key rests for them is our own rule."""
    uses: int = 0


class KeyPool:
    """Rest is a preference: when every key rests, one is tried all the same. The first choice is one whose limit named
    no time, then the one that may wake soonest."""

    def __init__(self, keys: Sequence[Secret], rotation: Rotation, clock: Clock, mint: Mint | None = None) -> None:
        self._keys = list(keys)
        self._rotation: Rotation = rotation
        self._clock = clock
        self._mint = mint
        self._minted: Secret | None = None
        self._minting = asyncio.Lock()
        self._states: dict[Secret, _State] = {key: _State() for key in keys}
        self._last: Secret | None = None

    async def take(self, model: str, but: Collection[Secret] = ()) -> Secret:
        """The key for what comes now; `but` those if there are others.

        Raises `ProviderFailure` when one must be made and cannot be.
        """
        if self._mint is not None and self._minted is None:
            async with self._minting:
                if self._minted is None:
                    await self._make(self._mint)
        if not self._keys:
            return NO_SECRET
        awake = [key for key in self._keys if not self._rest_s(key, model) and key not in but]
        chosen = self._choose(awake) if awake else min(self._keys, key=lambda key: self._asked_rest_s(key, model))
        self._states[chosen].uses += 1
        self._last = chosen
        return chosen

    def has_other(self, keys: Collection[Secret], model: str) -> bool:
        """Another one than these is awake."""
        return any(other not in keys and not self._rest_s(other, model) for other in self._keys)

    def other_key_in_s(self, key: Secret, model: str) -> float:
        """When the next of the other keys may be used; infinite if there are none."""
        return min((self._asked_rest_s(other, model)[0] for other in self._keys if other != key), default=math.inf)

    def rest(self, key: Secret, model: str, failure: ProviderFailure) -> None:
        """A key that failed is not used for a while, if there is another one."""
        if key not in self._states:
            return  # it was replaced meanwhile
        if failure.kind == "upstream_rate_limit":
            return  # not the key's fault
        scope = model if failure.kind == "rate_limit" else ""
        guessed = self._states[key].guessed
        guessed.add(scope) if scope and failure.retry_after_s is None else guessed.discard(scope)
        self._states[key].resting_until[scope] = self._clock.monotonic() + _rest_s(failure.kind, failure.retry_after_s)

    def can_refresh(self, key: Secret) -> bool:
        return self._mint is not None and (key == self._minted or self._minted is None)

    async def refresh(self, key: Secret) -> bool:
        """Make the key anew that was not taken. False: it is the same again. Raises `ProviderFailure`."""
        if self._mint is None:
            return False
        async with self._minting:
            if self._minted == key:  # else somebody was quicker
                self._adopt(await self._mint())
        return self._minted != key

    async def _make(self, mint: Mint) -> None:
        """One that cannot be made does not matter while there are others."""
        try:
            self._adopt(await mint())
        except ProviderFailure:
            if not self._keys:
                raise

    def _adopt(self, made: Secret) -> None:
        """In the place of the one that was made before: in front."""
        if self._minted is not None and self._minted in self._states:
            self._keys.remove(self._minted)
            del self._states[self._minted]
        self._minted = made
        if made not in self._states:
            self._keys.insert(0, made)
            self._states[made] = _State()

    def _choose(self, awake: Sequence[Secret]) -> Secret:
        match self._rotation:
            case "fill_first":
                return awake[0]
            case "round_robin":
                return self._after_last(awake)
            case "least_used":
                return min(awake, key=lambda key: self._states[key].uses)
            case "random":
                return random.choice(awake)  # noqa: S311  (spreads load)
            case _:
                assert_never(self._rotation)

    def _after_last(self, awake: Sequence[Secret]) -> Secret:
        if self._last is None or self._last not in self._states:
            return awake[0]
        last = self._keys.index(self._last)
        return next(key for key in self._keys[last + 1 :] + self._keys[: last + 1] if key in awake)

    def _rest_s(self, key: Secret, model: str) -> float:
        until = self._states[key].resting_until
        return max(0.0, max(until.get("", 0.0), until.get(model, 0.0)) - self._clock.monotonic())

    def _asked_rest_s(self, key: Secret, model: str) -> tuple[float, float]:
        """To compare keys that rest: without what is only guessed, then with it."""
        state, rest_s = self._states[key], self._rest_s(key, model)
        is_guess = model in state.guessed and state.resting_until.get("", 0.0) <= self._clock.monotonic()
        return (0.0 if is_guess else rest_s), rest_s


def _rest_s(kind: FailureKind, retry_after_s: float | None) -> float:
    """As long as the endpoint says; without a word, by the reason."""
    if kind == "auth":
        return AFTER_REJECTION_S
    return AFTER_ANYTHING_ELSE_S if retry_after_s is None else min(max(0.0, retry_after_s), AFTER_ANYTHING_ELSE_S)
