"""Only what is plainly a commit or a tag is signed."""

import pytest

from talaria.tools.broker.commit_signing import is_signable

WHO = "Ada <ada@example.org> 1700000000 +0000"
COMMIT = f"tree {'1' * 40}\nparent {'2' * 40}\nauthor {WHO}\ncommitter {WHO}\n"
TAG = f"object {'1' * 40}\ntype commit\ntag v1\ntagger {WHO}\n\nRelease\n"


@pytest.mark.parametrize("text", [f"{COMMIT}\nSell more\n", f"{COMMIT}mergetag object 1\n type commit\n\nx", TAG])
def test_commits_and_tags_are_signed(text: str) -> None:
    assert is_signable(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        COMMIT.encode(),
        f"{COMMIT}encoding UTF-7\n\n+ADw-".encode(),
        f"{COMMIT}\n".encode() + b"\xff",
        f"{COMMIT}\nshown\0hidden".encode(),
        f"certificate version 0.1\npusher {WHO}\n\n".encode(),
        f"\n{COMMIT}\n".encode(),
        f"{COMMIT}\n{'x' * (256 << 10)}".encode(),
    ],
)
def test_nothing_else_is(text: bytes) -> None:
    assert not is_signable(text)
