"""Secrets in what endpoints say."""

import pytest

from talaria.providers.provider_failures import redact_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Wrong key sk-secret-1.", "Wrong key •••."),
        ("sk-secret-1 and sk-secret-1", "••• and •••"),
        ("Wrong key sk-secr…", "Wrong key •••…"),
        ("Wrong key sk-secr…) and sk-secre… again", "Wrong key •••…) and •••… again"),
        ("Wrong key sk-…", "Wrong key sk-…"),
        ("All is well.", "All is well."),
    ],
)
def test_a_secret_is_hidden_whole_or_cut(text: str, shown: str) -> None:
    assert redact_secrets(text, ["sk-secret-1"]) == shown


def test_a_placeholder_is_no_secret() -> None:
    assert redact_secrets("none of the keys", ["none", "", "k"]) == "none of the keys"
