"""`hermes_cli.config`: where things are kept, and the settings of Talaria as plain data.

The folder follows `HERMES_HOME`, where plugins keep what is theirs; settings and secrets are always Talaria's own, so
that nobody writes into the files of another program.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from talaria.compat.hermes.bound import last_bound
from talaria.config import paths
from talaria.config.edit import set_value
from talaria.config.load import decode, expand, read_yaml
from talaria.config.secrets import environment
from talaria.model.errors import BadInput
from talaria.plugins.services import found_in

cfg_get = found_in


def get_hermes_home() -> Path:
    """`HERMES_HOME` if the person has set it, else Talaria's own home."""
    chosen = os.environ.get("HERMES_HOME", "").strip()
    return Path(chosen).expanduser() if chosen else _own_home()


def get_config_path() -> Path:
    return paths.config_file(get_hermes_home())


def get_env_path() -> Path:
    return paths.secrets_file(get_hermes_home())


def load_config() -> dict[str, Any]:
    """With `${NAME}` filled in where that is set. Raises `BadConfig`."""
    file = paths.config_file(_own_home())
    return expand(read_yaml(file), _Lenient(_environment()), file)


def get_env_value(name: str) -> str | None:
    return _environment().get(name)


def save_env_value(name: str, value: str) -> None:
    """Into `.env`. Raises `BadInput`."""
    if not name.isupper():
        raise BadInput(f"{name!r} cannot be kept in .env: the names there are in capitals.")
    set_value(_own_home(), name, value)
    if name in os.environ:  # what the process has counts more, and would still be the old one
        os.environ[name] = value


def set_config_value(key: str, value: object) -> None:
    """Text is read as YAML: `"3"` is a number. Raises `BadConfig`, which says what settings there are."""
    set_value(_own_home(), key, value if isinstance(value, str) else _as_yaml(value))


def save_config(config: Mapping[str, Any], **_: object) -> None:
    """What differs from the file, all of it or nothing; what `config` lacks stays. Raises `BadConfig`, `BadInput`."""
    home, before = _own_home(), load_config()
    changes = [(_dotted(path), value) for path, value in _changes(before, config)]
    file = paths.config_file(home)
    decode(expand(_merged(before, config), _Lenient(_environment()), file), file)
    for key, value in changes:
        set_value(home, key, _as_yaml(value))


def _own_home() -> Path:
    here = last_bound()
    return here.home if here else paths.home()


def _environment() -> Mapping[str, str]:
    """As it is now: what was saved a moment ago counts."""
    here, saved = last_bound(), environment(paths.secrets_file(_own_home()))
    return {**here.environment, **saved} if here else saved


class _Lenient(dict[str, str]):
    """Leaves a name that is not set as it is."""

    def __missing__(self, name: str) -> str:
        return f"${{{name}}}"


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The innermost ones; a branch that is new as a whole, because its parts may be wrong alone."""
    for key, value in after.items():
        old = before.get(key)
        if isinstance(old, dict) and isinstance(value, Mapping):
            inner = _changes(cast("dict[str, Any]", old), cast("Mapping[str, Any]", value))
            yield from (((key, *path), leaf) for path, leaf in inner)
        elif value != old:
            yield (key,), value


def _merged(before: object, after: object) -> Any:
    if not isinstance(before, dict) or not isinstance(after, Mapping):
        return after
    old, new = cast("dict[str, Any]", before), cast("Mapping[str, Any]", after)
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}


def _dotted(path: tuple[str, ...]) -> str:
    if any("." in name for name in path):
        raise BadInput(
            f"A plugin cannot change {' → '.join(path)}, because of the dot in it: edit config.yaml instead."
        )
    return ".".join(path)


def _as_yaml(value: object) -> str:
    import yaml  # noqa: PLC0415  (only those who write pay for it)

    return yaml.safe_dump(value, allow_unicode=True)
