"""Settings for one project only. They are in Talaria's home, never in the project: whoever can change the project must
not decide what its commands may reach. Each takes precedence over the one in config.yaml: a list replaces the list
there."""

from collections.abc import Mapping
from pathlib import Path

from msgspec import structs

from talaria.config import paths
from talaria.config.load import decode, expand, read_yaml
from talaria.core.errors import BadConfig, BadInput
from talaria.core.fs import read_text, replace_file
from talaria.tools.sandbox.sandbox_settings import TerminalSettings, project_folder

NAMES = ("read", "write", "network", "ports", "env", "cache_gb", "scratch_mb", "max_processes")
"""Under `terminal`: what commands in a project may reach and use."""
KEYS = tuple(f"terminal.{name}" for name in NAMES)
_ROOT = "root"
"""The file that says which project a folder is for."""
_MAX_PATH_BYTES = 1 << 14


def project_file(home: Path, project: Path) -> Path:
    return paths.config_file(project_folder(home.resolve(), project.resolve()))


def check_key(key: str) -> None:
    """Raises `BadInput` if it cannot be set for one project."""
    if key not in KEYS:
        raise BadInput(f"{key} cannot be set for one project; these can: {', '.join(KEYS)}. Leave out --project.")


def read_project_settings(
    home: Path, environment: Mapping[str, str], terminal: TerminalSettings, project: Path
) -> TerminalSettings:
    """`terminal` with the project's own settings. Raises `BadConfig`."""
    file = project_file(home, project)
    document = read_yaml(file)
    if not document:
        return terminal
    found = decode(expand(document, environment, file), file)
    given: dict[str, object] = document.get("terminal") or {}
    for key in (*(name for name in document if name != "terminal"), *(f"terminal.{name}" for name in given)):
        if key not in KEYS:
            raise BadConfig(f"{file}: {key} cannot be set for one project; these can: {', '.join(KEYS)}.")
    return structs.replace(terminal, **{name: getattr(found.terminal, name) for name in given})


def note_project(home: Path, project: Path) -> None:
    """Records which project its folder in the home is for, so that a project that is gone can be named."""
    folder = project_folder(home.resolve(), project.resolve())
    replace_file(folder / _ROOT, f"{project.resolve()}\n".encode(), mode=0o600)


def find_gone_projects(home: Path) -> list[Path]:
    """Projects that have settings but no longer exist."""
    files = sorted((home / "projects").glob(f"*/{_ROOT}"))
    roots = (
        Path((read_text(file, _MAX_PATH_BYTES) or "").strip())
        for file in files
        if file.with_name("config.yaml").exists()
    )
    return [root for root in roots if root.is_absolute() and not root.is_dir()]
