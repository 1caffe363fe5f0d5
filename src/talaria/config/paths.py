"""Where things are kept."""

import os
from pathlib import Path

from talaria.model.errors import BadInput


def home(profile: str | None = None) -> Path:
    """`TALARIA_HOME`, else `~/.talaria`; a profile is a home of its own inside it."""
    root = Path(os.environ.get("TALARIA_HOME") or Path.home() / ".talaria").expanduser()
    if profile is None or profile == "default":
        return root
    if not profile.replace("-", "").replace("_", "").isalnum():
        raise BadInput(f"{profile!r} is not a profile name: use letters, digits, - and _.")
    return root / "profiles" / profile


def config_file(home: Path) -> Path:
    return home / "config.yaml"


def secrets_file(home: Path) -> Path:
    return home / ".env"


def log_file(home: Path) -> Path:
    return home / "logs" / "talaria.log"
