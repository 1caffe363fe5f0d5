"""`hermes_constants`: where things are kept."""

from pathlib import Path

from talaria.compat.hermes.aliases.hermes_cli_config import get_config_path as get_config_path  # noqa: PLC0414  (passed on)
from talaria.compat.hermes.aliases.hermes_cli_config import get_env_path as get_env_path  # noqa: PLC0414  (passed on)
from talaria.compat.hermes.aliases.hermes_cli_config import get_hermes_home


def get_skills_dir() -> Path:
    return get_hermes_home() / "skills"


def get_hermes_dir(new_subpath: str, old_name: str) -> Path:
    """The old folder as long as there is something in it."""
    old = get_hermes_home() / old_name
    is_used = old.is_dir() and any(old.iterdir())
    return old if is_used else get_hermes_home() / new_subpath


def display_hermes_home() -> str:
    """For people: with `~` for their own folder."""
    home = get_hermes_home()
    try:
        return str(Path("~") / home.relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return str(home)
