"""What the code imports from others is declared in pyproject.toml: as a dependency, or by the extra of its folder."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from talaria.platforms.loader import manifests

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "talaria"
PROJECT: Mapping[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: Mapping[str, list[str]] = PROJECT["optional-dependencies"]
FOLDERS = {
    "api/": "web",
    "platforms/matrix/": "matrix",
    "platforms/slack/": "slack",
    "tools/browser/": "browser",
    "tools/mcp/": "mcp",
    "testing/servers/": "matrix",  # people on a homeserver that tests start
}
"""Code that runs only where an extra is installed."""


@cache
def imported() -> Mapping[str, frozenset[str]]:
    """By file: the modules of others."""
    found: dict[str, frozenset[str]] = {}
    for file in SOURCE.rglob("*.py"):
        modules = {name.partition(".")[0] for name in imports_of(ast.parse(file.read_text("utf-8")))}
        found[file.relative_to(SOURCE).as_posix()] = frozenset(modules - {"talaria", *sys.stdlib_module_names})
    return found


def imports_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(requirements: list[str]) -> set[str]:
    """The distributions that are named."""
    return {canonical(re.split(r"[^\w.-]", one, maxsplit=1)[0]) for one in requirements} - {"talaria-agent"}


@cache
def installed() -> Mapping[str, list[str]]:
    """The distributions that bring a module."""
    return packages_distributions()


def distributions(module: str) -> set[str]:
    return {canonical(name) for name in installed().get(module, [module])}


def extra_of(file: str) -> str:
    return next((extra for folder, extra in FOLDERS.items() if file.startswith(folder)), "")


CORE = declared(PROJECT["dependencies"])


def undeclared(file: str) -> set[str]:
    known = CORE | declared(EXTRAS.get(extra_of(file), []))
    return {module for module in imported()[file] if not distributions(module) & known}


def test_every_module_of_others_is_declared_where_it_is_imported() -> None:
    assert {file: modules for file in imported() if (modules := undeclared(file))} == {}


@pytest.mark.parametrize("distribution", sorted(CORE))
def test_every_dependency_is_imported(distribution: str) -> None:
    assert any(distribution in distributions(module) for modules in imported().values() for module in modules)


@pytest.mark.parametrize("extra", sorted({*FOLDERS.values()}))
def test_everything_in_an_extra_is_imported_by_its_code(extra: str) -> None:
    used = {
        distribution
        for file, modules in imported().items()
        if extra_of(file) == extra
        for module in modules
        for distribution in distributions(module)
    }
    assert declared(EXTRAS[extra]) <= used - CORE


def test_a_library_of_an_extra_is_one_of_it_only() -> None:
    """What everybody has need not be in an extra."""
    assert {extra: named for extra, given in EXTRAS.items() if (named := declared(given) & CORE)} == {}


@pytest.mark.parametrize("platform", manifests())
def test_a_platform_names_the_extra_that_it_needs_and_what_shows_that_it_is_there(platform: str) -> None:
    manifest = manifests()[platform]
    extra = extra_of(f"platforms/{platform}/")
    assert manifest.extra == extra
    assert bool(manifest.modules) == bool(extra)
    named = {distribution for module in manifest.modules for distribution in distributions(module)}
    assert named <= declared(EXTRAS.get(extra, []))
