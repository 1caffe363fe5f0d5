"""The model's list of steps, painted."""

import re

from talaria.cli.screen.painting import checklist
from talaria.cli.tool_outcomes import read_steps, summarise

TOLD = "[x] a: Read\n[>] b c: Write: it\n[ ] c: Run\n[-] d: Dance\n[1 of 4 completed; > in progress, - cancelled]"


def test_every_step_has_the_mark_of_its_state() -> None:
    painted = checklist(TOLD, 40).split("\n")
    assert [re.sub(r"\x1b\[[\d;]*m", "", row) for row in painted] == ["☑ Read", "▸ Write: it", "☐ Run", "☒ Dance"]
    assert "9m" in painted[-1]  # struck through
    assert summarise(read_steps(TOLD)) == "1 of 3 steps done"


def test_what_is_not_a_list_has_no_steps() -> None:
    assert checklist("[the list is empty]", 40) == ""
