"""What endpoints demand of a conversation. Pure."""

from collections.abc import Iterable

from talaria.core.messages import Assistant, Message, ToolResult, User


def transcript_problems(messages: Iterable[Message], *, is_idle: bool = True) -> list[str]:
    """Every call has exactly one result, in order, right behind it; people and model take turns; nothing is empty;
    the host does not repeat itself.

    `is_idle`: no turn is running, so the last word must be the assistant's.
    """
    problems: list[str] = []
    missing: list[str] = []
    known: set[str] = set()
    before: Message | None = None
    for message in messages:
        match message:
            case ToolResult():
                if isinstance(before, Assistant) and before.stop == "interrupted":
                    problems.append("a result behind an interrupted answer")
                if not missing or missing[0] != message.call_id:
                    problems.append(f"result of {message.call_id} where {missing[:1] or 'none'} is due")
                else:
                    missing.pop(0)
            case User() | Assistant():
                if missing:
                    problems.append(f"calls without result: {missing}")
                missing = []
                problems.extend(_speaker_problems(message, before, known))
                if isinstance(message, Assistant):
                    missing = [call.id for call in message.calls]
                    known.update(missing)
        before = message
    if missing:
        problems.append(f"calls without result at the end: {missing}")
    if is_idle and before is not None and not (isinstance(before, Assistant) and not before.calls):
        problems.append("the last word is not an answer")
    return problems


def _speaker_problems(message: User | Assistant, before: Message | None, known: set[str]) -> Iterable[str]:
    if isinstance(message, User):
        if isinstance(before, User) and message.author == "person":
            yield "two messages of the person without an answer between them"
        if isinstance(before, User) and message.author == before.author == "host":
            yield "two notes of the host in a row"
        return
    if before is None:
        yield "the assistant speaks first"
    if isinstance(before, Assistant):
        yield "two answers in a row"
    if not message.text and not message.calls:
        yield "an empty answer"
    ids = [call.id for call in message.calls]
    if len(set(ids)) != len(ids) or known & set(ids):
        yield f"a call id is used twice: {ids}"
