"""docs/security.md: each promise names the tests that show it, and they are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/security.md").read_text("utf-8")
PROMISES = PAGE.partition("## What is promised")[2].partition("\n## ")[0]
NAMED = re.compile(r"`((?:tests|benchmarks)/[^`\s]*)`")


def rows() -> list[list[str]]:
    lines = [line for line in PROMISES.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def test_each_promise_names_a_test() -> None:
    assert len(rows()) > 20
    assert [row[0] for row in rows() if not NAMED.search(row[-1]) and not row[-1].startswith("the same")] == []


@pytest.mark.parametrize("name", sorted(set(NAMED.findall(PAGE))))
def test_what_the_page_names_is_there(name: str) -> None:
    file, _, test = name.partition("::")
    assert (ROOT / file).exists()
    assert not test or f"def {test}(" in (ROOT / file).read_text("utf-8")
