"""The tool host where Talaria is not installed: its program arrives on standard input, and is never stored on a disk.

`launching.py` sends this file first. It runs on any Python 3, and says if that one is too old.
"""

import json
import os
import sys
from importlib.machinery import ModuleSpec
from shutil import which
from types import ModuleType
from typing import Any, Dict, NoReturn, Optional  # noqa: UP035  (older ones have no other)

OLDEST = (3, 8)


class TextImporter:
    """Imports modules from their source text."""

    def __init__(self, sources: Dict[str, str]) -> None:  # noqa: UP006
        self._sources = sources

    def find_spec(self, name: str, path: object = None, target: object = None) -> Optional[ModuleSpec]:  # noqa: ARG002, UP045
        if name not in self._sources:
            return None
        return ModuleSpec(name, self, is_package=not self._sources[name])  # pyright: ignore[reportArgumentType]

    def create_module(self, spec: ModuleSpec) -> None:  # noqa: ARG002
        return None

    def exec_module(self, module: ModuleType) -> None:
        import __future__  # noqa: PLC0415  (a Python that is too old does not have it)

        unevaluated = __future__.annotations.compiler_flag
        exec(compile(self._sources[module.__name__], module.__name__, "exec", unevaluated), module.__dict__)  # noqa: S102


def arrive(sources: Dict[str, str], settings: Dict[str, Any]) -> None:  # noqa: UP006
    if sys.version_info[:2] < OLDEST:
        _refuse("its python3 is {}.{}, and the oldest that works is {}.{}".format(*sys.version_info[:2], *OLDEST))
    settings["shell"] = which("bash") or _refuse("there is no bash")
    settings["cwd"] = os.path.expanduser(settings["cwd"])
    try:
        os.chdir(settings["cwd"])  # commands name other folders relative to it
    except OSError as fault:
        _refuse("the folder {}: {}".format(settings["cwd"], fault.strerror))
    sys.meta_path.insert(0, TextImporter(sources))  # pyright: ignore[reportArgumentType]
    sys.argv[1:] = [json.dumps(settings)]
    from talaria.tools.sandbox.host.command_loop import main  # noqa: PLC0415  (it has just arrived)

    main()


def _refuse(reason: str) -> NoReturn:
    sys.exit(reason)
