"""docs/reference/http-api.md names every operation, parameter and error code. `python -m` of this file writes the
operations."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from openai.types.responses.response_create_params import ResponseCreateParamsBase

import talaria
from talaria.api.api_server import Operation
from talaria.api.api_tokens import SCOPES
from talaria.api.chat_completions import ChatRequest
from talaria.api.operations import OPERATIONS
from talaria.api.responses import ResponsesRequest

FILE = Path(__file__).parents[2] / "docs" / "reference" / "http-api.md"
MARK = "<!-- From here on: python -m tests.architecture.test_http_api_reference -->\n"
API = Path(talaria.__file__).parent / "api"
TEXT, _, OPERATIONS_TOLD = FILE.read_text("utf-8").partition(MARK)
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))


def reference() -> str:
    parts = ["\n## Operations\n\n`?` is a parameter of the query.\n\n| | scope | |", "|---|---|---|"]
    for one in OPERATIONS:
        parts += [f"| {left} | {middle} | {right} |" for left, middle, right in rows(one)]
    return "\n".join([*parts, ""])


def rows(one: Operation) -> Iterator[tuple[str, str, str]]:
    summary = f"{one.summary}. {one.description}".strip()
    streamed = "" if not one.is_stream else " Events" if one.gives is None else " Also as events"
    yield f"**`{one.method} {one.path}`**", f"`{one.scope}`", f"{summary}{f'{streamed}.' if streamed else ''}"
    if one.takes is not None and one.takes not in (ChatRequest, ResponsesRequest):
        fields = msgspec.structs.fields(one.takes)
        yield "body", "", ", ".join(f"`{field.name}`{'' if field.required else ' (optional)'}" for field in fields)
    for name, about in one.queries.items():
        yield f"`?{name}`", "", about


def test_the_reference_names_every_operation() -> None:
    assert reference() == OPERATIONS_TOLD, "`python -m tests.architecture.test_http_api_reference` writes it"


def test_the_reference_names_every_scope() -> None:
    told = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", SECTIONS["Tokens"], re.MULTILINE))
    assert {name: about.replace("`", "") for name, about in told.items()} == SCOPES


@pytest.mark.parametrize(
    ("path", "taken", "known"),
    [
        ("/v1/chat/completions", ChatRequest, CompletionCreateParamsBase),
        ("/v1/responses", ResponsesRequest, ResponseCreateParamsBase),
    ],
)
def test_the_reference_names_every_parameter(path: str, taken: type[msgspec.Struct], known: Any) -> None:
    section = SECTIONS["Parameters"]
    row = re.search(rf"^\| `POST {path}` \| (.+) \|$", section, re.MULTILINE)
    ignored = re.search(rf"Of\s`{path}`:\s(.+?)\.\s", section, re.DOTALL)
    assert row is not None
    assert ignored is not None
    understood, nothing = names(row[1]), names(ignored[1])
    assert understood == {*taken.__struct_fields__}
    assert nothing <= {*known.__annotations__} - understood


def names(text: str) -> set[str]:
    return {*re.findall(r"`(\w+)`", text)}


def test_the_reference_names_every_error_code() -> None:
    told = names(SECTIONS["Errors"]) - {"param", "code", "type", "message"}
    given = {code for file in API.glob("*.py") for code in codes(ast.parse(file.read_text("utf-8")))}
    families = {one for one in given if one.startswith("_") or one.endswith("_")}
    assert given - families <= told
    assert {
        one for one in told - given if not any(one.startswith(end) or one.endswith(end) for end in families)
    } == set()


def codes(tree: ast.AST) -> Iterator[str]:
    """Constants, and what is constant of those that are put together."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ApiError":
            match node.args[2] if len(node.args) > 2 else None:
                case ast.Constant(str(code)):
                    yield code
                case ast.JoinedStr(values):
                    yield from (str(one.value) for one in values if isinstance(one, ast.Constant))
                case _:
                    pass


def test_the_reference_names_the_events_of_a_response() -> None:
    source = (API / "responses.py").read_text("utf-8")
    given = {*re.findall(r'"(response\.[\w.]+)"', source)} | {
        f"response.{kind}{end}"
        for kind, end in (
            *(("mcp_call.", end) for end in ("completed", "failed")),
            *(("", end) for end in ("completed", "incomplete", "failed")),
        )
    }
    assert {*re.findall(r"`(response\.[\w.]+)`", SECTIONS["Streams"])} == given


if __name__ == "__main__":
    FILE.write_text(TEXT + MARK + reference(), "utf-8")
