"""Tools whose argument `path` is resolved once, before anybody is asked: the function gets what it led to then."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from talaria.tools.base import Claim, Effect, Scope
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


def is_outside(path: Path, scope: Scope) -> bool:
    """Of a resolved path: so a link that leads out of the project counts as outside."""
    return not path.is_relative_to(scope.cwd.resolve())
