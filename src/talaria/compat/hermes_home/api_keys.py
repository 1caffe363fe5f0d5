"""Keys in Hermes' .env. They are taken only on request; their values are never shown."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from talaria.compat.hermes_home.report import ImportStep, left, taken, there
from talaria.config.edit import set_value
from talaria.config.secrets import unquoted
from talaria.files import read_text
from talaria.providers.catalog import catalog

MAX_FILE_BYTES = 1 << 20
ON_REQUEST = "a secret: `talaria import hermes --keys` takes it"
_SECRET = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD)(?:_\d+)?$")


def read_keys(file: Path) -> dict[str, str]:
    """What the file sets; lines that set nothing are passed over, and who else may read it is not our affair."""
    pairs = (
        line.strip().removeprefix("export ").partition("=")
        for line in (read_text(file, MAX_FILE_BYTES) or "").splitlines()
    )
    found = {name.strip(): unquoted(value.strip()) for name, equals, value in pairs if equals}
    return {name: value for name, value in found.items() if name.isidentifier() and name.isupper() and value}


def is_key(name: str) -> bool:
    """Also another address of a provider: a key must not go to the usual one instead."""
    return bool(_SECRET.search(name)) or name in _known_names()


def _known_names() -> Iterable[str]:
    return {name for facts in catalog().values() for name in (*facts.keys, *facts.base_url_names)}


def wanted(found: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Keys that our .env does not have."""
    return {name: value for name, value in found.items() if is_key(name) and name not in own}


def key_steps(
    found: Mapping[str, str], own: Mapping[str, str], home: Path, *, on_request: bool
) -> Iterator[ImportStep]:
    """`own` is what our .env says."""
    for name, value in found.items():
        if not is_key(name):
            yield left("key", name, "no key, and Talaria has no such setting")
        elif own.get(name) == value:
            yield there("key", name)
        elif name in own:
            yield left("key", name, "Talaria's .env has another, which stays")
        elif on_request:
            yield taken("key", name, lambda name=name, value=value: set_value(home, name, value))
        else:
            yield left("key", name, ON_REQUEST)
