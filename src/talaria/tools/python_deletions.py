"""Finds what a Python script deletes, without running it.

Only literal paths are known. Others are asked about only where much may be lost: a whole tree, or file after file in a
loop.
"""

import ast
import shlex
from collections.abc import Iterator
from typing import NamedTuple

MAX_CHARS = 400_000
_TEMPORARY = "/tmp/talaria-unknown"  # noqa: S108
_REMOVERS = frozenset({"remove", "unlink"})
_RUNNERS = frozenset({"system", "popen", "run", "call", "check_call", "check_output", "Popen", "getoutput"})


class FileDeletion(NamedTuple):
    path: str | None
    """None: only known at run time."""
    source: str
    is_deep: bool = False


def find_deletions(code: str) -> Iterator[FileDeletion | str]:
    """A `str` is a shell command. Code that is not Python deletes nothing."""
    if len(code) > MAX_CHARS:
        return
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    names = _find_known_paths(tree)
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, is_repeated = waiting.pop()
        if isinstance(node, ast.Call):
            yield from _read_call(node, names, is_repeated=is_repeated)
        loops = (ast.For, ast.While, ast.AsyncFor, ast.comprehension, ast.ListComp, ast.SetComp, ast.GeneratorExp)
        inner = is_repeated or isinstance(node, loops)
        waiting += [(child, inner) for child in ast.iter_child_nodes(node)][::-1]


def _read_call(call: ast.Call, names: dict[str, str | None], *, is_repeated: bool) -> Iterator[FileDeletion | str]:
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    module = function.value.id if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) else ""
    argument = call.args[0] if call.args else None
    if name == "rmtree" and argument is not None:
        yield FileDeletion(_read_path(argument, names), ast.unparse(call), is_deep=True)
    elif name in _REMOVERS and module == "os" and argument is not None:
        path = _read_path(argument, names)
        if path is not None or is_repeated:
            yield FileDeletion(path, ast.unparse(call))
    elif name == "unlink" and isinstance(function, ast.Attribute):
        path = _read_path(function.value, names)
        if path is not None or is_repeated:
            yield FileDeletion(path, ast.unparse(call))
    elif name in _RUNNERS and module in ("os", "subprocess") and argument is not None:
        match argument:
            case ast.Constant(str(script)):
                yield script
            case ast.List(elements) if all(isinstance(one, ast.Constant) for one in elements):
                yield shlex.join(str(getattr(one, "value", "")) for one in elements)
            case _:
                pass


def _find_known_paths(tree: ast.AST) -> dict[str, str | None]:
    """Names with a single value that is a literal path."""
    found: dict[str, str | None] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, ast.expr() as value):
                found[name] = None if name in found else _read_path(value, found)
            case ast.withitem(value, ast.Name(name)):
                found[name] = None if name in found else _read_path(value, found)
            case ast.For(ast.Name(name)) | ast.comprehension(ast.Name(name)):
                found[name] = None
            case _:
                pass
    return found


def _read_path(node: ast.expr, names: dict[str, str | None]) -> str | None:
    match node:
        case ast.Constant(str(text)):
            return text or None
        case ast.Name(name):
            return names.get(name)
        case ast.BinOp(left, ast.Div(), right):
            return _join_paths([left, right], names)
        case ast.Call(ast.Attribute(ast.Name("tempfile"), _)):
            return _TEMPORARY
        case ast.Call(ast.Name("mkdtemp" | "TemporaryDirectory" | "NamedTemporaryFile")):
            return _TEMPORARY
        case ast.Call(ast.Attribute(_, "cwd" | "getcwd")):
            return "."
        case ast.Call(ast.Name("Path" | "str") | ast.Attribute(ast.Name("pathlib"), "Path"), parts):
            return _join_paths(parts, names) if parts else "."
        case ast.Call(ast.Attribute(ast.Attribute(ast.Name("os"), "path"), "join"), parts):
            return _join_paths(parts, names)
        case _:
            return None


def _join_paths(parts: list[ast.expr], names: dict[str, str | None]) -> str | None:
    texts = [_read_path(part, names) for part in parts]
    if texts[:1] == [_TEMPORARY]:
        return _TEMPORARY
    known = [text for text in texts if text is not None]
    return "/".join(known) if len(known) == len(texts) else None
