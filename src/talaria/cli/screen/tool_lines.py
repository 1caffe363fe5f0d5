"""A tool call in one line: what it is about, how it went, how long it took."""

import json
from typing import Any, cast

import msgspec

from talaria.cli.checklist import TOOL, read_steps, summarise
from talaria.cli.safe import visible
from talaria.cli.screen.painting import BOLD, DIM, GREEN, RED, YELLOW, checklist, diff, styled
from talaria.cli.screen.width import cut, width
from talaria.model.messages import ToolResult

_TELLING = ("command", "path", "query", "url", "pattern", "code", "question", "action", "name")
MOST_DIFF_LINES = 24
MOST_DETAIL_LINES = 200


class Call(msgspec.Struct, frozen=True):
    """A call that was made."""

    name: str
    arguments: str
    result: ToolResult | None = None
    seconds: float = 0.0

    def line(self, columns: int, sign: str, colour: str, outcome: str = "") -> str:
        """While it runs, or when it has ended: with how long it took, or what became of it instead."""
        took = f"  {self.seconds:.1f} s" if self.result else ""
        end = f"  {outcome}" if outcome else took
        name = cut(visible(self.name), max(1, columns - width(f"  {sign} {end}")))
        about = cut(about_what(self.arguments), max(0, columns - width(f"  {sign} {name}  {end}")))
        told = f"  {styled(about, DIM)}" if about else ""
        return f"  {styled(sign, colour)} {styled(name, BOLD)}{told}{styled(end, colour if outcome else DIM)}"

    def ended(self, columns: int) -> str:
        """With what went wrong, or what changed in a file. Without a result it was stopped."""
        result = self.result
        if result is None:
            return self.line(columns, "✗", YELLOW, "stopped")
        if result.is_error:
            why = next((line for line in result.text.split("\n") if line.strip()), "")
            return f"{self.line(columns, '✗', RED)}\n{styled(cut(f'    {visible(why)}', columns), YELLOW)}"
        if self.name == TOOL and (steps := read_steps(result.text)):
            line = msgspec.structs.replace(self, arguments=summarise(steps)).line(columns, "✓", GREEN)
            return "\n".join([line, *(f"    {row}" for row in checklist(result.text, columns - 4).split("\n"))])
        line = self.line(columns, "✓", GREEN)
        changes = changed(result.text)
        return f"{line}\n{_shortened(changes, columns)}" if changes else line

    def details(self) -> str:
        """All of it, but for what has no end."""
        lines = [styled(f"● {visible(self.name)}", BOLD), *_indented(self.arguments)]
        if self.result is not None:
            lines += [styled("  ─", DIM), *_indented(self.result.text)]
        else:
            lines += [styled("  ─ stopped", DIM)]
        return "\n".join(lines)


def about_what(arguments: str) -> str:
    """The one argument that tells most, on one line."""
    try:
        given: Any = json.loads(arguments)
    except ValueError:
        return _flat(arguments)
    if not isinstance(given, dict):
        return _flat(arguments)
    named = cast("dict[str, Any]", given)
    telling = [named[name] for name in _TELLING if isinstance(named.get(name), str)]
    if telling:
        return _flat(str(telling[0]))
    return _flat(", ".join(f"{name}={_told(value)}" for name, value in named.items()))


def _told(value: Any) -> str:
    """A list of things is how many they are; else as JSON, but for the quotes of a text."""
    if isinstance(value, list):
        count = len(cast("list[Any]", value))
        return f"{count} item{'' if count == 1 else 's'}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def changed(text: str) -> str:
    """The diff at the end of what a tool says; empty if there is none."""
    lines = text.split("\n")
    for place, line in enumerate(lines[:-1]):
        if line.startswith("--- ") and lines[place + 1].startswith("+++ "):
            return "\n".join(lines[place + 2 :])
    return ""


def _shortened(changes: str, columns: int) -> str:
    lines = changes.rstrip("\n").split("\n")
    left = len(lines) - MOST_DIFF_LINES
    more = [styled(f"    … {left} more lines: Ctrl-O", DIM)] if left > 0 else []
    return "\n".join(
        [*(f"    {line}" for line in diff("\n".join(lines[:MOST_DIFF_LINES]), columns - 4).split("\n")), *more]
    )


def _indented(text: str) -> list[str]:
    lines = visible(text).split("\n")
    left = len(lines) - MOST_DETAIL_LINES
    return [f"    {line}" for line in lines[:MOST_DETAIL_LINES]] + ([f"    … {left} more lines"] if left > 0 else [])


def _flat(text: str) -> str:
    return visible(" ".join(text.split()))
