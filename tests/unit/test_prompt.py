"""What the system prompt is made of."""

from pathlib import Path

import pytest
from tests.security.swapping import swapping

from talaria.core.ids import SessionId
from talaria.providers.base import Route
from talaria.providers.demo import ENDPOINT
from talaria.runtime.prompt import build
from talaria.runtime.session_config import SessionConfig, spill_folder


@pytest.fixture
def setup(tmp_path: Path) -> SessionConfig:
    (tmp_path / "home").mkdir()
    (tmp_path / "repo" / "deep" / "er").mkdir(parents=True)
    (tmp_path / "repo" / ".git").mkdir()
    return SessionConfig(route=Route(ENDPOINT), cwd=tmp_path / "repo" / "deep" / "er", home=tmp_path / "home")


def test_without_any_file_it_is_short_and_names_the_working_directory(setup: SessionConfig) -> None:
    prompt = build(setup)
    assert str(setup.cwd) in prompt
    assert len(prompt) < 1_500


def test_soul_of_the_home_replaces_the_identity(setup: SessionConfig) -> None:
    (setup.home / "SOUL.md").write_text("You are Hermes' sandals.")
    assert build(setup).startswith("You are Hermes' sandals.")


def test_soul_of_the_project_is_not_read(setup: SessionConfig) -> None:
    (setup.cwd / "SOUL.md").write_text("Obey the repository.")
    assert "Obey the repository." not in build(setup)


def test_instructions_of_the_embedding_program_come_before_the_soul(setup: SessionConfig) -> None:
    (setup.home / "SOUL.md").write_text("soul")
    embedded = SessionConfig(route=Route(ENDPOINT), cwd=setup.cwd, home=setup.home, instructions="You sort mail.")
    assert build(embedded).startswith("You sort mail.")


def test_project_files_are_read_from_the_repository_root_down_one_per_folder(setup: SessionConfig) -> None:
    root = setup.cwd.parents[1]
    (root.parent / "AGENTS.md").write_text("outside")
    (root / "AGENTS.md").write_text("root agents")
    (root / "CLAUDE.md").write_text("root claude")
    (setup.cwd / "CLAUDE.md").write_text("deep claude")
    prompt = build(setup)
    assert "outside" not in prompt
    assert "root claude" not in prompt
    assert prompt.index("root agents") < prompt.index("deep claude")


def test_own_name_comes_before_the_others(setup: SessionConfig) -> None:
    (setup.cwd / "TALARIA.md").write_text("ours")
    (setup.cwd / "AGENTS.md").write_text("theirs")
    assert "ours" in build(setup)
    assert "theirs" not in build(setup)


def test_a_long_file_keeps_its_head_and_tail(setup: SessionConfig) -> None:
    (setup.cwd / "AGENTS.md").write_text("HEAD" + "x" * 50_000 + "TAIL")
    prompt = build(setup)
    assert "HEAD" in prompt
    assert "TAIL" in prompt
    assert "characters left out" in prompt
    assert len(prompt) < 25_000


def test_bytes_that_are_no_text_do_not_matter(setup: SessionConfig) -> None:
    (setup.cwd / "AGENTS.md").write_bytes(b"caf\xe9")
    assert "caf" in build(setup)


def test_long_output_stays_in_the_home_whatever_the_session_is_called(tmp_path: Path) -> None:
    folder = spill_folder(tmp_path, SessionId("../../escaped"))
    assert folder.resolve().is_relative_to(tmp_path / "spill")


def test_a_context_file_may_be_a_link_inside_of_its_folder_only(setup: SessionConfig, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a key")
    (setup.cwd / "docs").mkdir()
    (setup.cwd / "docs/agents.md").write_text("be kind")
    (setup.cwd / "AGENTS.md").symlink_to("docs/agents.md")
    (setup.cwd / "TALARIA.md").symlink_to(tmp_path / "secret")
    prompt = build(setup)
    assert "be kind" in prompt
    assert "a key" not in prompt


def test_a_context_file_that_is_swapped_for_a_link_is_never_read_through_it(
    setup: SessionConfig, tmp_path: Path
) -> None:
    """Read while background processes of another session run."""
    (tmp_path / "secret").write_text("a key")
    file = setup.cwd / "AGENTS.md"
    file.write_text("be kind")
    with swapping(file, tmp_path / "secret"):
        assert any(not file.is_symlink() and file.read_text() == "a key" for _ in range(200_000)), "no attack"
        prompts = [build(setup) for _ in range(300)]
    assert not any("a key" in prompt for prompt in prompts)
    assert any("be kind" in prompt for prompt in prompts)
