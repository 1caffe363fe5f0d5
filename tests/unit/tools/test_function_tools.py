import json
import threading
from collections.abc import Callable
from typing import Annotated, Any, Literal, assert_type

import msgspec
import pytest

from talaria import tool
from talaria.core.errors import BadArguments
from talaria.core.ids import CallId
from talaria.tools.base import EXCLUSIVE, READS, Effect, Run, Scope, Tool
from talaria.tools.function import FunctionTool, path_effect


class Point(msgspec.Struct):
    x: int
    y: int = 0


def schema_of(made: FunctionTool) -> dict[str, Any]:
    return json.loads(bytes(made.spec.parameters))


async def run(made: FunctionTool, scope: Scope, **arguments: object) -> str:
    return str(await made.prepare(json.dumps(arguments), scope).run(Run(CallId("call_1"), scope)))


def test_name_and_description_come_from_the_function() -> None:
    @tool
    def greet(name: str) -> str:
        """Say hello.

        With feeling.
        """
        return f"Hello, {name}"

    assert (greet.spec.name, greet.spec.description) == ("greet", "Say hello.\n\nWith feeling.")
    assert greet("Ada") == "Hello, Ada"
    assert isinstance(greet, Tool)


def test_name_can_be_given() -> None:
    whisper: Callable[[str], str] = lambda text: text  # noqa: E731
    assert tool(whisper, name="echo").spec.name == "echo"


def test_type_checkers_know_what_the_decorator_makes(scope: Scope) -> None:
    @tool
    def bare() -> None: ...

    @tool(effect=READS)
    def told() -> None: ...

    assert_type(bare, FunctionTool)
    assert_type(told, FunctionTool)
    assert_type(tool(lambda: None, name="given"), FunctionTool)


@pytest.mark.parametrize("kind", ["reads", "writes"])
def test_effect_of_a_tool_with_a_path_is_what_the_path_names(scope: Scope, kind: Literal["reads", "writes"]) -> None:
    @tool(effect=path_effect(kind))
    def touch(path: str) -> None: ...

    assert touch.prepare('{"path": "a/../b"}', scope).effect == Effect(kind, (scope.cwd / "b",))


def test_signature_is_the_schema() -> None:
    @tool
    def everything(
        text: str,
        number: Annotated[int, "how many"],
        kind: Literal["a", "b"] = "a",
        maybe: str | None = None,
        names: list[str] = [],  # noqa: B006  (what a person writes)
        share: float = 0.5,
        is_on: bool = False,
    ) -> None: ...

    assert schema_of(everything) == {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "number": {"type": "integer", "description": "how many"},
            "kind": {"enum": ["a", "b"], "default": "a"},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "names": {"type": "array", "items": {"type": "string"}, "default": []},
            "share": {"type": "number", "default": 0.5},
            "is_on": {"type": "boolean", "default": False},
        },
        "required": ["text", "number"],
        "additionalProperties": False,
    }


def test_constraints_beside_a_description_are_kept() -> None:
    @tool
    def limited(count: Annotated[int, "how many", msgspec.Meta(ge=1)]) -> None: ...

    assert schema_of(limited)["properties"]["count"] == {"type": "integer", "minimum": 1, "description": "how many"}


async def test_nested_struct_stands_in_the_schema_and_arrives_as_one(scope: Scope) -> None:
    @tool
    def draw(points: list[Point]) -> str:
        return ",".join(f"{point.x}/{point.y}" for point in points)

    schema = schema_of(draw)
    assert schema["properties"]["points"]["items"] == {"$ref": "#/$defs/Point"}
    assert schema["$defs"]["Point"]["required"] == ["x"]
    assert await run(draw, scope, points=[{"x": 1}, {"x": 2, "y": 3}]) == "1/0,2/3"


