"""Sending a tool host to where nothing of ours is: into a container, to another machine."""

from collections.abc import Mapping
from typing import Any

from talaria.tools.sandbox.base import SandboxPolicy
from talaria.tools.sandbox.launching import PACKAGE, PROGRAM, settings_for
from talaria.tools.sandbox.toolchains import VARIABLES

ARRIVAL = "import sys; sent = sys.stdin.buffer; exec(sent.read(int(sent.readline())))"
"""For `python3 -c`. Nothing else is sent until the tool host speaks, so it reads no more than this."""
FOLDER = "/tmp/.talaria-"  # noqa: S108  (over there)

_OF_THIS_MACHINE = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL"}) | VARIABLES
_NOT_SENT = frozenset({"__init__", "arrival", "program"})


def program(view: SandboxPolicy, folder: str, **more: Any) -> bytes:
    """The tool host and its settings, as what stands behind `ARRIVAL` reads them."""
    settings = settings_for(view, folder, **more)
    arrival = (PROGRAM / "arrival.py").read_text("utf-8")
    code = f"{arrival}\n\narrive({_sources()!r}, {settings!r})\n".encode()
    return b"%d\n%s" % (len(code), code)


def environment(view: SandboxPolicy) -> dict[str, str]:
    """What commands take along: the language, the time zone, who the person is for git."""
    return {name: value for name, value in view.environment.items() if name not in _OF_THIS_MACHINE}


def _sources() -> Mapping[str, str]:
    """Modules by their names; a package is empty."""
    names = PACKAGE.split("/")
    packages = {".".join(names[: end + 1]): "" for end in range(len(names))}
    files = (file for file in PROGRAM.glob("*.py") if file.stem not in _NOT_SENT)
    return {**packages, **{f"{'.'.join(names)}.{file.stem}": file.read_text("utf-8") for file in files}}
