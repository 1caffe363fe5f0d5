"""Every clause of a finished section of docs/reference/contracts.md has a test that names it."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
SECTIONS = {"P": 8, "R": 27, "E": 13, "C": 34, "H": 20}
STILL_TO_COME = {"C", "H"}


def test_every_clause_of_the_finished_sections_is_named_by_a_test() -> None:
    named = {
        clause
        for file in TESTS.rglob("test_*.py")
        for clause in re.findall(r'mark\.clause\("([A-Z]-\d\d)"\)', file.read_text("utf-8"))
    }
    wanted = {
        f"{section}-{number:02}"
        for section, count in SECTIONS.items()
        if section not in STILL_TO_COME
        for number in range(1, count + 1)
    }
    assert sorted(wanted - named) == []
