"""Tools whose argument `path` is resolved once, before anybody is asked: the function gets what it led to then."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from talaria.tools.base import Claim, Effect, Scope
from talaria.tools.function import FunctionInvocation, FunctionTool
from talaria.tools.person import Proposal, pretty_json


class LocatedTool(FunctionTool, frozen=True, kw_only=True):
    kind: Literal["reads", "writes"]
    verb: str
    """What it does to a file, for the question outside the project; empty: nobody is asked."""

    def prepare(self, arguments: str, scope: Scope) -> FunctionInvocation:
        given = super().prepare(arguments, scope)
        path = scope.resolve(getattr(given.arguments, "path"))  # noqa: B009  (its type is made from the function)
        is_asked = bool(self.verb) and is_outside(path, scope)
        return msgspec.structs.replace(
            given,
            arguments=msgspec.structs.replace(given.arguments, path=str(path)),
            effect=Effect(self.kind, (path,)),
            claim=_claim(self.kind, path, scope),
            question=_proposal(f"{self.verb} {path}?", given.arguments) if is_asked else None,
        )


def _proposal(headline: str, arguments: msgspec.Struct) -> Proposal:
    """All that would be written."""
    others = {name: value for name, value in msgspec.structs.asdict(arguments).items() if name != "path"}
    if set(others) == {"content"}:
        return Proposal(headline, str(others["content"]), "new content")
    given = {name: value for name, value in others.items() if value not in (None, False, ())}
    return Proposal(headline, pretty_json(given), "edits as JSON")


def _claim(kind: Literal["reads", "writes"], path: Path, scope: Scope) -> Claim:
    if kind == "writes":
        return Claim(writes=(path,))
    return Claim(reads=(path,), is_untrusted=is_outside(path, scope))


def located(kind: Literal["reads", "writes"], verb: str = "") -> Callable[[FunctionTool], LocatedTool]:
    return lambda function: LocatedTool(**msgspec.structs.asdict(function), kind=kind, verb=verb)


def is_outside(path: Path, scope: Scope) -> bool:
    """Of a resolved path: so a link that leads out of the project counts as outside."""
    return not path.is_relative_to(scope.cwd.resolve())
