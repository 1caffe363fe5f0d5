"""The hooks around a question of the gate. Whoever listens changes nothing: the person decides, and what a callback
returns is ignored."""

from typing import Any

from talaria.core.ids import SessionId
from talaria.plugins.hook_table import HookTable
from talaria.tools.approval import Choice, Consulted


class ApprovalHooks:
    """Satisfies `ApprovalObserver`, for one session."""

    def __init__(self, table: HookTable, session: SessionId, conversation: str, platform: str) -> None:
        self._table = table
        self._facts: dict[str, Any] = {
            "session_id": session,
            "session_key": conversation,
            "platform": platform,
            "surface": "cli" if platform == "cli" else "gateway",
        }

    async def asked(self, what: Consulted) -> None:
        await self._fire("pre_approval_request", what)

    async def answered(self, what: Consulted, choice: Choice) -> None:
        await self._fire("post_approval_response", what, choice=choice)

    async def _fire(self, name: str, what: Consulted, **more: Any) -> None:
        if self._table.callbacks.get(name):
            told = {
                "command": what.command,
                "description": what.reason,
                "pattern_key": what.call.name,
                "pattern_keys": [what.call.name],
                "tool_name": what.call.name,
                "tool_call_id": what.call.id,
                "turn_id": what.turn,
            }
            await self._table.invoke(name, **self._facts, **told, **more)
