"""Tools from typed functions: the signature is the schema, the docstring the description.

    @tool(after_crash="repeat", effect=READS)
    async def add(a: int, b: Annotated[int, "the second number"] = 1) -> str:
        '''Add two numbers.'''

A parameter annotated `Run` receives the context of the execution and is hidden from the model.

`path_tool` resolves the argument `path` once, before anybody is asked; `file_change_tool` shows the person the change
as it would be made now. `SchemaTool` is for plugins: a JSON schema and a handler that takes a dictionary.
"""

import inspect
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, Unpack, cast, get_args, get_origin, get_type_hints, overload

import msgspec

from talaria.core.aio import in_thread
from talaria.core.messages import Outcome, ToolSpec
from talaria.core.text import as_text
from talaria.tools.base import (
    EXCLUSIVE,
    NOTHING,
    UNKNOWN,
    AfterCrash,
    Claim,
    Effect,
    RichResult,
    Run,
    Scope,
    Tool,
    decode_arguments,
)
from talaria.tools.person import ARGUMENTS, Proposal, pretty_json

DEFAULT_TIMEOUT_S = 420.0

EffectOf = Effect | Callable[[Any, Scope], Effect]
"""Fixed, or computed from the arguments (an object with one attribute per parameter)."""
ClaimOf = Claim | Callable[[Any, Scope], Claim]
QuestionOf = Callable[[Any], str | Proposal | None]


def path_effect(kind: Literal["reads", "writes"]) -> Callable[[Any, Scope], Effect]:
    """The effect of a tool that touches what its argument `path` names."""
    return lambda arguments, scope: Effect(kind, (scope.resolve(arguments.path),))


class FunctionTool(msgspec.Struct, frozen=True):
    """The defaults are the careful ones: it runs alone, never again after a crash, and may pass its arguments on."""

    function: Callable[..., Any]
    spec: ToolSpec
    arguments: type[msgspec.Struct]
    run_parameter: str | None
    after_crash: AfterCrash = "once"
    effect: EffectOf = EXCLUSIVE
    question: QuestionOf | None = None
    timeout_s: float | None = DEFAULT_TIMEOUT_S
    claim: ClaimOf = UNKNOWN

    def prepare(self, arguments: str, scope: Scope) -> "FunctionInvocation":
        given = decode_arguments(arguments, self.spec.name, self.arguments)
        effect = self.effect if isinstance(self.effect, Effect) else self.effect(given, scope)
        claim = self.claim if isinstance(self.claim, Claim) else self.claim(given, scope)
        return FunctionInvocation(self, given, effect, self.question(given) if self.question else None, claim)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.function(*args, **kwargs)


class FunctionInvocation(msgspec.Struct, frozen=True):
    tool: FunctionTool
    arguments: msgspec.Struct
    effect: Effect
    question: str | Proposal | None
    claim: Claim = NOTHING

    async def run(self, run: Run) -> str | RichResult:
        named = {name: getattr(self.arguments, name) for name in self.arguments.__struct_fields__}
        if self.tool.run_parameter is not None:
            named[self.tool.run_parameter] = run
        if inspect.iscoroutinefunction(self.tool.function):
            returned: Awaitable[object] = self.tool.function(**named)
        else:
            returned = in_thread(lambda: self.tool.function(**named))
        result = await returned
        return result if isinstance(result, RichResult) else _as_text(result)


class ToolOptions(TypedDict, total=False):
    """The optional fields of `FunctionTool`."""

    after_crash: AfterCrash
    effect: EffectOf
    question: QuestionOf
    timeout_s: float | None
    claim: ClaimOf


