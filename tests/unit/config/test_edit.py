import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talaria.config.edit import set_value
from talaria.config.load import load
from talaria.config.secrets import read_env, strip_quotes
from talaria.core.errors import BadConfig, BadInput, OperatorError

COMMENTED = """\
# my settings
model:
  default: gpt-5  # the good one
  # provider: openai
agent:
  max_turns: 7
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Not there yet."""
    return tmp_path / "home"


def with_config(home: Path, text: str) -> Path:
    home.mkdir()
    file = home / "config.yaml"
    file.write_text(text)
    return file


def test_first_setting_makes_the_home_and_the_file(home: Path) -> None:
    file = set_value(home, "model.default", "openrouter:some/model")
    assert file == home / "config.yaml"
    assert file.read_text() == "model:\n  default: openrouter:some/model\n"
    assert (stat.S_IMODE(home.stat().st_mode), stat.S_IMODE(file.stat().st_mode)) == (0o700, 0o600)


def test_comments_and_order_stay(home: Path) -> None:
    file = with_config(home, COMMENTED)
    set_value(home, "model.default", "gpt-6")
    set_value(home, "agent.max_wait_s", "1.5")
    assert file.read_text() == COMMENTED.replace("gpt-5", "gpt-6") + "  max_wait_s: 1.5\n"


def test_comments_stay_in_a_file_that_holds_nothing_else(home: Path) -> None:
    file = with_config(home, "# keep me\n\n# and me\n")
    set_value(home, "agent.max_turns", "3")
    assert file.read_text() == "# keep me\n# and me\nagent:\n  max_turns: 3\n"


def test_section_that_was_left_empty_is_filled(home: Path) -> None:
    with_config(home, "model:\nagent: {max_turns: 3}\n")
    set_value(home, "model.default", "x")
    assert load(home / "config.yaml", {}).model.default == "x"


