"""docs/promises.md and docs/security.md: each promise names the tests that show it, and these exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROMISES = (ROOT / "docs/promises.md").read_text("utf-8")
SECURITY = (ROOT / "docs/security.md").read_text("utf-8")
TABLES = (PROMISES, SECURITY.partition("## What is promised")[2].partition("\n## ")[0])
NAMED = re.compile(r"`((?:tests|benchmarks)/[^`\s]*)`")


def rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if line.startswith("| ") and not line.startswith("| promise |"):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


@pytest.mark.parametrize("text", TABLES, ids=("promises", "security"))
def test_each_promise_names_a_test(text: str) -> None:
    found = [*rows(text)]
    assert len(found) > 20
    assert [row[0] for row in found if not NAMED.search(row[-1]) and not row[-1].startswith("the same")] == []


@pytest.mark.parametrize("name", sorted({*NAMED.findall(PROMISES), *NAMED.findall(SECURITY)}))
def test_what_the_pages_name_exists(name: str) -> None:
    file, _, test = name.partition("::")
    found = [*ROOT.glob(file)]
    assert found
    assert not test or f"def {test}(" in found[0].read_text("utf-8")
