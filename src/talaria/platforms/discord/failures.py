"""What Discord's refusals and broken connections mean. Pure."""

from collections.abc import Mapping

import msgspec

from talaria.platforms.base import AccessLost, NotTaken, PlatformFailure, Refused, Rejected, Unsure
from talaria.platforms.discord.incoming import read
from talaria.platforms.failures import pause_s

_UNKNOWN_CHANNEL = 10003
_OF_THE_MESSAGE = {
    20009,  # explicit content
    50005,  # somebody else wrote it
    50021,  # a system message
    90001,  # reactions of ours are blocked
}
"""Refused with 403, though the chat is open to us."""
_BLOCKED_ON_THE_WAY = 40333
_PORTAL = "https://discord.com/developers/applications"
_CLOSINGS = {
    4004: f"Discord does not take the bot's token: copy it again from {_PORTAL}.",
    4010: "Discord refuses the connection as a wrong shard (4010).",
    4011: "The bot is in too many servers for one connection: Discord asks for sharding (4011).",
    4012: "Discord does not speak this version of its protocol any more: update discord.py.",
    4013: "Discord does not know the intents that were asked for: update discord.py.",
    4014: f"Discord withholds the messages' text: switch on Message Content Intent at {_PORTAL}, under Bot.",
}
"""Close codes after which connecting again would not help."""


class _Told(msgspec.Struct, frozen=True):
    """The body of a refusal."""

    message: str = ""
    code: int = 0
    retry_after: float | None = None


def refusal(status: int, headers: Mapping[str, str], body: bytes) -> PlatformFailure:
    """What an answer other than 2xx means."""
    told = read(body, _Told)
    if told is None and (status < 400 or status in (403, 404, 407)):
        return NotTaken(f"Something on the way to Discord answered with {status}: check api_url and the proxy.")
    told = told or _Told()
    said = f"{told.message or 'no reason given'} ({told.code or status})"
    if status == 429:
        return NotTaken("Discord asks to slow down.", retry_after_s=_pause_s(told, headers))
    if status == 401:
        return Refused(f"Discord does not take the bot's token: copy it again from {_PORTAL}.")
    if told.code == _BLOCKED_ON_THE_WAY:
        return NotTaken(f"Discord's network did not let it through: {said}.")
    if told.code == _UNKNOWN_CHANNEL or (status == 403 and told.code not in _OF_THE_MESSAGE):
        return AccessLost(f"Discord has closed this chat to the bot: {said}.")
    if status >= 500 or status == 408:
        return Unsure(f"Discord failed: {said}.")
    return Rejected(f"Discord refuses this: {said}.")


def closed(code: int | None) -> PlatformFailure:
    """What the end of the gateway socket means."""
    if code in _CLOSINGS:
        return Refused(_CLOSINGS[code])
    return NotTaken(f"Discord closed the line ({code or 'cut'}).")


def _pause_s(told: _Told, headers: Mapping[str, str]) -> float | None:
    """The body is exact to the millisecond; the header is all there is when Discord's own servers were not reached."""
    if told.retry_after is not None:
        return max(told.retry_after, 0.0)
    return pause_s(headers.get("Retry-After", ""))
