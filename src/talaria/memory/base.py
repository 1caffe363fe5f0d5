"""The interface of memory providers in plugins, which those for Hermes are written against.

Synchronous; the host (`memory_host.py`) calls it in threads, one call at a time.
"""

import json
from abc import ABC, abstractmethod
from typing import Any


class MemoryProvider(ABC):
    @property
    @abstractmethod
    def name(self) -> str:
        """The value of `memory.provider` that chooses it."""

    @abstractmethod
    def is_available(self) -> bool:
        """Whether it has what it needs. Does not use the network."""

    @abstractmethod
    def initialize(self, session_id: str, **facts: Any) -> None:
        """Once per live session."""

    @abstractmethod
    def get_tool_schemas(self) -> list[dict[str, Any]]: ...

    def system_prompt_block(self) -> str:
        return ""

    def prefetch(self, query: str, *, session_id: str = "") -> str:  # noqa: ARG002
        """What the model should know with this message."""
        return ""

    def queue_prefetch(self, query: str, *, session_id: str = "") -> None:  # noqa: B027
        """After a turn, because the next one may be about the same."""

    def sync_turn(  # noqa: B027
        self,
        user_content: str,
        assistant_content: str,
        *,
        session_id: str = "",
        messages: list[dict[str, Any]] | None = None,
    ) -> None:
        """After each turn that ends with an answer."""

    def handle_tool_call(self, tool_name: str, args: dict[str, Any], **facts: Any) -> str:  # noqa: ARG002
        return json.dumps({"error": f"This memory has no tool called {tool_name}."})

    def shutdown(self) -> None:  # noqa: B027
        """The process ends."""

    def on_turn_start(self, turn_number: int, message: str, **facts: Any) -> None: ...  # noqa: B027

    def on_session_end(self, messages: list[dict[str, Any]]) -> None: ...  # noqa: B027

    def on_session_switch(  # noqa: B027
        self,
        new_session_id: str,
        *,
        parent_session_id: str = "",
        reset: bool = False,
        rewound: bool = False,
        **facts: Any,
    ) -> None: ...

    def on_pre_compress(self, messages: list[dict[str, Any]]) -> str:  # noqa: ARG002
        """What a summary of these must not lose."""
        return ""

    def on_delegation(self, task: str, result: str, *, child_session_id: str = "", **facts: Any) -> None: ...  # noqa: B027

    def on_memory_write(  # noqa: B027
        self, action: str, target: str, content: str, metadata: dict[str, Any] | None = None
    ) -> None: ...

    def get_config_schema(self) -> list[dict[str, Any]]:
        return []

    def save_config(self, values: dict[str, Any], hermes_home: str) -> None: ...  # noqa: B027

    def backup_paths(self) -> list[str]:
        return []
