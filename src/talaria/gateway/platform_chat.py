"""A chat on a platform, as slash commands see it."""

from collections.abc import Awaitable, Callable

from talaria.core.errors import BadInput
from talaria.core.ids import SessionId, new_session_id
from talaria.gateway.envelope import Received
from talaria.runtime.command_host import CommandHost
from talaria.runtime.commands import help_text
from talaria.runtime.open_chat import OpenChat, Reason
from talaria.runtime.recorder import Observer
from talaria.runtime.session import LiveSession, ignore
from talaria.store.base import Session

Open = Callable[[SessionId, Received], Awaitable[LiveSession]]


class PlatformChat(OpenChat):
    surface = "platform"

    def __init__(self, host: CommandHost, received: Received, live: LiveSession, open_: Open) -> None:
        """`open_` opens a conversation for whoever is here."""
        super().__init__(host, None if received.principal.is_admin else received.principal.person)
        self.received = received
        self._live = live
        self._open = open_

    @property
    def live(self) -> LiveSession:
        return self._live

    def observer(self) -> Observer:
        return ignore

    async def help(self) -> str:
        return help_text(self._host.commands, self.surface, is_admin=self.received.principal.is_admin)

    async def switch_to(self, row: Session | None, reason: Reason) -> None:
        """The chat is about another conversation from now on, and so is what waits in it."""
        arrival = self.received.arrival
        session = row.id if row else new_session_id(self._host.clock.now())
        successor = await self._open(session, self.received)
        await self._live.catch_up()
        await self._live.hand_over(successor, carry_over=reason == "branch")
        await self._host.store.chats.bind(self.received.key, session, str(arrival.where))
        self._live = successor

    async def attach(self, path: str) -> str:
        raise BadInput(f"Send {path or 'the image'} as a picture.")

    async def hand_off(self, platform: str) -> None:
        raise BadInput(f"This conversation is in a chat already; go to {platform} and /resume it there.")
