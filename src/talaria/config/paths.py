"""Where things are stored."""

import os
from pathlib import Path

from talaria.core.errors import BadConfig, BadInput


def home(profile: str | None = None) -> Path:
    """`TALARIA_HOME`, else `~/.talaria`; a profile is a home of its own inside it."""
    try:
        root = Path(os.environ.get("TALARIA_HOME") or "~/.talaria").expanduser()
    except RuntimeError as fault:
        raise BadConfig("You have no home folder here: set TALARIA_HOME to a folder of yours.") from fault
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
    """The plugins that the person has agreed to."""
    return home / "plugins.json"


def database_file(home: Path) -> Path:
    return home / "state.db"


def log_file(home: Path) -> Path:
    return home / "logs" / "talaria.log"


def plugin_home(home: Path) -> Path:
    """Where plugins keep their files: to them it is the home of Hermes."""
    return home / "hermes"


OWN_FOLDERS = frozenset(
    {
        *("cache", "checkpoints", "hermes", "logs", "memories", "platforms", "plugins", "profiles", "run", "skills"),
        *("spill", "todos", "quarantine", "mcp", "projects"),
    }
)
OWN_FILES = frozenset(
    {
        *("SOUL.md", "config.yaml", "history", "mcp-earlier.json", "mcp-trust.json", "plugins.json", "search.db"),
        *("state.db", "undo.db"),
    }
)
"""And .env."""


def is_own(name: str) -> bool:
    """Whether what has this name at the top of a home is Talaria's. So are hidden files, and those named after ours:
    `state.db-wal`, `config.yaml.bak`."""
    beside = tuple(f"{file}{mark}" for file in OWN_FILES if "." in file for mark in "-.~")
    return name in OWN_FOLDERS | OWN_FILES or name.startswith((".", *beside))
