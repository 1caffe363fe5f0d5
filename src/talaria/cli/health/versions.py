"""What `talaria doctor` finds out about versions: ours, Python's, and installed packages that we cannot use."""

import re
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from operator import ge, lt

from talaria import __version__
from talaria.cli.health.finding import Finding
from talaria.platforms.loader import DISTRIBUTION

_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^\]]*\])?\s*\(?([^;)]*)")
_BOUND = re.compile(r"\s*(>=|<)\s*([\d.]+)\s*")
_MEANS: dict[str, Callable[[list[int], list[int]], bool]] = {">=": ge, "<": lt}


def examine() -> Iterator[Finding]:
    yield Finding("talaria", "ok", f"{__version__} on Python {sys.version.split()[0]}")
    for name, bounds in sorted(_bounds()):
        installed = _installed(name)
        if installed is not None and not _is_within(installed, bounds):
            remedy = f"pip install '{name}{bounds}'"
            yield Finding(f"package {name}", "warn", f"{installed} is installed, and {bounds} is needed", remedy)


def _bounds() -> set[tuple[str, str]]:
    """Of each package that we use, those of extras among them."""
    try:
        required = metadata.requires(DISTRIBUTION) or ()
    except metadata.PackageNotFoundError:  # not installed: it runs from its source
        return set()
    read = [match for one in required if (match := _REQUIREMENT.match(one))]
    return {(match[1], match[2].strip()) for match in read}


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _is_within(version: str, bounds: str) -> bool:
    has = _numbers(version)
    known = [match for bound in bounds.split(",") if (match := _BOUND.fullmatch(bound))]
    return all(_MEANS[match[1]](has, _numbers(match[2])) for match in known)


def _numbers(version: str) -> list[int]:
    """Of the release; what comes before or after it is not told apart."""
    match = re.match(r"[\d.]+", version)
    numbers = [int(number) for number in (match[0] if match else "0").split(".") if number]
    while len(numbers) > 1 and not numbers[-1]:
        numbers.pop()
    return numbers
