"""As much of config.yaml and .env as can be read, and what is wrong with the rest: for commands that must work even if
the settings are wrong."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from talaria.config.load import decode, expand, read_yaml
from talaria.config.schema import Config
from talaria.config.secrets import parse_line, read_env, says_something
from talaria.core.errors import BadConfig

Key = tuple[str | int, ...]
"""The path to a setting; a number is an index in a list."""
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"unknown field `(.*?)`")
_AT = re.compile(r" - at `\$(.*)`$")


class Problem(msgspec.Struct, frozen=True):
    sentence: str
    key: Key = ()
    """Where in config.yaml; empty: all of it, or .env."""
    is_unknown: bool = False
    """There is no such setting."""
    is_unreadable: bool = False
    """Nothing in config.yaml can be read."""

    def is_about(self, key: Sequence[str]) -> bool:
        """Whether that setting is wrong, or one inside it, or one around it."""
        known = tuple(map(str, self.key))
        shared = min(len(known), len(key))
        return known[:shared] == tuple(key[:shared])


def read_env_leniently(file: Path) -> tuple[dict[str, str], list[Problem]]:
    """Also reads a file that other users can read: this serves commands that repair it."""
    try:
        return read_env(file), []
    except BadConfig as fault:
        problems = [Problem(str(fault))]
    try:
        lines = file.read_text("utf-8-sig", errors="replace").splitlines()
    except OSError:
        return {}, problems
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        try:
            found.update([parse_line(line, number, file)] if says_something(line) else [])
        except BadConfig as fault:
            problems.append(Problem(str(fault)))
    return found, list(dict.fromkeys(problems))


def load_leniently(file: Path, environment: Mapping[str, str]) -> tuple[Config, list[Problem]]:
    """Settings that are wrong have their defaults."""
    try:
        document = read_yaml(file)
    except BadConfig as fault:
        return Config(), [Problem(str(fault), is_unreadable=True)]
    return decode_leniently(document, environment, file)


def decode_leniently(
    document: Mapping[str, Any], environment: Mapping[str, str], file: Path
) -> tuple[Config, list[Problem]]:
    problems: list[Problem] = []
    try:
        left = _fill(document, environment, file, (), problems)
        while left:
            try:
                return decode(left, file), problems
            except BadConfig as fault:
                problem = _locate(left, fault, file)
                problems.append(problem)
                left = _without(left, problem.key)
    except RecursionError:  # an anchor inside itself
        problems.append(Problem(f"{file} is nested too deeply to be read.", is_unreadable=True))
    return Config(), problems


def _fill(value: Any, environment: Mapping[str, str], file: Path, path: Key, problems: list[Problem]) -> Any:
    """Like `expand`, but leaves out values that use variables that are not set."""
    if isinstance(value, Mapping):
        inner = cast("Mapping[Any, Any]", value)
        found = {str(key): _fill(one, environment, file, (*path, str(key)), problems) for key, one in inner.items()}
        return {key: one for key, one in found.items() if one is not None}
    if isinstance(value, list):
        items = cast("list[Any]", value)
        filled = [_fill(one, environment, file, (*path, n), problems) for n, one in enumerate(items)]
        return [new for new, old in zip(filled, items, strict=True) if new is not None or old is None]
    try:
        return expand(value, environment, file, ".".join(map(str, path)))
    except BadConfig as fault:
        problems.append(Problem(str(fault), path))
        return None


def _locate(document: dict[str, Any], fault: BadConfig, file: Path) -> Problem:
    """The key that the fault is about, at least one at the top of the document."""
    said = str(fault.__cause__)
    at, unknown = _AT.search(said), _UNKNOWN.search(said)
    path: list[str | int] = []
    seen: Any = document
    for name, item in _STEP.findall(at[1]) if at else ():
        step: str | int = int(item) if item.isdecimal() else str(name)
        if item == "...":
            keys = [str(key) for key in cast("dict[str, Any]", seen)]
            step = next((key for key in keys if _says(_only(document, path, key), said, file)), "")
            document = _only(document, path, str(step)) if step else document
        if isinstance(seen, dict) and step not in seen:
            break
        path.append(step)
        seen = cast("Any", seen)[step]
    if unknown and isinstance(seen, dict) and unknown[1] in seen:
        return Problem(str(fault), (*path, unknown[1]), is_unknown=True)
    if not path:  # several keys together are the problem: leave one of them out
        others = [key for key in reversed(document) if not _says(_without(document, (key,)), said, file)]
        path = [next(iter(others or reversed(document)))]
    return Problem(str(fault), tuple(path))


def _says(document: dict[str, Any], said: str, file: Path) -> bool:
    """Whether decoding the document fails with that message."""
    try:
        decode(document, file)
    except BadConfig as fault:
        return str(fault.__cause__) == said
    return False


def _only(document: Any, path: Sequence[str | int], key: str) -> Any:
    """Without the siblings of `key` at `path`."""
    if not path:
        return {key: document[key]}
    return _with(document, path[0], _only(document[path[0]], path[1:], key))


def _without(document: Any, path: Sequence[str | int]) -> Any:
    if len(path) > 1:
        return _with(document, path[0], _without(document[path[0]], path[1:]))
    if isinstance(document, list):
        return [one for n, one in enumerate(cast("list[Any]", document)) if n != path[0]]
    return {key: one for key, one in document.items() if key != path[0]}


def _with(document: Any, step: str | int, value: Any) -> Any:
    if isinstance(document, list):
        return [value if n == step else one for n, one in enumerate(cast("list[Any]", document))]
    return {**document, step: value}