def test_link_to_the_settings_stays_a_link(home: Path, tmp_path: Path) -> None:
    home.mkdir()
    (tmp_path / "dotfiles.yaml").write_text("# mine\n")
    (home / "config.yaml").symlink_to(tmp_path / "dotfiles.yaml")
    set_value(home, "agent.max_turns", "3")
    assert (home / "config.yaml").is_symlink()
    assert "max_turns: 3" in (tmp_path / "dotfiles.yaml").read_text()


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("agent.max_turns", "many", "agent.max_turns is wrong: Expected `int`, got `str`."),
        ("agent.max_truns", "3", "there is no setting 'agent.max_truns'; did you mean 'max_turns'?"),
        ("modle.default", "x", "there is no setting 'modle'; did you mean 'model'?"),
        ("model", "x", "model is wrong"),
        ("agent.max_turns.deep", "x", "holds a value, not settings"),
        ("model.api_key", "${NOT_SET_ANYWHERE}", "uses ${NOT_SET_ANYWHERE}, which is not set"),
        ("", "x", "there is no setting ''"),
    ],
)
def test_what_would_not_load_is_refused_and_the_file_stays(home: Path, key: str, value: str, sentence: str) -> None:
    file = with_config(home, COMMENTED)
    with pytest.raises((BadConfig, BadInput)) as told:
        set_value(home, key, value)
    assert sentence in str(told.value)
    assert file.read_text() == COMMENTED
    assert [item.name for item in home.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize("content", [b"model: [", b"- a\n", b"caf\xe9: 1", b"agent: {}\nagent: {}\n"])
def test_file_that_is_not_right_is_told_and_stays(home: Path, content: bytes) -> None:
    home.mkdir()
    file = home / "config.yaml"
    file.write_bytes(content)
    with pytest.raises(BadConfig, match=str(file)):
        set_value(home, "model.default", "x")
    assert file.read_bytes() == content


@pytest.mark.parametrize("key", ["model.default", "OPENAI_API_KEY"])
def test_home_that_cannot_be_written_is_told(tmp_path: Path, key: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OperatorError, match=r"Cannot write .*set TALARIA_HOME"):
        set_value(tmp_path / "file" / "home", key, "x")


def test_secret_goes_to_a_file_of_its_owner_alone(home: Path) -> None:
    file = set_value(home, "OPENROUTER_API_KEY", "sk-or-1")
    assert file == home / ".env"
    assert file.read_text() == "OPENROUTER_API_KEY=sk-or-1\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_secret_replaces_its_line_and_leaves_the_others(home: Path) -> None:
    home.mkdir()
    file = home / ".env"
    file.write_text("# keys\nexport A_API_KEY=old\nB_API_KEY='b'\n")
    file.chmod(0o600)
    set_value(home, "A_API_KEY", "new")
    assert file.read_text() == "# keys\nB_API_KEY='b'\nA_API_KEY=new\n"


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"])))
def test_any_line_that_can_be_kept_is_read_back_as_it_was(value: str) -> None:
    forms = (value, f'"{value}"', f"'{value}'")
    assert any(strip_quotes(form.strip()) == value for form in forms) or {"'", '"'} <= set(value)


@pytest.mark.parametrize(
    "value", ["plain", " spaces ", "a # b", "#lead", "'quoted'", '"', "it's", "a=b", "", "é\u3000"]
)
def test_secret_is_read_back_as_it_was(home: Path, value: str) -> None:
    set_value(home, "A_KEY", value)
    assert read_env(home / ".env") == {"A_KEY": value}


@pytest.mark.parametrize(("name", "value"), [("A_KEY", "a\nB=c"), ("A-KEY", "x"), ("A KEY", "x"), ("A_KEY", "a\x0bb")])
def test_secret_that_cannot_be_kept_is_refused(home: Path, name: str, value: str) -> None:
    with pytest.raises(BadInput, match="cannot be stored in"):
        set_value(home, name, value)
    assert not home.exists()


def test_secrets_that_others_can_read_are_closed_before_one_is_added(home: Path) -> None:
    home.mkdir()
    (home / ".env").write_text("A=1\n")
    (home / ".env").chmod(0o644)
    set_value(home, "B_API_KEY", "x")
    assert (home / ".env").read_text() == "A=1\nB_API_KEY=x\n"
    assert (home / ".env").stat().st_mode & 0o777 == 0o600


def test_secrets_that_cannot_be_read_are_not_replaced(home: Path) -> None:
    (home / ".env").mkdir(parents=True)
    with pytest.raises(BadConfig, match=r"Cannot read .*\.env: Is a directory"):
        set_value(home, "B_API_KEY", "x")


WRONG = """\
# mine
streaming: false
lossless: {threshold: 3}  # of a plugin
model:
  default: demo
  max_tokens: many
"""


def test_a_setting_is_changed_whatever_else_is_wrong(home: Path) -> None:
    home.mkdir()
    (home / "config.yaml").write_text(WRONG)
    (home / ".env").write_text("nonsense\n")
    (home / ".env").chmod(0o644)
    set_value(home, "agent.max_turns", "3")
    set_value(home, "model.max_tokens", "100")
    changed = WRONG.replace("many", "100") + "agent:\n  max_turns: 3\n"
    assert (home / "config.yaml").read_text() == changed


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("streaming", "true", "no setting 'streaming'"),
        ("model.max_tokens", "few", "model.max_tokens is wrong"),
        ("agent.max_turns", "0", "agent.max_turns is wrong"),
        ("model", "{default: demo, wire: none}", "model.wire is wrong"),
    ],
)
def test_what_would_not_load_is_refused_also_beside_what_does_not(home: Path, key: str, value: str, says: str) -> None:
    home.mkdir()
    (home / "config.yaml").write_text(WRONG)
    with pytest.raises(BadConfig, match=says):
        set_value(home, key, value)
    assert (home / "config.yaml").read_text() == WRONG
