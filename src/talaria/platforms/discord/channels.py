"""What is known of each channel: what Discord tells of it, how far it is read, and what was said there while we were
away, which Discord does not tell by itself."""

from collections.abc import AsyncGenerator, Mapping
from typing import Self

import msgspec

from talaria.core.clock import Clock
from talaria.platforms.base import NotTaken, Unsure
from talaria.platforms.discord.incoming import (
    DiscordChannel,
    DiscordGuild,
    DiscordMessage,
    DiscordRole,
    Named,
    ThreadList,
    ToldRole,
    read,
    snowflake_at,
)
from talaria.platforms.discord.rest import Body, Rest

_MAX_ASKED = 1000
_MAX_CHANNELS = 500
_MAX_PAGES = 5
_PAGE = 100
_MAX_AGE_S = 24 * 3600.0
_SKEW_S = 60.0
"""By how much our clock may be ahead of Discord's."""
_MAX_PAUSE_S = 60.0
_MAX_PAUSES = 5


class Channels:
    """Channels and threads, as the gateway tells of them; of others Discord is asked."""

    def __init__(self, rest: Rest, account: str) -> None:
        self._rest = rest
        self._account = account
        self._told: dict[str, DiscordChannel] = {}
        self._asked: dict[str, DiscordChannel] = {}
        self._roles: dict[str, str] = {}
        """Our own, by server."""

    def __getitem__(self, id: str) -> DiscordChannel:
        """Without asking: one of which nothing is known is a chat of its own, as direct chats are."""
        return self.find_known(id) or self._asked.get(id) or DiscordChannel(id)

    def find_known(self, id: str) -> DiscordChannel | None:
        return self._told.get(id)

    def role(self, guild: str | None) -> str:
        """Our own in a server."""
        return self._roles.get(guild, "") if guild else ""

    async def find(self, id: str) -> DiscordChannel:
        """Raises `PlatformFailure`."""
        channel = self._told.get(id) or self._asked.get(id)
        if channel is None:
            channel = self._asked[id] = await self._rest.ask(f"/channels/{id}", DiscordChannel)
            if len(self._asked) > _MAX_ASKED:
                del self._asked[next(iter(self._asked))]
        return channel

    def hear(self, event: str, body: msgspec.Raw) -> None:
        """An event of the gateway."""
        match event:
            case "GUILD_CREATE" if guild := read(body, DiscordGuild):
                for role in guild.roles:
                    self._note_role(guild.id, role)
                self._note(*guild.channels, *guild.threads, guild=guild.id)
            case "GUILD_DELETE" if guild := read(body, DiscordGuild):
                if not guild.unavailable:  # then it comes back
                    self._roles.pop(guild.id, None)
                    self._told = {id: one for id, one in self._told.items() if one.guild_id != guild.id}
            case "CHANNEL_CREATE" | "CHANNEL_UPDATE" | "THREAD_CREATE" | "THREAD_UPDATE":
                self._note(body)
            case "THREAD_LIST_SYNC" if threads := read(body, ThreadList):
                self._note(*threads.threads, guild=threads.guild_id)
            case "CHANNEL_DELETE" | "THREAD_DELETE" if gone := read(body, Named):
                self._told.pop(gone.id, None)
            case "GUILD_ROLE_CREATE" | "GUILD_ROLE_UPDATE" if told := read(body, ToldRole):
                self._note_role(told.guild_id, told.role)
            case _:
                pass

    def _note(self, *channels: msgspec.Raw, guild: str = "") -> None:
        for body in channels:
            channel = read(body, DiscordChannel)
            if channel is None or not (guild or channel.guild_id):
                continue
            if channel.thread_metadata.archived:
                self._told.pop(channel.id, None)
            else:
                self._told[channel.id] = msgspec.structs.replace(channel, guild_id=channel.guild_id or guild)

    def _note_role(self, guild: str, role: DiscordRole) -> None:
        if role.tags.bot_id == self._account:
            self._roles[guild] = role.id


class _Cursor(msgspec.Struct, frozen=True):
    heard: int
    """When we last listened, as a snowflake."""
    channels: dict[str, int]
    """The last message of each that we know."""


class Bookmarks:
    """Where to go on reading. `str()` of it is the cursor."""

    def __init__(self, heard: int, channels: dict[str, int]) -> None:
        self._heard = heard
        self._channels = channels

    @classmethod
    def at(cls, cursor: str | None, clock: Clock) -> Self:
        """Without a cursor we have never been here: then nothing was missed."""
        kept = read(cursor, _Cursor) if cursor else None
        if kept is None:
            return cls(snowflake_at(clock.now()) - 1, {})  # what is said within this very millisecond is still to come
        return cls(kept.heard, dict(kept.channels))

    def __str__(self) -> str:
        return msgspec.json.encode(_Cursor(self._heard, self._channels)).decode()

    def __contains__(self, channel: str) -> bool:
        return channel in self._channels

    @property
    def channels(self) -> list[str]:
        """The most recently used first."""
        return sorted(self._channels, key=self._channels.__getitem__, reverse=True)

    def last(self, channel: str) -> int:
        """Of a channel that we never saw we have read whatever came while we listened."""
        return self._channels.get(channel, self._heard)

    def mark(self, channel: str, message: str) -> None:
        self._channels[channel] = max(int(message), self._channels.get(channel, 0))
        if len(self._channels) > _MAX_CHANNELS:
            del self._channels[self.channels[-1]]

    def forget(self, channel: str) -> None:
        self._channels.pop(channel, None)

    def advance_to_now(self, clock: Clock) -> None:
        self._heard = max(self._heard, snowflake_at(clock.now() - _SKEW_S))


async def fetch_missed(rest: Rest, clock: Clock, channel: str, after: int) -> AsyncGenerator[list[DiscordMessage]]:
    """What was said there since, in order, page by page; no more than a day and a few pages of it.

    Raises `AccessLost` or `Rejected` when that channel cannot be read, and `NotTaken` or `Refused`.
    """
    after = max(after, snowflake_at(clock.now() - _MAX_AGE_S))
    for _ in range(_MAX_PAGES):
        query = {"after": str(after), "limit": str(_PAGE)}
        body = await patiently(rest, clock, "GET", f"/channels/{channel}/messages", query=query)
        told = read(body, list[msgspec.Raw]) or []
        messages = (message for each in told if (message := read(each, DiscordMessage)))
        page = sorted(messages, key=lambda message: int(message.id))
        yield page
        if len(told) < _PAGE or not page:
            return
        after = int(page[-1].id)


async def patiently(
    rest: Rest, clock: Clock, method: str, path: str, body: Body | None = None, query: Mapping[str, str] | None = None
) -> bytes:
    """For what may be asked again, as it changes nothing. Raises `NotTaken` where it is not known what happened."""
    for _ in range(_MAX_PAUSES):
        try:
            return await rest.call(method, path, body, query=query)
        except NotTaken as busy:
            if busy.retry_after_s is None or busy.retry_after_s > _MAX_PAUSE_S:
                raise
            await clock.sleep(busy.retry_after_s)
        except Unsure as lost:
            raise NotTaken(str(lost)) from lost
    raise NotTaken("Discord does not let us read what was missed: it asks to slow down again and again.")
