"""Tools whose argument `path` is resolved once, before anybody is asked: the function gets what it led to then."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from talaria.core.messages import ToolSpec
from talaria.tools.base import AfterCrash, Claim, Effect, Run, Scope, Shown
from talaria.tools.function import FunctionInvocation, FunctionTool
from talaria.tools.person import ARGUMENTS, Proposal, pretty_json

ContentOf = Callable[[Any], tuple[str | None, str]]
"""From the arguments: all that would be written, and what that is, as in `Proposal`."""


class LocatedTool(FunctionTool, frozen=True, kw_only=True):
    kind: Literal["reads", "writes"]
    verb: str
    """What it does to a file, for a question."""
    content: ContentOf

    def prepare(self, arguments: str, scope: Scope) -> FunctionInvocation:
        given = super().prepare(arguments, scope)
        path = scope.resolve(getattr(given.arguments, "path"))  # noqa: B009  (its type is made from the function)
        return msgspec.structs.replace(
            given,
            arguments=msgspec.structs.replace(given.arguments, path=str(path)),
            effect=Effect(self.kind, (path,)),
            claim=_claim(self.kind, path, scope),
            question=Proposal(f"{self.verb} {path}?", *self.content(given.arguments)),
        )


def _others(arguments: Any) -> tuple[str | None, str]:
    """What a tool is given besides the path, where that is not what it usually is."""
    usual = {field.name: field.default for field in msgspec.structs.fields(arguments)}
    given = msgspec.structs.asdict(arguments).items()
    others = {name: value for name, value in given if name != "path" and value != usual[name]}
    return (pretty_json(others), ARGUMENTS) if others else (None, "")


def _claim(kind: Literal["reads", "writes"], path: Path, scope: Scope) -> Claim:
    if kind == "writes":
        return Claim(writes=(path,))
    is_untrusted = is_outside(path, scope)
    folder = path if is_untrusted and os.path.isdir(path) else path.parent  # noqa: PTH112  (it does not raise)
    return Claim(reads=(path,), is_untrusted=is_untrusted, folder=folder)


def located(
    kind: Literal["reads", "writes"], verb: str, content: ContentOf = _others
) -> Callable[[FunctionTool], LocatedTool]:
    return lambda function: LocatedTool(**msgspec.structs.asdict(function), kind=kind, verb=verb, content=content)


class Plan(msgspec.Struct, frozen=True):
    """A change of a file, as it would be made now."""

    proposal: Proposal
    expects: str | None
    """As in `Run`; None: the file cannot be read."""


PlanOf = Callable[[Any, Scope], Plan]
"""From the arguments of a call, with the path resolved."""


class ChangingTool(msgspec.Struct, frozen=True):
    """Changes one file. A person who is asked is shown what changes in the file as it is then, and agrees to that."""

    tool: LocatedTool
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

    def prepare(self, arguments: str, scope: Scope) -> "ChangingInvocation":
        return ChangingInvocation(self.tool.prepare(arguments, scope), self.plan, scope)


class ChangingInvocation:
    def __init__(self, given: FunctionInvocation, plan: PlanOf, scope: Scope) -> None:
        self._given = given
        self._plan = plan
        self._scope = scope
        self._expects: str | None = None
        """Of the plan that a person was shown last."""

    @property
    def effect(self) -> Effect:
        return self._given.effect

    @property
    def claim(self) -> Claim:
        return self._given.claim

    @property
    def question(self) -> Proposal:
        plan = self._plan(self._given.arguments, self._scope)
        self._expects = plan.expects
        return plan.proposal

    async def run(self, run: Run) -> str | Shown:
        return await self._given.run(msgspec.structs.replace(run, expects=self._expects))


def changing(plan: PlanOf) -> Callable[[LocatedTool], ChangingTool]:
    return lambda tool: ChangingTool(tool, plan)


def is_outside(path: Path, scope: Scope) -> bool:
    """Of a resolved path: so a link that leads out of the project counts as outside."""
    return not path.is_relative_to(scope.cwd.resolve())


def project_name(path: Path, scope: Scope) -> str:
    """For people: relative to the project, or whole if it is outside."""
    return str(path if is_outside(path, scope) else path.relative_to(scope.cwd.resolve()))
