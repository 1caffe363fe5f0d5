"""Tools whose argument `path` is resolved once, before anybody is asked: the function gets what it led to then."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from talaria.tools.base import Claim, Effect, Scope
from talaria.tools.function import FunctionInvocation, FunctionTool


class LocatedTool(FunctionTool, frozen=True, kw_only=True):
    kind: Literal["reads", "writes"]
    verb: str
    """What it does to a file, for the question outside the project."""

    def prepare(self, arguments: str, scope: Scope) -> FunctionInvocation:
        given = super().prepare(arguments, scope)
        path = scope.resolve(getattr(given.arguments, "path"))  # noqa: B009  (its type is made from the function)
        question = f"{self.verb} {path}?{_shown(given.arguments)}" if is_outside(path, scope) else None
        return msgspec.structs.replace(
            given,
            arguments=msgspec.structs.replace(given.arguments, path=str(path)),
            effect=Effect(self.kind, (path,)),
            claim=_claim(self.kind, path, scope),
            question=question,
        )


def _shown(arguments: msgspec.Struct) -> str:
    """All that would be written, or searched for: the gate refuses what is too long to be shown."""
    usual = {field.name: field.default for field in msgspec.structs.fields(arguments)}
    given = msgspec.structs.asdict(arguments).items()
    others = {name: value for name, value in given if name != "path" and value != usual[name]}
    if not others:
        return ""
    text = str(others["content"]) if set(others) == {"content"} else msgspec.json.encode(others).decode()
    return "\n  " + text.replace("\n", "\n  ")


def _claim(kind: Literal["reads", "writes"], path: Path, scope: Scope) -> Claim:
    if kind == "writes":
        return Claim(writes=(path,))
    is_untrusted = is_outside(path, scope)
    folder = path if is_untrusted and os.path.isdir(path) else path.parent  # noqa: PTH112  (it does not raise)
    return Claim(reads=(path,), is_untrusted=is_untrusted, folder=folder)


def located(kind: Literal["reads", "writes"], verb: str) -> Callable[[FunctionTool], LocatedTool]:
    return lambda function: LocatedTool(**msgspec.structs.asdict(function), kind=kind, verb=verb)


def is_outside(path: Path, scope: Scope) -> bool:
    """Of a resolved path: so a link that leads out of the project counts as outside."""
    return not path.is_relative_to(scope.cwd.resolve())
