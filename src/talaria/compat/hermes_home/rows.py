"""Rows of Hermes' state.db as every version of it can tell them; what a version does not have is its default."""

from dataclasses import dataclass

SUMMARY_OPENINGS = ("[CONTEXT COMPACTION", "[CONTEXT SUMMARY]")
"""How a summary begins that stands for earlier messages."""


@dataclass(frozen=True, slots=True)
class MessageRow:
    id: int
    role: str
    content: str | None = None
    call_id: str = ""
    calls: str = ""
    """JSON."""
    tool: str = ""
    at: float | None = None
    finish: str = ""
    reasoning: str = ""
    effect: str = ""
    is_live: bool = True
    """False: archived when the conversation was made shorter."""
    is_observed: bool = False
    """Seen in a group, and not meant for the assistant."""
    is_marked_summary: bool = False

    @property
    def is_summary(self) -> bool:
        is_opened_so = (self.content or "").lstrip().startswith(SUMMARY_OPENINGS)
        return self.role != "tool" and (self.is_marked_summary or is_opened_so)


@dataclass(frozen=True, slots=True)
class HermesSession:
    place: int
    """Its rowid, by which its messages are found."""
    id: str
    source: str = ""
    model: str = ""
    provider: str = ""
    title: str | None = None
    parent: str | None = None
    cwd: str = ""
    at: float | None = None
    is_helper: bool = False
    """The run of a subagent or a tool: no conversation with the person."""


def cleaned(text: str) -> str:
    """Without what neither a JSON text nor an endpoint takes: NULs and halves of a character."""
    return text.replace("\0", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
