"""Toolchains that the person has installed for themselves, found by their variables and usual places; commands see them
read-only.

A folder counts only if it looks like what it is named for, belongs to the person or root, cannot be changed by
everybody, and does not contain a place where programs keep credentials, even if there are none today. Commands may have
written a `pyvenv.cfg`, so what it leads to must be an installation of Python. It makes only stats and small reads,
because it runs before the first command of every session.
"""

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from talaria.core.trees import read_file
from talaria.tools.protected import Protected
from talaria.tools.sandbox.base import Bind

MAX_CFG_BYTES = 1 << 14
_VENVS = (".venv", "venv")
"""In a project."""


class _Kind(msgspec.Struct, frozen=True):
    variable: str
    usual: str = ""
    """Below the home, if the variable is not set."""
    mark: str = ""
    """A file or folder that shows that it is one."""
    shown: tuple[str, ...] = ("",)
    """Names below it; an empty name means all of it."""
    is_passed: bool = True


_KINDS = (
    _Kind("VIRTUAL_ENV", mark="pyvenv.cfg"),
    _Kind("CONDA_PREFIX", mark="conda-meta"),
    _Kind("PYENV_ROOT", ".pyenv", "versions", ("bin", "libexec", "plugins", "shims", "version", "versions")),
    _Kind("NVM_DIR", ".nvm", "versions", ("alias", "nvm.sh", "nvm-exec", "versions")),
    _Kind("FNM_DIR", ".local/share/fnm", "node-versions", ("aliases", "node-versions")),
    _Kind("VOLTA_HOME", ".volta", "tools", ("bin", "tools")),
    _Kind("PNPM_HOME", ".local/share/pnpm", "", (".tools", "bin", "global", "pnpm", "pnpx"), is_passed=False),
    _Kind("RUSTUP_HOME", ".rustup", "toolchains", ("settings.toml", "toolchains")),
    _Kind("CARGO_HOME", ".cargo", "bin", ("bin",), is_passed=False),
    _Kind("GOROOT", mark="bin/go"),
    _Kind("GOPATH", "go", "bin", ("bin",), is_passed=False),
    _Kind("JAVA_HOME", mark="bin/java"),
    _Kind("SDKMAN_DIR", ".sdkman", "candidates", ("candidates",)),
)
"""Where credentials may be next to the programs (~/.cargo, ~/.sdkman/etc), only the programs are shown."""
VARIABLES = frozenset(kind.variable for kind in _KINDS)


class Toolchains(msgspec.Struct, frozen=True, kw_only=True):
    reads: tuple[Path, ...] = ()
    """Resolved; only what is not shown anyway."""
    binds: tuple[Bind, ...] = ()
    """The same under the name that a virtual environment uses, if that is a link."""
    variables: Mapping[str, str] = {}
    path: str = ""
    """PATH in the person's order; a link that is not shown is replaced by its target."""


def find_toolchains(
    environment: Mapping[str, str], person: Path, shown: Sequence[Path], protected: Protected
) -> Toolchains:
    """`shown`: what commands see anyway, the project first."""
    project, *_ = shown
    seen = [str(path) for path in shown]
    reads: list[Path] = []
    binds: list[Bind] = []
    variables: dict[str, str] = {}

    def is_seen(path: Path) -> bool:
        return any(_is_below(str(path), place) for place in seen)

    def show(path: Path) -> bool:
        """Whether commands will see it."""
        if is_seen(path):
            return True
        if not _is_fit(path, person, protected):
            return False
        reads.append(path)
        seen.append(str(path))
        return True

    for kind in _KINDS:
        given = environment.get(kind.variable, "").split(os.pathsep)[0]
        named = Path(given) if given else person / kind.usual
        # in its usual place a link does not count: commands of a session in the home itself could have made it
        is_named = named.is_absolute() if given else bool(kind.usual) and named.resolve() == named
        if not is_named or (kind.mark and not _exists(named / kind.mark)):
            continue
        folder = named.resolve()
        if kind.shown != ("",) and (len(folder.parts) < 2 or protected.is_secret(folder)):
            continue
        inner = [folder / name if name else folder for name in kind.shown]
        is_shown = [show(path.resolve()) for path in inner if _exists(path)]
        if kind.is_passed and any(is_shown):
            variables[kind.variable] = str(folder)
    try:
        names = sorted(os.listdir(person / "sdk"))  # noqa: PTH208
    except OSError:
        names = []
    for name in names:  # `go install golang.org/dl/go1.22` puts versions there
        version = person / "sdk" / name
        if name.startswith("go") and _exists(version / "bin/go") and version.resolve() == version:
            show(version)
    for venv in (*filter(None, [variables.get("VIRTUAL_ENV")]), *(project / name for name in _VENVS)):
        found = _base_prefix(Path(venv))
        if found is None or is_seen(found[0]):
            continue
        prefix, real = found
        if show(real) and real in reads and real != prefix:  # never in what commands can write: they could move it
            binds.append(Bind(real, prefix))
    entries = environment.get("PATH", os.defpath).split(os.pathsep)
    real = {entry: Path(entry).resolve() for entry in entries if Path(entry).is_absolute() and not is_seen(Path(entry))}
    path = (str(real[entry]) if entry in real and is_seen(real[entry]) else entry for entry in entries)
    return Toolchains(reads=tuple(reads), binds=tuple(binds), variables=variables, path=os.pathsep.join(path))


def _exists(path: Path) -> bool:
    return os.access(path, os.R_OK)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _is_fit(path: Path, person: Path, protected: Protected) -> bool:
    """Whether a resolved path may be shown."""
    if _is_below(str(person), str(path)) or protected.is_secret(path) or protected.is_around_secrets(path):
        return False
    try:
        found = path.stat()
    except OSError:
        return False
    is_plain = stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)
    return is_plain and found.st_uid in (0, os.geteuid()) and not found.st_mode & stat.S_IWOTH


def _base_prefix(venv: Path) -> tuple[Path, Path] | None:
    """The prefix of the Python that a virtual environment was made with: as named there, and resolved."""
    try:
        text = read_file(venv / "pyvenv.cfg", MAX_CFG_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    pairs = (line.partition("=") for line in text.splitlines())
    home = Path(next((value.strip() for key, _, value in pairs if key.strip().lower() == "home"), ""))
    prefix = home.parent
    is_odd = ".." in home.parts or home.parts[1:2] in (("proc",), ("sys",), ("dev",), ("run",))
    if not home.is_absolute() or is_odd or home.name != "bin":
        return None
    try:
        real = prefix.resolve()  # what is checked is what is shown, wherever a link leads later
        has_library = any(_exists(library / "os.py") for library in real.glob("lib/python3.*"))
    except (OSError, RuntimeError):  # it is being changed, or links form a loop
        return None
    return (prefix, real) if has_library and _exists(real / "bin/python3") else None
