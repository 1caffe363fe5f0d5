"""Where things are kept."""

import os
from pathlib import Path

from talaria.model.errors import BadConfig, BadInput


def home(profile: str | None = None) -> Path:
    """`TALARIA_HOME`, else `~/.talaria`; a profile is a home of its own inside it."""
    try:
        root = Path(os.environ.get("TALARIA_HOME") or "~/.talaria").expanduser()
    except RuntimeError as fault:
        raise BadConfig("There is no home folder here: set TALARIA_HOME to a folder of yours.") from fault
    if profile is None or profile == "default":
        return root
    if not profile.replace("-", "").replace("_", "").isalnum():
        raise BadInput(f"{profile!r} is not a profile name: use letters, digits, - and _.")
    return root / "profiles" / profile


def config_file(home: Path) -> Path:
    return home / "config.yaml"


def secrets_file(home: Path) -> Path:
    return home / ".env"


def consents_file(home: Path) -> Path:
    """What plugins the person has agreed to."""
    return home / "plugins.json"


def database_file(home: Path) -> Path:
    return home / "state.db"


def log_file(home: Path) -> Path:
    return home / "logs" / "talaria.log"