async def test_run_is_hidden_from_the_model_and_handed_to_the_function(scope: Scope) -> None:
    @tool
    def where(run: Run, suffix: str = "!") -> str:
        return f"{run.key} in {run.scope.cwd}{suffix}"

    assert list(schema_of(where)["properties"]) == ["suffix"]
    assert await run(where, scope) == f"session-1:call_1 in {scope.cwd}!"


async def test_plain_function_runs_in_a_thread_and_a_coroutine_in_the_loop(scope: Scope) -> None:
    @tool
    def plain() -> int:
        return threading.get_ident()

    @tool
    async def woven() -> int:
        return threading.get_ident()

    assert await run(woven, scope) == str(threading.get_ident())
    assert await run(plain, scope) != str(threading.get_ident())


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ("as is", "as is"),
        (None, ""),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (Point(1, 2), '{"x":1,"y":2}'),
        (5, "5"),
        (1j, '"1j"'),
    ],
)
async def test_what_a_function_returns_becomes_text(scope: Scope, returned: object, text: str) -> None:
    def give() -> object:
        return returned

    assert await run(tool(give), scope) == text


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ('{"b": 1}', "`a`"),
        ('{"a": "1"}', "`$.a`"),
        ('{"a": 1, "b": 1.5}', "`$.b`"),
        ('{"a": 1, "c": 2}', "`c`"),
        ('{"a": 1, "point": {"x": "one"}}', "`$.point.x`"),
        ('{"a": 1, "kind": "z"}', "`$.kind`"),
        ('{"a": true}', "`$.a`"),
    ],
)
def test_wrong_argument_is_told_by_name(scope: Scope, arguments: str, names: str) -> None:
    @tool
    def strict(a: int, b: int = 0, point: Point | None = None, kind: Literal["x", "y"] = "x") -> None: ...

    with pytest.raises(BadArguments) as told:
        strict.prepare(arguments, scope)

    assert str(told.value).startswith("The arguments of strict are invalid: ")
    assert names in str(told.value)


@pytest.mark.parametrize("arguments", ["{", "[]", "null", '{"a": 1', "\ud800", '{"a": "\\ud800"}', "[" * 100_000])
def test_arguments_that_are_no_json_object_are_refused(scope: Scope, arguments: str) -> None:
    @tool
    def one(a: str) -> None: ...

    with pytest.raises(BadArguments, match="The arguments of one are invalid"):
        one.prepare(arguments, scope)


def test_no_arguments_at_all_mean_an_empty_object(scope: Scope) -> None:
    @tool
    def nothing(a: int = 1) -> None: ...

    nothing.prepare("", scope)
    nothing.prepare(" {} ", scope)


def test_defaults_are_the_careful_ones(scope: Scope) -> None:
    @tool
    def act() -> None: ...

    assert act.after_crash == "once"
    assert act.prepare("", scope).effect == EXCLUSIVE
    assert act.prepare("", scope).question is None


def test_effect_and_question_are_told_from_the_arguments(scope: Scope) -> None:
    def effect(arguments: Any, scope: Scope) -> Effect:
        return Effect("writes", (scope.resolve(arguments.path),))

    @tool(after_crash="keyed", effect=effect, question=lambda arguments: f"Write {arguments.path}?")
    def write(path: str) -> None: ...

    invocation = write.prepare('{"path": "a"}', scope)
    assert write.after_crash == "keyed"
    assert invocation.effect == Effect("writes", (scope.cwd / "a",))
    assert invocation.question == "Write a?"


def test_fixed_effect_holds_for_every_call(scope: Scope) -> None:
    @tool(effect=READS, after_crash="repeat")
    def look() -> None: ...

    assert look.prepare("", scope).effect == READS


@pytest.mark.parametrize("kind", ["args", "kwargs"])
def test_function_whose_parameters_cannot_be_named_is_refused(kind: str) -> None:
    def positional(*args: str) -> None: ...
    def named(**kwargs: str) -> None: ...

    with pytest.raises(TypeError, match=f"{kind} of "):
        tool(positional if kind == "args" else named)
