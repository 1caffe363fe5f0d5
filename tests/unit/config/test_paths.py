from pathlib import Path

import pytest

from talaria.config import paths
from talaria.core.errors import BadConfig, BadInput


def test_home_is_a_folder_of_the_person(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TALARIA_HOME", raising=False)
    monkeypatch.setenv("HOME", "/somewhere")
    assert paths.home() == Path("/somewhere/.talaria")


@pytest.mark.parametrize(
    ("value", "home"), [("/data/t", "/data/t"), ("~/t", "/somewhere/t"), ("", "/somewhere/.talaria")]
)
def test_variable_moves_the_home(monkeypatch: pytest.MonkeyPatch, value: str, home: str) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    monkeypatch.setenv("TALARIA_HOME", value)
    assert paths.home() == Path(home)


def test_home_of_nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALARIA_HOME", "~nobody-of-this-name/x")
    with pytest.raises(BadConfig, match="set TALARIA_HOME"):
        paths.home()


@pytest.mark.parametrize(
    ("profile", "below"), [(None, "."), ("default", "."), ("work", "profiles/work"), ("a-b_2", "profiles/a-b_2")]
)
def test_profile_is_a_home_inside_the_home(monkeypatch: pytest.MonkeyPatch, profile: str | None, below: str) -> None:
    monkeypatch.setenv("TALARIA_HOME", "/data")
    assert paths.home(profile) == Path("/data") / below


@pytest.mark.parametrize("profile", ["", "..", "../x", "a/b", "a b", ".", "-", "a\0", "a\n"])
def test_name_that_is_no_profile_is_refused(monkeypatch: pytest.MonkeyPatch, profile: str) -> None:
    monkeypatch.setenv("TALARIA_HOME", "/data")
    with pytest.raises(BadInput, match="is not a profile name: use letters, digits, - and _"):
        paths.home(profile)


def test_files_have_their_places() -> None:
    home = Path("/data")
    assert paths.config_file(home) == home / "config.yaml"
    assert paths.secrets_file(home) == home / ".env"
    assert paths.database_file(home) == home / "state.db"
    assert paths.log_file(home) == home / "logs/talaria.log"
