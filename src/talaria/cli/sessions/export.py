"""A conversation as a file for others: every entry as a line of JSON, or readable, as Markdown or as a page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from talaria.cli.safe import escape_json, readable
from talaria.cli.sessions.remarks import remark_on
from talaria.cli.tool_outcomes import outcome
from talaria.core.entries import MessageAdded, Recorded
from talaria.core.errors import BadInput
from talaria.core.messages import Assistant, ToolResult, User
from talaria.core.text import fence, show_time
from talaria.store.base import Session

ExportFormat = Literal["lines", "markdown", "html"]


def write_as_named(file: str, row: Session, entries: Sequence[Recorded]) -> Path:
    """Writes to `file`, or to one named after the conversation, in the format of its suffix; the default is a page."""
    path = Path(file or f"{row.id}.html").expanduser()
    formats: dict[str, ExportFormat] = {".md": "markdown", ".markdown": "markdown", ".jsonl": "lines", ".json": "lines"}
    write(path, export_session(row, entries, formats.get(path.suffix, "html")))
    return path


def write(file: Path, content: bytes) -> None:
    try:
        file.write_bytes(content)
    except OSError as fault:
        raise BadInput(f"Cannot write {file}: {fault.strerror}; choose another file.") from fault


def export_session(row: Session, entries: Sequence[Recorded], format: ExportFormat) -> bytes:
    match format:
        case "lines":
            return escape_json(b"\n".join(map(msgspec.json.encode, (row, *entries)))) + b"\n"
        case "markdown":
            return as_markdown(row, entries).encode()
        case "html":
            from talaria.cli.sessions.page import page  # noqa: PLC0415  (loads markdown-it)

            return page(row, entries).encode()


def as_markdown(row: Session, entries: Sequence[Recorded]) -> str:
    facts = " · ".join(filter(None, (str(row.id), row.model, show_time(row.created_at))))
    parts = [f"# {' '.join((row.title or row.preview or 'A conversation').split())}", facts]
    for recorded in entries:
        match recorded.entry:
            case MessageAdded(User(_, "host")):
                continue
            case MessageAdded(User() as message):
                parts.append(f"## You\n\n{message.text}")
            case MessageAdded(Assistant() as message):
                calls = [f"Call of `{call.name}`:\n\n{fence(call.arguments)}" for call in message.calls]
                parts += filter(None, ["## Talaria", message.text, *calls])
            case MessageAdded(ToolResult() as message):
                kind = outcome(message).kind
                failure = "" if kind == "done" else f" ({kind})"
                parts.append(f"Result of `{message.name}`{failure}:\n\n{fence(message.text)}")
            case entry:
                if remark := remark_on(entry):
                    parts.append(f"*{remark}*")
    return readable("\n\n".join(parts)) + "\n"
