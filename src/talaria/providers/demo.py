"""The stand-in when no model is available: makes real tool calls from simple phrases, and says what
it is."""

import re
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path

import msgspec

from talaria.core.events import TextDelta
from talaria.core.ids import new_call_id
from talaria.core.messages import Assistant, Text, ToolCall, ToolResult, Usage, User
from talaria.core.secret import Secret
from talaria.core.text import fence
from talaria.providers.base import Delta, Endpoint, ModelRequest

ENDPOINT = Endpoint(provider="demo", model="demo", base_url="", wire="openai_chat")

_INTRODUCTION = """\
I am the demo model: a script, not an AI. I understand a few plain phrases and make real tool calls from them:

- list files
- read README.md
- run uname -a
- search for TODO in src
- write hello to notes.txt
- replace hello with goodbye in notes.txt
- use TOOL {"argument": …}

To talk to a real model, do one of these and start again:

- run `PROGRAM setup`, which asks for what it needs
- put OPENROUTER_API_KEY=… (or ANTHROPIC_API_KEY, OPENAI_API_KEY, GEMINI_API_KEY, …) into SECRETS_FILE
- start Ollama, LM Studio, llama.cpp or vLLM on this machine; it is found automatically"""

Arguments = dict[str, str | bool]
_PHRASES: tuple[tuple[str, str, Callable[[re.Match[str]], Arguments]], ...] = (
    (r"(?:run|\$|!)\s*(.+)", "terminal", lambda m: {"command": m[1]}),
    (
        r"list (?:the )?files(?: in (\S+))?",
        "search_files",
        lambda m: {"pattern": "*", "target": "names", "path": m[1] or "."},
    ),
    (r"(?:read|show|open) (?:the file )?(\S+)", "read_file", lambda m: {"path": m[1]}),
    (r"search for (.+?)(?: in (\S+))?", "search_files", lambda m: {"pattern": re.escape(m[1]), "path": m[2] or "."}),
    (r"write (.+) to (\S+)", "write_file", lambda m: {"path": m[2], "content": m[1] + "\n"}),
    (r"replace (.+) with (.+) in (\S+)", "patch", lambda m: {"path": m[3], "old": m[1], "new": m[2]}),
)


class DemoProvider:
    endpoint = ENDPOINT

    def __init__(self, secrets_file: Path, program: str = "talaria") -> None:
        """`secrets_file` is where a key would go; `program` is what people type to start us."""
        self._introduction = _INTRODUCTION.replace("SECRETS_FILE", str(secrets_file)).replace("PROGRAM", program)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Assistant]:
        answer = _answer(request, self._introduction)
        for word in re.findall(r"\S+\s*|\s+", answer.text) if request.is_streaming else ():
            yield TextDelta(word)
        yield answer

    async def models(self, key: Secret) -> Sequence[str]:  # noqa: ARG002
        return [ENDPOINT.model]

    async def reconnect(self) -> None:
        """There is nothing to connect to."""


def _answer(request: ModelRequest, introduction: str) -> Assistant:
    results = _latest_results(request)
    if results:
        said = "\n\n".join(f"{result.name} says:\n{fence(result.text)}" for result in results)
        return _say(f"{said}\n\n(demo model: this is the tool's own output)")
    said = (one for one in reversed(list(request.history)) if isinstance(one, User) and one.author != "host")
    asked = next((message.text for message in said), "")
    call = _call(asked) if request.may_call else None
    if call is None:
        return _say(introduction)
    return Assistant((call,), "calls", _usage(asked), ENDPOINT.origin)


def _latest_results(request: ModelRequest) -> Sequence[ToolResult]:
    results: list[ToolResult] = []
    for message in reversed(list(request.history)):
        if isinstance(message, User) and message.author == "host":
            continue
        if not isinstance(message, ToolResult):
            break
        results.insert(0, message)
    return results


def _call(asked: str) -> ToolCall | None:
    used = re.fullmatch(r"use (\w+)\s*(.*)", asked.strip(), re.DOTALL)
    if used is not None:
        return ToolCall(new_call_id(), used[1], used[2] or "{}")
    # Without the full stop of a sentence, but with the dots of a path such as `..`.
    phrase = re.sub(r"(?<=\w)\.$", "", asked.strip())
    for pattern, name, arguments in _PHRASES:
        found = re.fullmatch(pattern, phrase, re.IGNORECASE | re.DOTALL)
        if found is not None:
            return ToolCall(new_call_id(), name, msgspec.json.encode(arguments(found)).decode())
    return None


def _say(text: str) -> Assistant:
    return Assistant((Text(text),), "end", _usage(text), ENDPOINT.origin)


def _usage(text: str) -> Usage:
    return Usage(output=len(text.split()))
