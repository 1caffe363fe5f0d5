"""docs/reference/stream-json.md is what programs may rely on: it names every field, and a real run has no other."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NewType, Union, get_args, get_origin

import msgspec
import pytest

from talaria.cli.answer_view import SCHEMA
from talaria.core.events import Event
from talaria.core.messages import Usage
from talaria.testing.servers.model_server import ModelServer
from talaria.testing.servers.scripted_replies import Failure, Faults, Reply, call

Talaria = Callable[..., subprocess.CompletedProcess[str]]

FILE = Path(__file__).parents[2] / "docs" / "reference" / "stream-json.md"
KINDS = {str: "text", int: "whole number", float: "number", bool: "true or false", NoneType: "null"}
OPTIONAL = " (may be left out)"

Fields = Mapping[str, str]


def told() -> Mapping[str, Fields]:
    """Each section of the page: its fields, and what they hold."""
    _, *parts = re.split(r"^### `(\w+)`.*$", FILE.read_text("utf-8"), flags=re.MULTILINE)
    rows = [re.findall(r"^\| `(\w+)` \| (.*?) \|", part, re.MULTILINE) for part in parts[1::2]]
    return {name: dict(found) for name, found in zip(parts[::2], rows, strict=True)}


def kind(type: Any) -> str:
    """As the page tells it."""
    if isinstance(type, NewType):
        return kind(type.__supertype__)
    if type in KINDS:
        return KINDS[type]
    match get_origin(type):
        case origin if origin is Literal:
            return ", ".join(f"`{one}`" for one in get_args(type))
        case origin if origin in (Union, UnionType):
            return " or ".join(kind(one) for one in get_args(type))
        case origin if origin is tuple:
            return f"list of {kind(get_args(type)[0])}"
        case _:
            return f"`{type.__name__}`"


def fields(struct: type[msgspec.Struct]) -> Fields:
    config = struct.__struct_config__
    own = {
        field.encode_name: kind(field.type) + (OPTIONAL if config.omit_defaults and not field.required else "")
        for field in msgspec.structs.fields(struct)
    }
    return {"type": f"`{config.tag}`", **own} if config.tag else own


def inside(struct: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for field in msgspec.structs.fields(struct):
        for one in structs(field.type):
            yield one
            yield from inside(one)


def structs(type: Any) -> Iterator[Any]:
    if get_origin(type) is None:
        if isinstance(type, msgspec.StructMeta):
            yield type
        return
    for one in get_args(type):
        yield from structs(one)


EVENTS: Mapping[str, type[msgspec.Struct]] = {str(one.__struct_config__.tag): one for one in get_args(Event)}


def test_every_event_and_all_that_is_in_it_is_told_and_nothing_else() -> None:
    there = {tag: fields(one) for tag, one in EVENTS.items()}
    there["turn_began"] = {**there["turn_began"], "schema": "whole number"}
    there |= {one.__name__: fields(one) for event in EVENTS.values() for one in inside(event)}
    page = told()
    assert {name: page[name] for name in page.keys() - {"error", "Error", "answer", "Refusal"}} == there
    assert f"version {SCHEMA}" in FILE.read_text("utf-8")


def check(document: Any, section: str) -> None:
    """It has the fields of its section, and so has all that is in it."""
    page = told()
    known = page[section]
    assert document.keys() <= known.keys(), section
    assert {name for name, holds in known.items() if not holds.endswith(OPTIONAL)} <= document.keys(), section
    for name, value in document.items():
        named = [one for one in re.findall(r"`(\w+)`", known[name]) if one in page and name != "type"]
        for inner in value if isinstance(value, list) else [value]:  # pyright: ignore[reportUnknownVariableType]
            if named and inner is not None:
                check(inner, next(one for one in named if page[one].get("type") in (None, "text", tag(inner))))


def tag(document: Any) -> str:
    return f"`{document.get('type')}`"


def lines(ended: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_every_line_of_a_real_run_is_as_told(talaria: Talaria, server: ModelServer) -> None:
    server.say(
        Reply("Let me", faults=Faults(cut_at=200)),
        Reply("Let me see.", thinking="A file, then.", calls=(call("terminal", command="echo there"),)),
        "It is there.",
    )
    found = lines(talaria("-q", "is it there?", "--output-format", "stream-json", "--yolo"))
    for line in found:
        check(line, line["type"])
    assert (found[0]["type"], found[0]["schema"], found[-1]["type"]) == ("turn_began", SCHEMA, "turn_done")
    kinds = {line["type"] for line in found}
    assert kinds >= {"text", "thinking", "restarted", "tool_began", "tool_output", "tool_ended", "round"}


def test_lines_of_several_turns_each_begin_with_the_version(talaria: Talaria, server: ModelServer) -> None:
    server.say("One.", "Two.")
    found = lines(talaria("--output-format", "stream-json", input="first\nsecond\n"))
    assert [line["schema"] for line in found if line["type"] == "turn_began"] == [SCHEMA, SCHEMA]


@pytest.mark.parametrize("status", [401, 400])
def test_a_turn_that_fails_ends_with_a_line_that_says_so(talaria: Talaria, server: ModelServer, status: int) -> None:
    server.say(Failure(status))
    ended = talaria("-q", "x", "--output-format", "stream-json")
    for line in lines(ended):
        check(line, line["type"])
    last = lines(ended)[-1]
    assert (ended.returncode, last["type"], last["outcome"]) == (3, "turn_done", "failed")
    assert last["error"] in ended.stderr


def test_what_fails_before_a_turn_is_one_line_of_its_own(talaria: Talaria) -> None:
    ended = talaria("-q", "x", "-m", "groq:m", "--output-format", "stream-json")
    (line,) = lines(ended)
    check(line, "error")
    assert (line["type"], line["ok"], line["exit_code"]) == ("error", False, ended.returncode)
    assert line["error"]["message"] in ended.stderr


def test_one_document_is_as_told(talaria: Talaria, server: ModelServer) -> None:
    server.say("Here.", Failure(401))
    done, failed = (json.loads(talaria("-q", "x", "--output-format", "json").stdout) for _ in range(2))
    for document in (done, failed):
        assert document["usage"].keys() == {*Usage.__struct_fields__, "total"}
        document["usage"] = {}
        check(document, "answer")
    assert ("error" in done, "error" in failed) == (False, True)
