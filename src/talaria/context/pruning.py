"""Old tool output, long arguments and images left out of what the model reads: cheap, and most of what is long. Pure.

Everything stays in the journal, where the `recall` tool finds it.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from talaria.core.messages import Assistant, AssistantPart, Message, Text, ToolCall, ToolResult, User, UserPart
from talaria.core.pictures import has_images, without_images
from talaria.providers.message_history import size_tokens

MAX_OUTPUT_CHARS = 200
MAX_ARGUMENT_CHARS = 500
_KEPT_ARGUMENT_CHARS = 120
_LIMITS = (16_000, 8_000, 4_000, 2_000, 1_000)
"""What is left of any text in the end, in characters: no less than it takes to make all of them fit."""

Part = TypeVar("Part", bound=UserPart | AssistantPart)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, object]).decode


def pruned(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The same messages, each as short as it can be without losing its place. Of equal outputs the newest stays."""
    newest = {message.text: index for index, message in enumerate(messages) if isinstance(message, ToolResult)}
    return tuple(
        _pruned(message, is_repeated=isinstance(message, ToolResult) and newest[message.text] != index)
        for index, message in enumerate(messages)
    )


def fitted(messages: Sequence[Message], tokens: int) -> tuple[Message, ...]:
    """The same messages, the longest of them clipped until all take no more than `tokens`, if that is possible.

    Before that old images go, and after it the newest. What the person said last stays as it is.
    """
    asked = (message for message in reversed(messages) if isinstance(message, User) and message.author == "person")
    last = next(asked, None)
    newest = next(filter(has_images, reversed(messages)), None)

    def without_old_images(message: Message) -> Message:
        return message if message is newest else without_images(message)

    clippings = (partial(_clipped, limit=limit) for limit in _LIMITS)
    made = tuple(messages)
    for step in (without_old_images, *clippings, without_images):
        if sum(map(size_tokens, made)) <= tokens:
            break
        made = tuple(message if message is last else step(message) for message in made)
    return made


def clip(text: str, limit: int) -> str:
    """Its beginning and its end, in about `limit` characters."""
    if len(text) <= limit:
        return text
    head, tail = limit * 3 // 4, limit // 4
    return f"{text[:head]}\n[… {len(text) - head - tail:,} characters left out …]\n{text[-tail:]}"


def _clipped(message: Message, limit: int) -> Message:
    """The very same if it is short enough."""
    match message:
        case ToolResult() if len(message.text) > limit:
            return msgspec.structs.replace(message, text=clip(message.text, limit))
        case User() if any(isinstance(part, Text) and len(part.text) > limit for part in message.parts):
            return msgspec.structs.replace(message, parts=tuple(_clipped_part(part, limit) for part in message.parts))
        case Assistant() if len(message.text) + sum(len(call.arguments) for call in message.calls) > limit:
            parts = tuple(_clipped_part(part, limit) for part in _short_calls(message))
            return msgspec.structs.replace(message, parts=parts)
        case _:
            return message


def _clipped_part(part: Part, limit: int) -> Part | Text:
    return Text(clip(part.text, limit)) if isinstance(part, Text) else part


def _pruned(message: Message, *, is_repeated: bool) -> Message:
    match message:
        case ToolResult():
            return _short_result(message, is_repeated=is_repeated)
        case Assistant() if message.calls:
            return msgspec.structs.replace(message, parts=tuple(_short_calls(message)))
        case User() | Assistant():
            return without_images(message)


def _short_result(result: ToolResult, *, is_repeated: bool) -> Message:
    if len(result.text) <= MAX_OUTPUT_CHARS:
        return without_images(result)
    first = " ".join(result.text[:MAX_OUTPUT_CHARS].split())[:80]
    what = "the same again later" if is_repeated else f"began with: {first}"
    lines = result.text.count("\n") + 1
    left_out = f"[{result.name}: {len(result.text):,} characters in {lines:,} lines left out; {what}]"
    return without_images(msgspec.structs.replace(result, text=left_out))


def _short_calls(message: Assistant) -> Iterator[AssistantPart]:
    for part in message.parts:
        if isinstance(part, ToolCall) and len(part.arguments) > MAX_ARGUMENT_CHARS:
            yield ToolCall(part.id, part.name, _short_arguments(part.arguments))
        else:
            yield part


def _short_arguments(arguments: str) -> str:
    """Still a JSON object, with its long texts cut."""
    try:
        values = _decode(arguments)
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        return "{}"
    return _encode({name: _short_value(value) for name, value in values.items()}).decode()


def _short_value(value: object) -> object:
    text = value if isinstance(value, str) else _encode(value).decode()
    if len(text) <= _KEPT_ARGUMENT_CHARS:
        return value
    return f"{text[:_KEPT_ARGUMENT_CHARS]}… [{len(text):,} characters]"
