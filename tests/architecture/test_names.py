"""One public name means one thing, and functions are named by what they do."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import talaria

SOURCE = Path(talaria.__file__).parent
TREES = {path.relative_to(SOURCE): ast.parse(path.read_text("utf-8")) for path in sorted(SOURCE.rglob("*.py"))}

FAMILIES = ("store", "platforms")
"""In each folder there is one implementation of a port: files and classes are called as in its siblings."""

SAME_CLASS = {
    "Platform": "the port, and what Hermes' plugins import under that name",
}

VERBS = {"embed", "exceed", "feed", "need", "proceed", "seed", "shed", "succeed"}
"""They end like a participle."""
IRREGULAR = """
beaten begun bound bought broken brought built caught chosen dealt done drawn driven eaten fallen felt forgotten found
frozen given gone got grown heard held hidden kept known laid led left lent lost made meant met paid rung said seen sent
shown sold spent spoken stolen stood stuck sunk swept taken taught thought thrown told torn understood woken won
worn wrapped written
"""


def family(path: Path) -> str:
    """The folder in which a name has one meaning."""
    return path.parts[0] if path.parts[0] in FAMILIES else path.parent.as_posix()


def test_a_public_class_name_means_one_thing() -> None:
    homes: defaultdict[str, set[str]] = defaultdict(set)
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(family(path) if path.parts[0] in FAMILIES else path.as_posix())
    doubles = {name: sorted(found) for name, found in homes.items() if len(found) > 1 and name not in SAME_CLASS}
    assert doubles == {}


def test_a_module_name_means_one_thing() -> None:
    homes: defaultdict[str, set[str]] = defaultdict(set)
    for path in TREES:
        if path.stem not in ("__init__", "__main__", "base"):
            homes[path.stem].add(family(path))
    doubles = {name: sorted(found) for name, found in homes.items() if len(found) > 1}
    assert doubles == {}


def test_functions_are_not_named_by_participles() -> None:
    assert [f"{path}:{node.name}" for path, node in functions() if is_participle(node.name)] == []


def functions() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """All but properties, which are named by what they tell."""
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_property(node):
                yield path, node


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def is_participle(name: str) -> bool:
    first = name.strip("_").split("_")[0]
    return first in IRREGULAR.split() or (first.endswith("ed") and first not in VERBS)
