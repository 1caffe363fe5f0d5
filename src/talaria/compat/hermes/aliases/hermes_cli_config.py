"""`hermes_cli.config`: where things are kept, and settings as plain data.

Plugins read Talaria's settings and secrets, and write their own: into the home that they have inside ours, whatever
`HERMES_HOME` says, so that they write neither into our files nor into those of another program.
"""

import os
import sys
from collections.abc import Mapping
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
    """Talaria's settings, with what plugins have set; `${NAME}` is filled in where that is set."""
    return _plugin_home().settings(_environment())


def get_env_value(name: str) -> str | None:
    return _environment().get(name)


def save_env_value(name: str, value: str) -> None:
    """Into the .env of plugins. Raises `BadInput`."""
    if not name.isupper():
        raise BadInput(f"{name!r} cannot be kept in .env: the names there are in capitals.")
    _plugin_home().save_secret(name, value)
    if name in {**_own_environment(), **os.environ}:  # which counts more, and would still be the old one
        os.environ[name] = value
    if name in _own_environment():
        file = paths.secrets_file(_own_home())
        sys.stderr.write(f"{name} is also set in {file} or in the environment: change it there, it counts more.\n")


def set_config_value(key: str, value: object) -> None:
    """Text is read as YAML: `"3"` is a number. Raises `BadInput`."""
    _plugin_home().change([(tuple(key.split(".")), _read(value) if isinstance(value, str) else value)], _environment())


def save_config(config: Mapping[str, Any], **_: object) -> None:
    """What differs from `load_config`, all of it or nothing; what `config` lacks stays. Raises `BadInput`."""
    _plugin_home().change(changes(load_config(), config), _environment())


def _own_home() -> Path:
    here = last_bound()
    return here.home if here else paths.home()


def _plugin_home() -> PluginHome:
    return PluginHome(_own_home())


def _own_environment() -> dict[str, str]:
    """Talaria's: what it was started with, and .env as it is now."""
    here = last_bound()
    saved, _ = read_env_leniently(paths.secrets_file(_own_home()))
    return {**(here.environment if here else os.environ), **saved}


def _environment() -> Mapping[str, str]:
    """Also what plugins have, and what they have saved a moment ago."""
    return {**_plugin_home().secrets(), **_own_environment(), **os.environ}


def _read(text: str) -> Any:
    import yaml  # noqa: PLC0415  (only those who write pay for it)

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return text
