"""`hermes_cli.config`, `hermes_constants`, `hermes_cli.setup`: where things are kept, settings as plain data, and how a
plugin's own set-up asks the person at the terminal.

Plugins read Talaria's settings and secrets, and write their own: into the home that they have inside ours, whatever
`HERMES_HOME` says, so that they write neither into our files nor into those of another program.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from getpass import getpass
from pathlib import Path
from typing import Any

from talaria.compat.hermes.bound import last_bound
from talaria.compat.hermes.plugin_home import PluginHome, changes
from talaria.config import paths
from talaria.config.lenient import read_env_leniently
from talaria.core.errors import BadInput
from talaria.plugins.services import look_up

cfg_get = look_up


def get_hermes_home() -> Path:
    """`HERMES_HOME` if the person has set it, else the home that plugins have inside Talaria's own."""
    chosen = os.environ.get("HERMES_HOME", "").strip()
    return Path(chosen).expanduser() if chosen else _plugin_home().path


def get_config_path() -> Path:
    return paths.config_file(get_hermes_home())


def get_env_path() -> Path:
    return paths.secrets_file(get_hermes_home())


def load_config() -> dict[str, Any]:
    """Talaria's settings, with what plugins have set; `${NAME}` is filled in if it is set."""
    return _plugin_home().settings(_environment())


def get_env_value(name: str) -> str | None:
    return _environment().get(name)


def save_env_value(name: str, value: str) -> None:
    """Into the .env of plugins. Raises `BadInput`."""
    if not name.isupper():
        raise BadInput(f"{name!r} cannot be kept in .env: names there are in capitals.")
    _plugin_home().save_secret(name, value)
    if name in {**_own_environment(), **os.environ}:  # this has priority, and would still be the old value
        os.environ[name] = value
    if name in _own_environment():
        file = paths.secrets_file(_own_home())
        sys.stderr.write(f"{name} is also set in {file} or in the environment, which has priority: change it there.\n")


def set_config_value(key: str, value: object) -> None:
    """Text is read as YAML: `"3"` is a number. Raises `BadInput`."""
    import yaml  # noqa: PLC0415  (only those who write pay for it)

    if isinstance(value, str):
        with suppress(yaml.YAMLError, ValueError):
            value = yaml.safe_load(value)
    _plugin_home().change([(tuple(key.split(".")), value)], _environment())


def save_config(config: Mapping[str, Any], **_: object) -> None:
    """Saves what differs from `load_config`, all or nothing; what `config` lacks stays. Raises `BadInput`."""
    _plugin_home().change(changes(load_config(), config), _environment())


def _own_home() -> Path:
    here = last_bound()
    return here.home if here else paths.home()


def _plugin_home() -> PluginHome:
    return PluginHome(_own_home())


def _own_environment() -> dict[str, str]:
    """Talaria's: the one it was started with, and .env as it is now."""
    here = last_bound()
    saved, _ = read_env_leniently(paths.secrets_file(_own_home()))
    return {**(here.environment if here else os.environ), **saved}


def _environment() -> Mapping[str, str]:
    """With what plugins have, and what they have just saved."""
    return {**_plugin_home().secrets(), **_own_environment(), **os.environ}


# Folders.


def get_skills_dir() -> Path:
    return get_hermes_home() / "skills"


def get_hermes_dir(new_subpath: str, old_name: str) -> Path:
    """The old folder if there is something in it."""
    old = get_hermes_home() / old_name
    is_used = old.is_dir() and any(old.iterdir())
    return old if is_used else get_hermes_home() / new_subpath


def display_hermes_home() -> str:
    """For people: with `~` for their home folder."""
    home = get_hermes_home()
    try:
        return str(Path("~") / home.relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return str(home)


# At the terminal.


def prompt(question: str, default: str | None = None, password: bool = False) -> str:
    """What is typed, or `default`. A secret is not shown."""
    shown = f"{question} [{default}]: " if default else f"{question}: "
    return (getpass(shown) if password else input(shown)).strip() or default or ""


def prompt_yes_no(question: str, default: bool = True) -> bool:
    while True:
        typed = input(f"{question} [{'Y/n' if default else 'y/N'}]: ").strip().lower()
        if not typed or typed in ("y", "yes", "n", "no"):
            return typed.startswith("y") if typed else default
        print_error("Type y or n.")


def prompt_choice(question: str, choices: Sequence[str], default: int = 0) -> int:
    """The index of one of them."""
    print_info(question)
    for number, choice in enumerate(choices, 1):
        print_info(f"  {number}. {choice}")
    while True:
        typed = input(f"[{default + 1}]: ").strip()
        if not typed:
            return default
        if typed.isdecimal() and 1 <= int(typed) <= len(choices):
            return int(typed) - 1
        print_error(f"Type a number from 1 to {len(choices)}.")


def print_info(text: str) -> None:
    print(text)  # noqa: T201  (to the person at the terminal)


def print_header(title: str) -> None:
    print_info(f"\n{title}")


def print_success(text: str) -> None:
    print_info(f"✓ {text}")


def print_warning(text: str) -> None:
    print_info(f"! {text}")


def print_error(text: str) -> None:
    print_info(f"✗ {text}")
