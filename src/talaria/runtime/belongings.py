"""What a session has beside its conversation: a shell, background processes, a browser."""

from collections.abc import Sequence
from typing import Protocol

from talaria.model.ids import SessionId


class Belongings(Protocol):
    def take_news(self, session: SessionId) -> Sequence[str]:
        """What has happened there since this was last asked."""
        ...

    def has_shell(self, session: SessionId) -> bool: ...
    async def close(self, session: SessionId) -> None:
        """Nothing of it is left running."""
        ...


class NoBelongings:
    def take_news(self, session: SessionId) -> Sequence[str]:  # noqa: ARG002
        return ()

    def has_shell(self, session: SessionId) -> bool:  # noqa: ARG002
        return False

    async def close(self, session: SessionId) -> None:  # noqa: ARG002
        return None
