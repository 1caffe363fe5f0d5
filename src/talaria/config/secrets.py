"""`.env` in the home, which only its owner may read, overridden by the process environment; and which values there and
in the settings are secret."""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

import msgspec

from talaria.core.errors import BadConfig
from talaria.core.redaction import is_secret
from talaria.core.secret import Secret, says_secret, words_of

_QUOTED = re.compile(r"""(['"])(.*?)\1\s*(?:#.*)?""")

_SCHEME = re.compile(r"(?:basic|bearer|bot|token)\s+", re.IGNORECASE)
_ADDRESS = re.compile(r"://([^\s/?#:@]*)(?::([^\s/?#@]*))?@")
_PATH = re.compile(r"(?:~\w*|\.\.?)/|/(?:[a-z\d._-]+|Applications|Library|System|Users|Volumes)(?:/|$)|[A-Za-z]:\\")
"""Recognized by its first folder: some keys begin with a slash."""
_BORDERS = re.compile(r"\\n|[\s,;\"']+")
_RANDOM = re.compile(r"(?=.*\d)(?=.*[a-z])(?=.*[A-Z])\S{20,}|[0-9a-f]{32,}|[0-9A-F]{32,}")
_AMOUNT = re.compile(r"[\d.,_]{1,12}")


def environment(file: Path, process: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """The variables in `.env`, overridden by those the process was started with."""
    return {**read_env(file), **(os.environ if process is None else process)}


def is_safe_mode(environment: Mapping[str, str]) -> bool:
    """Then no plugin is loaded, and mistakes in the settings do not stop the terminal."""
    return any(environment.get(name, "") not in ("", "0") for name in ("TALARIA_SAFE_MODE", "HERMES_SAFE_MODE"))


def read_env(file: Path) -> dict[str, str]:
    try:
        mode = file.stat().st_mode
        if not stat.S_ISDIR(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise BadConfig(f"{file} can be read by other users; `chmod 600 {file}` makes it private.")
        text = file.read_text("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "it is not UTF-8 text"
        raise BadConfig(f"Cannot read {file}: {reason}.") from fault
    return dict(
        parse_line(line, number, file) for number, line in enumerate(text.splitlines(), 1) if says_something(line)
    )


def says_something(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def parse_line(line: str, number: int, file: Path) -> tuple[str, str]:
    name, equals, value = line.strip().removeprefix("export ").partition("=")
    if not equals or not name.strip().isidentifier():
        raise BadConfig(f"{file}, line {number}: expected NAME=value.")
    return name.strip(), strip_quotes(value.strip())


def strip_quotes(value: str) -> str:
    """The value after NAME=, without quotes and without a trailing comment."""
    quoted = _QUOTED.fullmatch(value)
    return quoted[2] if quoted else re.split(r"(?:^|\s)#", value, maxsplit=1)[0].rstrip()


def find_secrets(environment: Mapping[str, str], settings: object) -> frozenset[str]:
    """Values that nobody may be shown: recognized by name, by type in the settings, or by place in an address."""
    named = (*environment.items(), *_texts(settings))
    return frozenset(secret for name, value in named for secret in _secrets_in(name, value) if is_secret(secret))


def _texts(value: object, name: str = "") -> Iterator[tuple[str, str | Secret]]:
    """Every text, with the innermost name it is under."""
    match value:
        case str() | Secret():
            yield name, value
        case msgspec.Struct():
            for field in value.__struct_fields__:
                yield from _texts(getattr(value, field), field)
        case dict():
            for key, item in cast("dict[Any, Any]", value).items():
                yield from _texts(item, str(key))
        case tuple() | list():
            for item in cast("tuple[Any, ...]", value):
                yield from _texts(item, name)
        case _:
            pass


def _secrets_in(name: str, value: str | Secret) -> Iterator[str]:
    text = value.reveal() if isinstance(value, Secret) else value
    for user, password in _ADDRESS.findall(text):
        if password and password != user:
            yield from {password, unquote(password)}
        elif _is_random(user):
            yield user
    words = words_of(name)
    if "PUBLIC" in words:
        return
    if says_secret(words[-1:]):
        yield from _whole_and_parts(text)
    elif isinstance(value, Secret) or says_secret(words):  # many of these are mere settings
        yield from filter(_is_random, _whole_and_parts(text))


def _whole_and_parts(text: str) -> Iterator[str]:
    """The text, each part of a list, and each line of a long key; nothing of an address, a path or an amount."""
    text = _SCHEME.sub("", text.strip(), count=1)
    if "://" not in text and not _PATH.match(text) and not _AMOUNT.fullmatch(text):
        yield text
        yield from filter(_is_random, _BORDERS.split(text))


def _is_random(text: str) -> bool:
    return "://" not in text and bool(_RANDOM.fullmatch(text))
