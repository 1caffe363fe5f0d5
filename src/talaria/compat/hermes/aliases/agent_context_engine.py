"""`agent.context_engine`: what context engines derive from."""

from talaria.compat.hermes.aliases.agent_redact import redact_sensitive_text
from talaria.context.engine import ContextEngine

__all__ = ["ContextEngine", "sanitize_memory_context"]

MEMORY_CONTEXT_MAX_CHARS = 6_000
_HEAD_CHARS = 4_000
_TAIL_CHARS = 1_500


def sanitize_memory_context(memory_context: object) -> str:
    """Without secrets; of a long one the beginning and the end."""
    text = redact_sensitive_text(memory_context).strip()
    if len(text) <= MEMORY_CONTEXT_MAX_CHARS:
        return text
    return f"{text[:_HEAD_CHARS]}\n[… cut …]\n{text[-_TAIL_CHARS:]}"
