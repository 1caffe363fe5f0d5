"""Modules that work outside of the sandbox in folders that its commands can change do so through `talaria.trees` only:
a path that was looked at may lead elsewhere by the time it is used."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import talaria

SOURCE = Path(talaria.__file__).parent
MODULES = (
    *("cli/references.py", "compat/hermes_home/copying.py", "gateway/attachments.py", "gateway/retention.py"),
    *("gateway/uploads.py", "runtime/prompt.py", "tools/checkpoints.py", "tools/output.py", "tools/places.py"),
    "tools/policy_files.py",
    *("tools/quarantine.py", "tools/shelf.py", "tools/workspace.py", "tools/builtin/files.py"),
    *("tools/builtin/pages.py", "tools/builtin/pictures.py", "tools/builtin/search.py", "tools/builtin/seen.py"),
    *("tools/repositories.py", "tools/sandbox/guard_program.py", "tools/sandbox/guarding.py"),
    *("tools/sandbox/inside.py", "tools/searching/ignores.py", "tools/searching/program.py"),
    *("tools/searching/tree.py",),
)
ALLOWED = {
    ("cli/references.py", ".resolve"): "a path that the person names outside of the folder they work in",
    ("cli/references.py", ".expanduser"): "looks at no file",
    ("gateway/retention.py", ".expanduser"): "looks at no file",
    ("gateway/uploads.py", ".expanduser"): "looks at no file",
    ("gateway/uploads.py", ".resolve"): "Talaria's own home",
    ("runtime/prompt.py", "files.read_text"): "SOUL.md in Talaria's own home",
    ("tools/builtin/search.py", ".stat"): "the private places themselves, to know them again",
    ("tools/repositories.py", ".expanduser"): "looks at no file",
    **{
        ("tools/sandbox/guard_program.py", f"os.{name}"): "in /proc, or below a descriptor that no link led to"
        for name in ("open", "readlink", "listdir", "scandir", "stat")
    },
    ("tools/sandbox/guard_program.py", ".stat"): "of what was listed, without following it",
    ("tools/sandbox/guarding.py", ".read_bytes"): "/proc",
    ("tools/sandbox/guarding.py", ".read_text"): "/proc",
    ("tools/sandbox/inside.py", ".read_text"): "/proc/net/unix",
    ("tools/repositories.py", ".resolve"): "names a place that is then opened without following links",
    ("tools/workspace.py", ".resolve"): "the project's own path, and the home's",
}
"""What is left, and why that is no danger."""

OF_PATHS = frozenset(
    (
        *("absolute", "chmod", "exists", "expanduser", "glob", "group", "hardlink_to", "is_block_device", "is_dir"),
        *("is_char_device", "is_fifo", "is_file", "is_mount", "is_socket", "is_symlink", "iterdir", "lchmod", "lstat"),
        *("mkdir", "open", "owner", "read_bytes", "read_text", "readlink", "rename", "resolve", "rglob", "rmdir"),
        *("samefile", "stat", "symlink_to", "touch", "unlink", "walk", "write_bytes", "write_text"),
    )
)
"""Methods of `Path`. Those of `Root` have other names."""
OF_OS = frozenset(
    (
        *("close", "dup", "fchmod", "fdopen", "fstat", "fsencode", "fsdecode", "fspath", "geteuid", "urandom"),
        *("path", "environ", "pathsep", "defpath", "stat_result", "PathLike", "strerror", "getpid", "pidfd_open"),
        *("fstatvfs", "kill", "fork", "_exit", "waitpid"),
    )
)
"""What of `os` takes no path."""
OF_FILES = frozenset(("read_bytes", "read_text", "replace_file"))
PURE = frozenset(("join", "normpath", "dirname", "basename", "relpath"))
OTHERS = frozenset(("os.path", "shutil", "glob", "io"))
"""Modules that work with paths."""


def uses(code: str) -> Iterator[tuple[int, str]]:  # noqa: C901  (a table)
    """Of paths, by line."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.ImportFrom(module="talaria.files"):
                yield from ((node.lineno, f"files.{one.name}") for one in node.names if one.name in OF_FILES)
            case ast.ImportFrom(module=str(module)) if module in (*OTHERS, "os"):
                yield node.lineno, module
            case ast.Import():
                yield from ((node.lineno, one.name) for one in node.names if one.name in OTHERS)
            case ast.Name("open"):
                yield node.lineno, "open"
            case ast.Call(func=ast.Attribute(attr="replace"), args=[_], keywords=[]):
                yield node.lineno, ".replace"  # of a str it takes two, of a struct keywords
            case ast.Attribute(ast.Name("os"), name) if name not in OF_OS and not name.startswith(("O_", "ST_")):
                yield node.lineno, f"os.{name}"
            case ast.Attribute(ast.Attribute(ast.Name("os"), "path"), name) if name not in PURE:
                yield node.lineno, f"os.path.{name}"
            case ast.Attribute(ast.Name("Root"), "open"):
                pass
            case ast.Attribute(_, name) if name in OF_PATHS:
                yield node.lineno, f".{name}"
            case _:
                pass


@pytest.mark.parametrize("module", MODULES)
def test_a_module_for_changing_trees_uses_no_paths(module: str) -> None:
    found = [(line, use) for line, use in uses((SOURCE / module).read_text()) if (module, use) not in ALLOWED]
    assert found == []


def test_every_exception_is_in_use() -> None:
    used = {(module, use) for module in MODULES for _, use in uses((SOURCE / module).read_text())}
    assert set(ALLOWED) <= used


FORBIDDEN = """
path.resolve() | Path(x).open('rb') | open(x) | path.exists() | [*path.iterdir()] | path.rglob('*') | path.read_text()
path.unlink(missing_ok=True) | path.rename(x) | path.replace(x) | path.stat() | a().stat() | self._folder.mkdir()
os.open(path, os.O_RDONLY) | os.path.realpath(x) | os.path.exists(x) | os.scandir(x) | os.walk(x) | x = os.listdir
import shutil | from os.path import exists | from os import open as o | from talaria.files import read_text
map(Path.resolve, paths)
"""
HARMLESS = """
Root.open(path) | root.read('x', 1) | text.replace('a', 'b') | structs.replace(x, a=1) | os.fstat(3)
"""


@pytest.mark.parametrize("line", FORBIDDEN.strip().replace("\n", " | ").split(" | "))
def test_what_is_forbidden_is_found(line: str) -> None:
    """Else the test above would show nothing."""
    assert [*uses(line)]


@pytest.mark.parametrize("line", HARMLESS.strip().split(" | "))
def test_what_is_harmless_is_not_found(line: str) -> None:
    assert not [*uses(line)]
