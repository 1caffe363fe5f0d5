"""`terminal.env`: which variables commands may get."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talaria.core.errors import ToolFailed
from talaria.tools.sandbox.sandbox_settings import TerminalSettings, refusal, select_variables

WORDS = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ", max_size=6)
SECRET_WORDS = st.sampled_from(
    ("TOKEN", "KEY", "API_KEY", "SECRET", "PASSWORD", "PASSWD", "CREDENTIALS", "PAT", "AUTH", "COOKIE", "PASSPHRASE")
)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "PIP_INDEX_URL",
            "DJANGO_SETTINGS_MODULE",
            "NODE_ENV",
            "RUST_LOG",
            "CI",
            "PYTHONPATH",
            "GOPROXY",
            "GOPRIVATE",
        ),
        *("TOKENIZERS_PARALLELISM", "UV_INDEX_URL", "DEBUG", "npm_config_registry", "KEYBOARD", "JAVA_HOME"),
    ],
)
def test_usual_variables_are_passed(name: str) -> None:
    assert refusal(name) is None


@pytest.mark.parametrize(
    "name",
    [
        *(
            "GH_TOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_PROFILE",
            "OPENAI_API_KEY",
            "PGPASSWORD",
            "MY_PAT",
            "SSH_AUTH_SOCK",
        ),
        *("LD_PRELOAD", "LD_LIBRARY_PATH", "DYLD_INSERT_LIBRARIES", "BASH_ENV", "ENV", "PYTHONSTARTUP", "PYTHONHOME"),
        *("NODE_OPTIONS", "GIT_SSH_COMMAND", "GIT_CONFIG_COUNT", "HTTPS_PROXY", "http_proxy", "PATH", "HOME", "IFS"),
        *("PS4", "PROMPT_COMMAND", "BASH_FUNC_x%%", "A=B", "", "A B", "1A", "NAMEN*", "TALARIA_HOME", "ld_preload"),
    ],
)
def test_secrets_and_what_controls_programs_are_refused_with_one_sentence(name: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"terminal\.env lists .* take it off the list"):
        msgspec.convert({"env": ["CI", name]}, TerminalSettings)


@given(before=WORDS, word=SECRET_WORDS, after=WORDS, is_lower=st.booleans())
def test_a_word_for_secrets_anywhere_in_a_name_is_refused(
    before: str, word: str, after: str, *, is_lower: bool
) -> None:
    name = "_".join(filter(None, (before, word, after)))
    assert refusal(name.lower() if is_lower else name) is not None


@given(st.text(max_size=20))
def test_what_is_passed_is_always_the_name_of_one_variable(name: str) -> None:
    assert refusal(name) is not None or (name.isascii() and name.isidentifier())


def test_only_variables_that_are_set_are_passed() -> None:
    assert select_variables(("CI", "DEBUG"), {"CI": "1", "OTHER": "2"}) == {"CI": "1"}


@pytest.mark.parametrize(
    "value",
    ["https://me:hush@pypi.acme.com/simple", "a postgres://me:hush@db/x", "https://t0ken@host", "direct,https://a:b@c"],
)
def test_a_value_with_a_login_is_refused_and_not_repeated(value: str) -> None:
    with pytest.raises(ToolFailed, match=r"terminal\.env lists PIP_INDEX_URL.*Remove the login") as told:
        select_variables(("PIP_INDEX_URL",), {"PIP_INDEX_URL": value})
    assert "hush" not in str(told.value)


@pytest.mark.parametrize("value", ["https://pypi.acme.com/simple", "me@acme.com", "http://host/a@b", "https://h?x=a@b"])
def test_other_values_are_not_taken_for_logins(value: str) -> None:
    assert select_variables(("PIP_INDEX_URL",), {"PIP_INDEX_URL": value})
