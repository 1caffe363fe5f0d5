"""Deliberate mistakes, each of which must turn a test red. They are listed in the `.toml` files of this folder: the
text to replace, what to put in its place, and which tests must notice."""

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HANGS_S = 60
"""A mistake may make a test hang, and that is red, too."""
PATIENCE_S = 4
"""How long tests wait for what a mistake keeps from happening."""
TESTS_FAILED = 1
"""pytest's exit status; others mean that nothing ran, or that it could not."""


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    is_quick: bool = False
    """Tried by `make test`; the others by `make test-long`."""

    @property
    def mutated(self) -> str:
        text = (ROOT / self.file).read_text("utf-8")
        assert text.count(self.old) == 1, f"{self.file} must have this once: {self.old!r}"
        return text.replace(self.old, self.new)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mutant: tuple[Mutant, ...]


def mutants() -> Iterator[Mutant]:
    for file in sorted(HERE.glob("*.toml")):
        yield from msgspec.convert(tomllib.loads(file.read_text("utf-8")), _File).mutant


MUTANTS = tuple(mutants())


def test_no_two_mutants_share_a_name() -> None:
    names = [one.name for one in MUTANTS]
    assert len(set(names)) == len(names)


def test_every_mutant_still_applies_to_the_source() -> None:
    faults: list[str] = []
    for one in MUTANTS:
        try:
            assert one.mutated
        except (AssertionError, OSError) as fault:
            faults.append(f"{one.name}: {fault}")
    assert not faults, "\n".join(faults)


def test_every_mutant_names_tests_that_are_there() -> None:
    named = {test.partition("[")[0] for one in MUTANTS for test in one.tests}
    assert [test for test in sorted(named) if not _is_there(test)] == []


def _is_there(test: str) -> bool:
    file, _, name = test.partition("::")
    path = ROOT / file
    return path.exists() and (not name or f"def {name.rpartition('::')[2]}(" in path.read_text("utf-8"))


def _case(mutant: Mutant) -> object:
    marks = [] if mutant.is_quick else [pytest.mark.long]
    return pytest.param(mutant, marks=marks, id=mutant.name.replace(" ", "_"))


@pytest.mark.parametrize("mutant", [_case(one) for one in MUTANTS])
def test_it_turns_a_test_red(mutant: Mutant, tmp_path: Path) -> None:
    ast.parse(mutant.mutated)  # what is no program at all would turn any test red
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / mutant.file).write_text(mutant.mutated, "utf-8")
    options = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", f"timeout={HANGS_S}")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *mutant.tests],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(tmp_path / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TEST_PATIENCE_S": str(PATIENCE_S),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == TESTS_FAILED, f"{ran.stdout[-3000:]}\n{ran.stderr[-1000:]}"