@overload
def tool(
    *, name: str | None = None, **options: Unpack[ToolOptions]
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
@overload
def tool(function: Callable[..., Any], *, name: str | None = None, **options: Unpack[ToolOptions]) -> FunctionTool: ...
def tool(
    function: Callable[..., Any] | None = None, *, name: str | None = None, **options: Unpack[ToolOptions]
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Make a tool of a typed function, sync (it runs in a thread) or async. Use bare or with arguments."""

    def make(function: Callable[..., Any]) -> FunctionTool:
        arguments, run_parameter = _make_arguments_struct(function)
        described: dict[str, Any] = msgspec.json.schema(arguments)
        definitions: dict[str, dict[str, Any]] = described["$defs"]
        schema = definitions.pop(described["$ref"].rpartition("/")[2])
        schema.pop("title", None)
        if definitions:
            schema["$defs"] = definitions
        about = inspect.cleandoc(function.__doc__ or "")
        spec = ToolSpec(name or function.__name__, about, msgspec.Raw(msgspec.json.encode(schema)))
        return FunctionTool(function, spec, arguments, run_parameter, **options)

    return make if function is None else make(function)


def _make_arguments_struct(function: Callable[..., Any]) -> tuple[type[msgspec.Struct], str | None]:
    """A struct with one field per parameter, and the name of the parameter that takes the `Run`."""
    hints = get_type_hints(function, include_extras=True)
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    run_parameter = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"{parameter.name} of {function.__name__} cannot be passed by name.")
        hint = hints.get(parameter.name, str)
        if hint is Run:
            run_parameter = parameter.name
        elif parameter.default is parameter.empty:
            fields.append((parameter.name, _describe_parameter(hint)))
        else:
            fields.append((parameter.name, _describe_parameter(hint), parameter.default))
    struct = msgspec.defstruct(function.__name__, fields, frozen=True, forbid_unknown_fields=True, kw_only=True)
    return struct, run_parameter


def _describe_parameter(hint: Any) -> Any:
    """Turns the text of `Annotated[T, "text"]` into a description in the schema."""
    if get_origin(hint) is not Annotated:
        return hint
    base, *notes = get_args(hint)
    metas = [msgspec.Meta(description=note) if isinstance(note, str) else note for note in notes]
    for meta in metas:
        base = Annotated[base, meta]
    return base


def _as_text(returned: object) -> str:
    if isinstance(returned, str):
        return returned
    return "" if returned is None else msgspec.json.encode(returned, enc_hook=str).decode()


MAX_OUTCOME_CHARS = 300
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""What every endpoint accepts as the name of a tool. With any other name the whole request is refused."""

Handler = Callable[[dict[str, Any], Run], Awaitable[str]]


class BadSchema(Exception):
    """`str()` of it says what is wrong."""


def parse_schema(schema: object) -> ToolSpec:
    """From `{"name", "description", "parameters"}`, also where that is wrapped as a function. Raises `BadSchema`."""
    given = schema.get("function", schema) if isinstance(schema, Mapping) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(given, Mapping):
        raise BadSchema("a tool's schema is not a mapping")
    fields = cast("Mapping[str, Any]", given)
    name = fields.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadSchema(f"a tool is called {name!r}; endpoints take up to 64 letters, digits, - and _")
    parameters: Any = fields.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping) or cast("Mapping[str, Any]", parameters).get("type", "object") != "object":
        raise BadSchema(f"the parameters of {name} are not a JSON schema of an object")
    try:
        encoded = msgspec.json.encode({"type": "object", **parameters})
        return ToolSpec(name, as_text(fields.get("description") or ""), msgspec.Raw(encoded))
    except (TypeError, msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as fault:
        raise BadSchema(f"the parameters of {name} are not JSON: {fault}") from fault


class SchemaTool(msgspec.Struct, frozen=True):
    spec: ToolSpec
    handler: Handler
    after_crash: AfterCrash = "once"
    effect: Effect = EXCLUSIVE
    timeout_s: float | None = DEFAULT_TIMEOUT_S
    claim: Claim = UNKNOWN
    toolset: str = ""

    def prepare(self, arguments: str, scope: Scope) -> "SchemaInvocation":  # noqa: ARG002
        given = decode_arguments(arguments, self.spec.name, dict[str, Any])
        return SchemaInvocation(self.handler, given, self.effect, self.claim)


class SchemaInvocation(msgspec.Struct, frozen=True):
    handler: Handler
    arguments: dict[str, Any]
    effect: Effect
    claim: Claim
    question: str | None = None

    async def run(self, run: Run) -> str | RichResult:
        text = await self.handler(self.arguments, run)
        if text.startswith('{"error":'):  # the way in which plugins report that something went wrong
            with suppress(msgspec.MsgspecError):
                failure = msgspec.json.decode(text, type=_Failure)
                error = failure.error.partition("\n")[0][:MAX_OUTCOME_CHARS]
                return RichResult(text, outcome=Outcome("failed", error)) if error else text
        return text


class _Failure(msgspec.Struct):
    error: str


def make_schema_tools(
    schemas: object, handler: Callable[[str], Handler], toolset: str, claim: Claim = UNKNOWN
) -> tuple[list[Tool], list[str]]:
    """One tool per schema, run by `handler(name)`; and what is wrong with the schemas that are left out."""
    tools: dict[str, Tool] = {}
    problems: list[str] = []
    for schema in cast("list[object]", schemas) if isinstance(schemas, list) else ():
        try:
            spec = parse_schema(schema)
        except BadSchema as problem:
            problems.append(str(problem))
            continue
        tools.setdefault(spec.name, SchemaTool(spec, handler(spec.name), claim=claim, toolset=toolset))
    return list(tools.values()), problems


def encode_result(returned: object) -> str:
    """A handler returns JSON text; anything else is encoded."""
    return as_text(returned) if isinstance(returned, str) else _as_text(returned)


ContentOf = Callable[[Any], tuple[str | None, str]]
"""From the arguments: everything that would be written, and the noun for it, as in `Proposal`."""


class PathTool(FunctionTool, frozen=True, kw_only=True):
    kind: Literal["reads", "writes"]
    verb: str
    """What it does to a file, for a question."""
    content: ContentOf

    def prepare(self, arguments: str, scope: Scope) -> FunctionInvocation:
        given = super().prepare(arguments, scope)
        path = scope.resolve(getattr(given.arguments, "path"))  # noqa: B009  (its type is made from the function)
        if self.kind == "writes":
            claim = Claim(writes=(path,))
        else:
            is_untrusted = is_outside(path, scope)
            folder = path if is_untrusted and os.path.isdir(path) else path.parent  # noqa: PTH112  (does not raise)
            claim = Claim(reads=(path,), is_untrusted=is_untrusted, folder=folder)
        return msgspec.structs.replace(
            given,
            arguments=msgspec.structs.replace(given.arguments, path=str(path)),
            effect=Effect(self.kind, (path,)),
            claim=claim,
            question=Proposal(f"{self.verb} {path}?", *self.content(given.arguments)),
        )


def _show_other_arguments(arguments: Any) -> tuple[str | None, str]:
    """The arguments besides the path that are not at their defaults."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(arguments)}
    given = msgspec.structs.asdict(arguments).items()
    others = {name: value for name, value in given if name != "path" and value != defaults[name]}
    return (pretty_json(others), ARGUMENTS) if others else (None, "")


def path_tool(
    kind: Literal["reads", "writes"], verb: str, content: ContentOf = _show_other_arguments
) -> Callable[[FunctionTool], PathTool]:
    return lambda function: PathTool(**msgspec.structs.asdict(function), kind=kind, verb=verb, content=content)


class ChangePlan(msgspec.Struct, frozen=True):
    """A change of a file, as it would be made now."""

    proposal: Proposal
    expected_fingerprint: str | None
    """As in `Run`; None: the file cannot be read."""


PlanOf = Callable[[Any, Scope], ChangePlan]
"""From the arguments of a call, with the path resolved."""


class FileChangeTool(msgspec.Struct, frozen=True):
    """Changes one file. A person who is asked sees the change to the file as it is now, and agrees to exactly that."""

    tool: PathTool
    plan: PlanOf

    @property
    def spec(self) -> ToolSpec:
        return self.tool.spec

    @property
    def after_crash(self) -> AfterCrash:
        return self.tool.after_crash

    @property
    def timeout_s(self) -> float | None:
        return self.tool.timeout_s

    def prepare(self, arguments: str, scope: Scope) -> "FileChangeInvocation":
        return FileChangeInvocation(self.tool.prepare(arguments, scope), self.plan, scope)


class FileChangeInvocation:
    def __init__(self, given: FunctionInvocation, plan: PlanOf, scope: Scope) -> None:
        self._given = given
        self._plan = plan
        self._scope = scope
        self._expects: str | None = None
        """From the plan that a person saw last."""

    @property
    def effect(self) -> Effect:
        return self._given.effect

    @property
    def claim(self) -> Claim:
        return self._given.claim

    @property
    def question(self) -> Proposal:
        plan = self._plan(self._given.arguments, self._scope)
        self._expects = plan.expected_fingerprint
        return plan.proposal

    async def run(self, run: Run) -> str | RichResult:
        return await self._given.run(msgspec.structs.replace(run, expected_fingerprint=self._expects))


def file_change_tool(plan: PlanOf) -> Callable[[PathTool], FileChangeTool]:
    return lambda tool: FileChangeTool(tool, plan)


def is_outside(path: Path, scope: Scope) -> bool:
    """`path` is resolved, so a link that leads out of the project counts as outside."""
    return not path.is_relative_to(scope.cwd.resolve())


def project_name(path: Path, scope: Scope) -> str:
    """For people: relative to the project, or the whole path if it is outside."""
    return str(path if is_outside(path, scope) else path.relative_to(scope.cwd.resolve()))
