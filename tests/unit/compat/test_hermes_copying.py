"""Taking files over from a home in which somebody may still be at work."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from talaria.compat.hermes_home.home_files import Way, file_step, folder_step
from talaria.compat.hermes_home.report import ImportStep, carry_out


@pytest.mark.parametrize(("step", "name"), [(folder_step, "skills/knit"), (file_step, "SOUL.md")])
def test_what_becomes_a_link_after_it_was_looked_at_is_not_followed(
    tmp_path: Path, step: Callable[[str, str, Way], ImportStep], name: str
) -> None:
    root, secret = tmp_path / "hermes", tmp_path / "secret"
    secret.write_text("a key")
    file = root / ("skills/knit/SKILL.md" if step is folder_step else "SOUL.md")
    file.parent.mkdir(parents=True)
    file.write_text("knit")

    def steps() -> Iterator[ImportStep]:
        found = step("kind", "name", Way(root, tmp_path / "home", name))
        file.unlink()
        file.symlink_to(secret)
        assert file.read_text() == "a key"  # the control
        yield found

    list(carry_out(steps(), is_dry_run=False))
    brought = [one.read_text() for one in (tmp_path / "home").rglob("*") if one.is_file()]
    assert "a key" not in brought
    assert brought == ([] if step is folder_step else ["knit"])


def test_a_folder_of_ours_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "hermes/skills/knit").mkdir(parents=True)
    (tmp_path / "hermes/skills/knit/SKILL.md").write_text("knit")
    (tmp_path / "home").mkdir()
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / "home/skills").symlink_to(tmp_path / "dotfiles")
    step = folder_step("skill", "knit", Way(tmp_path / "hermes", tmp_path / "home", "skills/knit"))
    list(carry_out(iter((step,)), is_dry_run=False))
    assert (tmp_path / "dotfiles/knit/SKILL.md").read_text() == "knit"
