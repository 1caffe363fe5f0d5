"""docs/reference/tools.md says what the tools say about themselves; `python -m` of this file writes it."""

import json
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import Any

import msgspec

from talaria.app.build import builtin_tools
from talaria.app.settings import Settings
from talaria.config.schema import Config
from talaria.core.clock import SystemClock
from talaria.core.ids import SessionId
from talaria.net.settings import WebSettings
from talaria.store.memory import MemoryStore
from talaria.tools.base import AfterCrash, Claim, Invocation, Scope, Tool
from talaria.tools.browser.browser import Browser
from talaria.tools.browser.browser_tools import browser_tools
from talaria.tools.registry import BUILTIN, OTHERS, toolset_of

FILE = Path(__file__).parents[2] / "docs" / "reference" / "tools.md"
INTRO = """# Tools

What the model can do, by toolset. `talaria tools list` shows the tools on your machine. Tools of
plugins are in the toolset that the plugin names, those of MCP servers in `mcp:NAME`. The browser
needs Chromium and the extra `browser` (`.venv/bin/pip install -e '.[browser]'`).

`talaria tools disable NAME…` turns tools or whole toolsets off, `talaria tools enable NAME…` turns
them on again. A name that a toolset and a tool share means the toolset, and `all` means everything.
A tool that is off is not shown to the model and does not run. A conversation keeps the list of
tools that it began with: what is turned off later stays on that list, and a call of it is refused.

This page is made from the tools themselves: `python -m tests.architecture.test_tools_reference`
writes it again.
"""
WIDTH = 100
EXAMPLES = {"path": "notes.txt", "url": "https://example.org/"}
"""Arguments that mean something to who looks at them; others may be any word."""
WORDS = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false", "null": "nothing"}
AFTER: dict[AfterCrash, str] = {
    "repeat": "it runs again",
    "keyed": "it runs again, under the same key",
    "once": "it does not run again by itself; the model is told that its effect is unknown",
}


def rendered(tools: Iterable[Tool]) -> str:
    by_toolset: dict[str, list[Tool]] = {name: [] for name in (*BUILTIN, OTHERS)}
    for one in tools:
        by_toolset.setdefault(toolset_of(one), []).append(one)
    return "\n".join([INTRO, *(_toolset(name, members) for name, members in by_toolset.items() if members)])


def _toolset(name: str, tools: Iterable[Tool]) -> str:
    return "\n".join([f"## {name}\n", *(_section(one) for one in tools)])


def _section(one: Tool) -> str:
    schema = msgspec.json.decode(one.spec.parameters)
    parameters = list(_rows(schema, schema.get("$defs", {})))
    head = ["| parameter | type | default | |", "|---|---|---|---|"] if parameters else ["It takes no parameters."]
    limit = "none of its own" if one.timeout_s is None else f"{one.timeout_s:.0f} seconds"
    facts = " ".join([*_claimed(one), f"After a crash {AFTER[one.after_crash]}.", f"Time limit: {limit}."])
    description = "\n\n".join(fill(part, WIDTH) for part in one.spec.description.split("\n\n"))
    return "\n".join([f"### `{one.spec.name}`\n", f"{description}\n", *head, *parameters, f"\n{fill(facts, WIDTH)}\n"])


def _rows(schema: dict[str, Any], definitions: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Those of the parts of a parameter stand below it."""
    required = schema.get("required", ())
    for name, given in schema.get("properties", {}).items():
        default = "required" if name in required else _default(given.get("default"))
        told = given.get("description", "").replace("|", "\\|")
        yield f"| `{prefix}{name}` | {_type(given, definitions)} | {default} | {told} |"
        for inner in _parts(given, definitions):
            yield from _rows(inner, definitions, f"{prefix}{name}[].")


def _default(value: object) -> str:
    return "none" if value in (None, "", []) else f"`{json.dumps(value)}`"


def _type(given: dict[str, Any], definitions: dict[str, Any]) -> str:
    if "$ref" in given:
        return _type(definitions[given["$ref"].rpartition("/")[2]], definitions)
    if "enum" in given:
        return ", ".join("nothing" if one is None else f"`{one}`" for one in given["enum"])
    if "anyOf" in given:
        return " or ".join(_type(one, definitions) for one in given["anyOf"])
    if given.get("type") == "array":
        return f"list of {_type(given['items'], definitions)}" if "items" in given else "list"
    return WORDS.get(given.get("type", ""), "object")


def _parts(given: dict[str, Any], definitions: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The objects that a list is made of."""
    for one in given.get("anyOf", (given,)):
        reference = one.get("items", {}).get("$ref")
        if reference:
            yield definitions[reference.rpartition("/")[2]]


def _claimed(one: Tool) -> list[str]:
    """What it says of its calls before they run."""
    invocations = list(_invocations(one))
    said = dict.fromkeys(sentence for invocation in invocations for sentence in _sentences(invocation.claim))
    asks = ["The person may be asked first."] if any(invocation.question for invocation in invocations) else []
    return [*(said or ["It reaches nothing outside of Talaria."]), *asks]


def _sentences(claim: Claim) -> Iterator[str]:
    """Whether there is a sandbox is for the machine to say."""
    if claim.reads:
        yield "It reads files."
    if claim.writes:
        yield "It changes files."
    if claim.command is not None:
        yield "It runs a command."
    if claim.hosts:
        yield "It reaches the host that it is given."
    if claim.sends:
        yield "It sends something to somebody outside, or acts there."
    elif claim.reveals:
        yield "What it is given reaches somebody outside."
    if claim.is_untrusted:
        yield "What it returns was written by strangers."


def _invocations(one: Tool) -> Iterator[Invocation]:
    schema = msgspec.json.decode(one.spec.parameters)
    required = schema.get("required", ())
    values = [_examples(name, schema["properties"][name]) for name in required]
    with TemporaryDirectory() as folder:
        scope = Scope(SessionId("s"), Path(folder), Path(folder) / "home" / "spill" / "s")
        for given in product(*values):
            yield one.prepare(json.dumps(dict(zip(required, given, strict=True))), scope)


def _examples(name: str, given: dict[str, Any]) -> list[Any]:
    if "enum" in given:
        return given["enum"]
    usual: dict[str, Any] = {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}
    return [usual.get(given.get("type", ""), EXAMPLES.get(name, "x"))]


def registry() -> Iterable[Tool]:
    """With the browser, whether there is one here or not."""
    clock = SystemClock()
    ours = builtin_tools(MemoryStore(clock), Settings(Path("home"), Config(), {}), clock)
    browsing = browser_tools(Browser(WebSettings(), clock))
    return (*(one for one in ours if toolset_of(one) != "browser"), *browsing)


def test_the_reference_tells_what_the_tools_are() -> None:
    assert FILE.read_text("utf-8") == rendered(registry()), (
        "`python -m tests.architecture.test_tools_reference` writes it"
    )


if __name__ == "__main__":
    FILE.write_text(rendered(registry()), "utf-8")
