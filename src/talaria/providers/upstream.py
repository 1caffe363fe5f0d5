"""The model endpoints as this process knows them: how to reach them, their keys, and which of them
asked us to wait.

Shared by all sessions, and all that is remembered from one turn to the next. The composition root
decides how to connect. Keys belong to one endpoint each, and are never printed.
"""

import asyncio
import contextlib
import math
import os
import random
import signal
import subprocess
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import assert_never

import msgspec

from talaria.core.aio import in_thread
from talaria.core.clock import Clock
from talaria.core.errors import FailureKind, KeyRejected, ProviderFailure, Repair
from talaria.core.secret import NO_SECRET, Secret
from talaria.providers.base import Endpoint, Provider, Rotation

PATIENCE_S = 60.0


async def key_from(command: str) -> Secret:
    """What the command prints, as password managers and cloud tools do. Raises `KeyRejected`,
    without the output, which is secret."""
    return Secret(await in_thread(lambda: _run_key_command(command)))


def _run_key_command(command: str) -> str:
    """Waits for the command only: what it leaves running in the background is killed."""
    try:
        process = subprocess.Popen(  # noqa: S602  (the person's own command, from their settings)
            command,
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as fault:
        raise KeyRejected(f"The key_command in config.yaml cannot be run: {type(fault).__name__}.") from fault
    with process:
        try:
            code = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise KeyRejected(f"The key_command in config.yaml gave no key within {PATIENCE_S:g} s.") from None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        printed = process.stdout.read() if process.stdout else b""
    if code:
        raise KeyRejected(f"The key_command in config.yaml failed with exit code {code}: run it by hand to see why.")
    key = printed.decode("utf-8", "replace").strip()
    if not key or "\n" in key:
        raise KeyRejected("The key_command in config.yaml printed no key, or more than one line: run it by hand.")
    return key


AFTER_REJECTION_S = 300.0
AFTER_ANYTHING_ELSE_S = 3600.0

Mint = Callable[[], Awaitable[Secret]]
"""Makes a key: at first use, and anew when the last one is not taken any more."""


class _State(msgspec.Struct):
    resting_until: dict[str, float] = {}
    """By model: one model's limit is not another's. Under "" what concerns them all."""
    guessed: set[str] = set()
    """Models whose limit named no time: how long the key rests for them is our own rule."""
    uses: int = 0


class KeyPool:
    """The keys of one provider: which one is used next, and which ones rest.

    Rest is a preference: when every key rests, one is tried anyway. The first choice is one whose
    limit named no time, then the one that rests shortest.
    """

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
                    try:
                        self._adopt(await self._mint())
                    except ProviderFailure:
                        if not self._keys:  # else there are others
                            raise
        if not self._keys:
            return NO_SECRET
        awake = [key for key in self._keys if not self._rest_s(key, model) and key not in but]
        chosen = self._choose(awake) if awake else min(self._keys, key=lambda key: self._rest_order(key, model))
        self._states[chosen].uses += 1
        self._last = chosen
        return chosen

    def has_other(self, keys: Collection[Secret], model: str) -> bool:
        """Another one than these is awake."""
        return any(other not in keys and not self._rest_s(other, model) for other in self._keys)

    def other_key_in_s(self, key: Secret, model: str) -> float:
        """When the next of the other keys may be used; infinite if there are none."""
        return min((self._rest_order(other, model)[0] for other in self._keys if other != key), default=math.inf)

    def cool_down(self, key: Secret, model: str, failure: ProviderFailure) -> None:
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
        """Make the key anew that was not taken. False: it is the same again. Raises
        `ProviderFailure`."""
        if self._mint is None:
            return False
        async with self._minting:
            if self._minted == key:  # else somebody was quicker
                self._adopt(await self._mint())
        return self._minted != key

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
                if self._last is None or self._last not in self._states:
                    return awake[0]
                last = self._keys.index(self._last)
                return next(key for key in self._keys[last + 1 :] + self._keys[: last + 1] if key in awake)
            case "least_used":
                return min(awake, key=lambda key: self._states[key].uses)
            case "random":
                return random.choice(awake)  # noqa: S311  (spreads load)
            case _:
                assert_never(self._rotation)

    def _rest_s(self, key: Secret, model: str) -> float:
        until = self._states[key].resting_until
        return max(0.0, max(until.get("", 0.0), until.get(model, 0.0)) - self._clock.monotonic())

    def _rest_order(self, key: Secret, model: str) -> tuple[float, float]:
        """To compare keys that rest: without what is only guessed, then with it."""
        state, rest_s = self._states[key], self._rest_s(key, model)
        is_guess = model in state.guessed and state.resting_until.get("", 0.0) <= self._clock.monotonic()
        return (0.0 if is_guess else rest_s), rest_s


def _rest_s(kind: FailureKind, retry_after_s: float | None) -> float:
    """As long as the endpoint says; without a word, by the reason."""
    if kind == "auth":
        return AFTER_REJECTION_S
    return AFTER_ANYTHING_ELSE_S if retry_after_s is None else min(max(0.0, retry_after_s), AFTER_ANYTHING_ELSE_S)


Connect = Callable[[Endpoint], Provider]

_LASTING: frozenset[Repair] = frozenset({"drop_extras", "rename_limit", "plain_schemas"})
"""What an endpoint cannot take at all; the others depend on what a conversation holds."""


class Upstream:
    def __init__(self, connect: Connect, clock: Clock) -> None:
        self._connect = connect
        self._clock = clock
        self._providers: dict[Endpoint, Provider] = {}
        self._pools: dict[tuple[object, ...], KeyPool] = {}
        self._resting_until: dict[str, float] = {}
        self._asked_wait_until: dict[str, float] = {}
        self._repairs: dict[str, frozenset[Repair]] = {}

    def provider(self, endpoint: Endpoint) -> Provider:
        provider = self._providers.get(endpoint)
        if provider is None:
            provider = self._providers[endpoint] = self._connect(endpoint)
        return provider

    def keys(self, endpoint: Endpoint) -> KeyPool:
        """One pool per provider, address and set of keys: a key never leaves the endpoint it was
        given for."""
        place = (endpoint.provider, endpoint.base_url, endpoint.keys, endpoint.key_command)
        pool = self._pools.get(place)
        if pool is None:
            mint = partial(key_from, endpoint.key_command) if endpoint.key_command else None
            pool = self._pools[place] = KeyPool(endpoint.keys, endpoint.rotation, self._clock, mint)
        return pool

    def cool_down(self, endpoint: Endpoint, seconds: float) -> None:
        """It has just refused for a limit: auxiliary calls go elsewhere for a while. Turns ask it
        all the same."""
        until = self._clock.monotonic() + seconds
        self._resting_until[endpoint.origin] = max(until, self._resting_until.get(endpoint.origin, 0.0))

    def is_cooling_down(self, endpoint: Endpoint) -> bool:
        return self._clock.monotonic() < self._resting_until.get(endpoint.origin, 0.0)

    def wait_as_requested(self, endpoint: Endpoint, seconds: float) -> None:
        """It named the time itself: until then turns begin elsewhere, too."""
        self._asked_wait_until[endpoint.origin] = self._clock.monotonic() + seconds

    def has_asked_to_wait(self, endpoint: Endpoint) -> bool:
        return self._clock.monotonic() < self._asked_wait_until.get(endpoint.origin, 0.0)

    def repairs(self, endpoint: Endpoint) -> frozenset[Repair]:
        """What requests to this endpoint go without from the start."""
        return self._repairs.get(endpoint.origin, frozenset())

    def learn(self, endpoint: Endpoint, repairs: frozenset[Repair]) -> None:
        """With these an answer came."""
        self._repairs[endpoint.origin] = self.repairs(endpoint) | (repairs & _LASTING)
