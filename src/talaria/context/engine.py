"""The interface of context engines in plugins, which those for Hermes are written against.

Messages are dictionaries as in OpenAI's chat API, without the system prompt; usage has the names that those engines
know. Everything is synchronous; the host (`engine_host.py`) calls it in threads, one call at a time per instance.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from talaria.core.messages import Usage
from talaria.core.plugin_calls import HostedPlugin


class ContextEngine(ABC):
    last_prompt_tokens: int = 0
    """-1 right after a compaction: the length of the prompt is not known yet."""
    last_completion_tokens: int = 0
    last_total_tokens: int = 0
    threshold_tokens: int = 0
    context_length: int = 0
    compression_count: int = 0
    threshold_percent: float = 0.75
    protect_first_n: int = 3
    protect_last_n: int = 6

    @property
    @abstractmethod
    def name(self) -> str:
        """The value of `context.engine` that chooses it."""

    @abstractmethod
    def update_from_response(self, usage: dict[str, Any]) -> None:
        """After every answer of the model; `{}` if the first one after a compaction had no usage."""

    @abstractmethod
    def should_compress(self, prompt_tokens: int | None = None) -> bool: ...

    @abstractmethod
    def compress(
        self,
        messages: list[dict[str, Any]],
        current_tokens: int | None = None,
        focus_topic: str | None = None,
        force: bool = False,
        memory_context: str = "",
    ) -> list[dict[str, Any]]:
        """What the model should read from now on. Older engines may have fewer parameters."""

    def should_compress_preflight(self, messages: list[dict[str, Any]]) -> bool:  # noqa: ARG002
        """At the beginning of each turn; a good moment to read new messages."""
        return False

    def should_defer_preflight_to_real_usage(self, rough_tokens: int) -> bool:  # noqa: ARG002
        """True: do not compress because of an estimate; wait for a count by the model."""
        return False

    def has_content_to_compress(self, messages: list[dict[str, Any]]) -> bool:  # noqa: ARG002
        return True

    def on_session_start(self, session_id: str, **facts: Any) -> None:  # noqa: B027
        """A conversation begins, continues, or was compacted (`boundary_reason`)."""

    def on_session_end(self, session_id: str, messages: list[dict[str, Any]]) -> None:  # noqa: B027
        """A conversation is left, or is about to be compacted."""

    def on_session_reset(self) -> None:
        self.last_prompt_tokens = 0
        self.last_completion_tokens = 0
        self.last_total_tokens = 0
        self.compression_count = 0

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        return []

    def handle_tool_call(self, name: str, args: dict[str, Any], **facts: Any) -> str:  # noqa: ARG002
        return json.dumps({"error": f"This engine has no tool called {name}."})

    def get_status(self) -> dict[str, Any]:
        prompt = max(self.last_prompt_tokens, 0)
        return {
            "last_prompt_tokens": prompt,
            "threshold_tokens": self.threshold_tokens,
            "context_length": self.context_length,
            "usage_percent": min(100.0, 100 * prompt / self.context_length) if self.context_length else 0,
            "compression_count": self.compression_count,
        }

    def update_model(
        self,
        model: str,  # noqa: ARG002
        context_length: int,
        base_url: str = "",  # noqa: ARG002
        api_key: str = "",  # noqa: ARG002
        provider: str = "",  # noqa: ARG002
        api_mode: str = "",  # noqa: ARG002
    ) -> None:
        """Another model answers from now on, or the first one is known."""
        self.context_length = context_length
        self.threshold_tokens = int(context_length * self.threshold_percent)


@dataclass(frozen=True, slots=True)
class HostedEngine(HostedPlugin[ContextEngine]):
    """An engine, and its plugin's slash commands for this instance."""

    commands: Mapping[str, Callable[[str], Any]] = field(default_factory=dict[str, Callable[[str], Any]])
    """By name."""


@dataclass(frozen=True, slots=True)
class CanonicalUsage:
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens

    @property
    def completion_tokens(self) -> int:
        return self.output_tokens

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


def canonical(usage: Usage) -> CanonicalUsage:
    return CanonicalUsage(usage.input, usage.output, usage.cache_read, usage.cache_write, usage.reasoning)


def as_dict(usage: CanonicalUsage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        **asdict(usage),
    }
