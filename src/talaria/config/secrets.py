"""Secrets: `.env` in the home, readable by its owner alone, and the process environment over it."""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from talaria.model.errors import BadConfig

_QUOTED = re.compile(r"""(['"])(.*?)\1\s*(?:#.*)?""")


def environment(file: Path) -> Mapping[str, str]:
    """What `.env` says, under what the process was started with."""
    return {**read_env(file), **os.environ}


def read_env(file: Path) -> dict[str, str]:
    try:
        mode = file.stat().st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise BadConfig(f"{file} can be read by other users; run: chmod 600 {file}")
        text = file.read_text("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "it is not UTF-8 text"
        raise BadConfig(f"Cannot read {file}: {reason}.") from fault
    return dict(_parse(line, number, file) for number, line in enumerate(text.splitlines(), 1) if _says_something(line))


def _says_something(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _parse(line: str, number: int, file: Path) -> tuple[str, str]:
    name, equals, value = line.strip().removeprefix("export ").partition("=")
    if not equals or not name.strip().isidentifier():
        raise BadConfig(f"{file}, line {number}: expected NAME=value.")
    return name.strip(), unquoted(value.strip())


def unquoted(value: str) -> str:
    """What stands behind NAME=, without quotes and without a comment after it."""
    quoted = _QUOTED.fullmatch(value)
    return quoted[2] if quoted else re.split(r"(?:^|\s)#", value, maxsplit=1)[0].rstrip()
