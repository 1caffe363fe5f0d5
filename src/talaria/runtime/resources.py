"""What a session has beside its conversation: a shell, background processes, a browser."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from talaria.core.ids import SessionId

if TYPE_CHECKING:
    from talaria.tools.undo.change_recorder import ChangeRecorder


class SessionResources(Protocol):
    @property
    def recorder(self) -> "ChangeRecorder | None":
        """What makes changes of files undoable; None: nothing does."""
        ...

    def take_news(self, session: SessionId) -> Sequence[str]:
        """What has happened there since this was last asked."""
        ...

    def has_shell(self, session: SessionId) -> bool: ...
    async def close(self, session: SessionId) -> None:
        """Nothing of it is left running."""
        ...


class NoResources:
    recorder = None

    def take_news(self, session: SessionId) -> Sequence[str]:  # noqa: ARG002
        return ()

    def has_shell(self, session: SessionId) -> bool:  # noqa: ARG002
        return False

    async def close(self, session: SessionId) -> None:  # noqa: ARG002
        return None
