from pathlib import Path

import pytest

from talaria.config.load import load
from talaria.core.errors import BadConfig

FULL = "web: {allow_private: [nas.lan, 10.0.0.0/8], search_backend: searxng, max_bytes: 1000, timeout_s: 5}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def test_every_setting_of_the_web_is_read(file: Path) -> None:
    file.write_text(FULL)
    web = load(file, {}).web
    assert (web.allow_private, web.search_backend) == (("nas.lan", "10.0.0.0/8"), "searxng")
    assert (web.max_bytes, web.timeout_s) == (1_000, 5.0)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("search_backend: bing", "web.search_backend is wrong: Invalid enum value 'bing'."),
        ("max_bytes: 0", "web.max_bytes is wrong: Expected `int` >= 1."),
        ("max_bytes: 999999999", "web.max_bytes is wrong: Expected `int` <= 33554432."),
        ("timeout_s: 0", "web.timeout_s is wrong: Expected `float` > 0.0."),
        ("allow_private: nas.lan", "web.allow_private is wrong: Expected `array`, got `str`."),
        ("alow_private: []", "there is no setting 'web.alow_private'; did you mean 'allow_private'?"),
    ],
)
def test_wrong_setting_of_the_web_is_told(file: Path, setting: str, sentence: str) -> None:
    file.write_text(f"web: {{{setting}}}")
    with pytest.raises(BadConfig) as told:
        load(file, {})
    assert str(told.value) == f"{file}: {sentence}"
