"""Tables as they are painted: nothing in them is lost."""

import re

import pytest

from talaria.cli.screen.painting import render_document

LONG = "https://example.com/a/very/long/path_(of_a_page)/index.html?with=query&and=more#fragment"
OTHER = "https://docs.example.com/en/latest/guide/installing-on-linux.html"
TABLE = f"""| Name | Link | Path |
|---|---|---|
| First | {LONG} | src/talaria/cli/screen/rich_markdown.py |
| [Docs]({OTHER}) | <{LONG}>, ftp://x.y | Donaudampfschifffahrtsgesellschaft |
"""


@pytest.mark.parametrize("columns", [40, 120])
def test_links_of_a_table_stand_whole_below_it_where_its_cells_are_too_narrow(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    painted = re.sub(r"\x1b\[[\d;]*m", "", render_document(f"{TABLE}\nAfter.", columns)).split("\n")
    notes = [line for line in painted if line.startswith("[")]
    assert notes == [f"[1] {LONG}", f"[2] {OTHER}"]
    assert painted[-2:] == ["", "After."]
    table = painted[: painted.index(notes[0])]
    assert all(len(line) <= columns for line in table)
    assert any(re.match(" First +\\[1\\] +src/", line) for line in table)
    assert any(re.match(r" Docs \[2\] +\[1\], ", line) for line in table)
    path = "".join(line.split()[-1] for line in table if line.strip())
    assert "src/talaria/cli/screen/rich_markdown.py" in path
    assert "Donaudampfschifffahrtsgesellschaft" in path


def test_a_table_that_fits_keeps_its_links() -> None:
    painted = render_document("| Name | Link |\n|---|---|\n| Docs | https://example.com/a |\n", 60)
    assert "https://example.com/a" in painted
    assert "[1]" not in painted
