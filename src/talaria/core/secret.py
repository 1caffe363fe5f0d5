"""A secret value that does not print itself."""

import hashlib
import re
from collections.abc import Sequence
from typing import Any

_WORDS = re.compile(
    "APIKEYS|AUTH|AUTHORIZATION|COOKIES?|CREDENTIALS?|CREDS?|KEYS?|PASS|PASSWORDS|PAT|PWD|SECRETS|SSHPASS|TOKENS"
    "|.*(?:ACCESSKEY|APIKEY|PASSPHRASE|PASSWD|PASSWORD|PRIVATEKEY|SECRET|SECRETKEY|TOKEN)"
)
"""Words that mean a secret, some also at the end of another word, as in PGPASSWORD."""


class Secret:
    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Call this only where the value is sent."""
        return self._value

    def fingerprint(self) -> str:
        """Distinguishes two secrets without revealing either."""
        return hashlib.sha256(self._value.encode()).hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.reveal() == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return "Secret(•••)" if self._value else "Secret()"


NO_SECRET = Secret("")


def decode_secret(type: type, value: Any) -> Any:
    """msgspec's hook for our own types."""
    if type is not Secret:
        raise NotImplementedError
    if not isinstance(value, str):
        raise TypeError("Expected `str`")
    return Secret(value)


def words_of(name: str) -> list[str]:
    """The words in the name of a variable or setting, in capitals: API, KEY for `api_key2`."""
    return [word for word in re.split(r"[^A-Z]+", name.upper()) if word]


def says_secret(words: Sequence[str]) -> bool:
    """Whether one of them is a word for secrets."""
    return any(map(_WORDS.fullmatch, words))
