"""Prose is wrapped, and its links lead somewhere."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COLUMNS = 100
FILES = sorted(
    file
    for file in (
        *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
        *ROOT.glob("docs/**/*.md"),
    )
)
LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
ONE_LINK = re.compile(r"[-*\s]*(?:!?\[[^]]*\]\([^)]*\)|<?https?://\S+)[.,:;]?")
each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Lines outside code and tables, by their numbers."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.lstrip().startswith("|"):
            yield number, line


@each_file
def test_prose_is_wrapped(file: Path) -> None:
    lines = prose(file.read_text("utf-8"))
    assert [(number, line) for number, line in lines if len(line) > COLUMNS and not ONE_LINK.fullmatch(line)] == []


@each_file
def test_links_lead_to_what_exists(file: Path) -> None:
    for target in LINK.findall(file.read_text("utf-8")):
        path, _, anchor = target.partition("#")
        if path.startswith("http"):
            continue
        there = (file.parent / path).resolve() if path else file
        assert there.exists(), target
        assert not anchor or anchor in anchors(there.read_text("utf-8")), target


def anchors(text: str) -> set[str]:
    """Of the headings, as GitHub makes them."""
    headings = (line.lstrip("#").strip().lower() for _, line in prose(text) if line.startswith("#"))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}
