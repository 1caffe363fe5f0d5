"""Every clause of docs/reference/contracts.md is told there, and has a test that names it."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECTIONS = {"P": 8, "R": 27, "E": 13, "C": 34, "H": 20}
AROUND = {"C": 9, "H": 8}
"""Clauses with an X: what surrounds a section and is told one by one, too."""


def clauses() -> Iterator[str]:
    for section, count in SECTIONS.items():
        yield from (f"{section}-{number:02}" for number in range(1, count + 1))
    for section, count in AROUND.items():
        yield from (f"{section}-X{number}" for number in range(1, count + 1))


def test_every_clause_is_named_by_a_test() -> None:
    named = {
        clause
        for file in (ROOT / "tests").rglob("test_*.py")
        for clause in re.findall(r'mark\.clause\("([A-Z]-X?\d+)"\)', file.read_text("utf-8"))
    }
    assert sorted(set(clauses()) - named) == []
    assert sorted(named - set(clauses())) == []


def test_every_clause_is_told() -> None:
    reference = (ROOT / "docs" / "reference" / "contracts.md").read_text("utf-8")
    rows = [line.split("|")[1] for line in reference.splitlines() if re.match(r"\| [A-Z]-", line)]
    told = {clause for row in rows for clause in re.findall(r"[A-Z]-X?\d+", row)}
    assert sorted(set(clauses()) ^ told) == []
