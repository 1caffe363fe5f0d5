"""The home that plugins have inside ours. It looks like one of Hermes, and plugins may write there.

Its config.yaml is a copy of our settings, without secrets, together with what plugins have set; `.settings.yaml` beside
it says what was copied, so that the two can be told apart. Nothing that is written here is ever a setting of Talaria.

We write here through an open folder: no link that a plugin left is followed.
"""

import copy
import logging
import os
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import msgspec

from talaria.config import paths
from talaria.config.edit import with_secret
from talaria.config.lenient import decode_leniently
from talaria.config.load import expand, parse_yaml, read_yaml
from talaria.config.secrets import find_secrets, parse_line, says_something
from talaria.core.errors import BadConfig, BadInput
from talaria.core.secret import Secret
from talaria.core.trees import open_in, replace_in

Document = Mapping[str, Any]
Change = tuple[tuple[str, ...], Any]
"""The path to a setting, and its value."""

CONFIG, SECRETS, COPIED, BROKEN = "config.yaml", ".env", ".settings.yaml", "config.yaml.broken"
PLUGINS = "plugins"
MAX_BYTES = 4 << 20
_HEAD = """\
# What plugins see of your settings, and what they have set themselves. Talaria does not read it:
# your own settings are in ../config.yaml, and come here from there.
"""
_NO_SECRETS_YET = "# Secrets of plugins. Yours are in ../.env, which has priority.\n"
_REFERENCE = re.compile(r"\$\{\w+\}")
_OWN = "TALARIA_"
_SECRET = "\0"  # noqa: S105  (marks the place of one)

log = logging.getLogger(__name__)


class PluginHome:
    def __init__(self, home: Path) -> None:
        """`home` is ours."""
        self._home = home
        self.path = paths.plugin_home(home)

    def prepare(self, environment: Mapping[str, str]) -> None:
        """Makes what plugins may open without asking us. Raises `OSError`."""
        with self._open_folder(is_making=True) as folder:
            try:
                descriptor = open_in(folder, SECRETS)
            except FileNotFoundError:
                replace_in(folder, SECRETS, _NO_SECRETS_YET.encode(), mode=0o600)
            else:  # nobody else may read them, whatever a plugin made of the file
                try:
                    os.fchmod(descriptor, 0o600)
                finally:
                    os.close(descriptor)
            self._write(folder, environment, ())
            with suppress(OSError):  # some plugins look there for their own files
                os.symlink(f"../{PLUGINS}", PLUGINS, dir_fd=folder)

    def settings(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """Ours, with what plugins have set; `${NAME}` is filled in if it is set."""
        names, file = _Lenient(environment), paths.config_file(self._home)
        ours = expand(self._ours(), names, file)
        try:
            return expand(merge(ours, self.own_settings(environment)), names, file)
        except RecursionError:  # a plugin wrote an anchor inside itself
            log.warning("the settings of plugins in %s are nested too deeply", self.path)
            return ours

    def own_settings(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """What plugins have set."""
        ours, file = self._ours(), paths.config_file(self._home)
        try:
            with self._open_folder() as folder:
                theirs, copied = _document(folder, CONFIG), _document(folder, COPIED)
            return _own(theirs, copied, _strip_secrets(ours, file), expand(ours, _Lenient(environment), file))
        except FileNotFoundError:
            return {}
        except OSError as fault:
            log.warning("the settings of plugins in %s cannot be read: %s", self.path, fault)
            return {}

    def change(self, changes: Sequence[Change], environment: Mapping[str, str]) -> None:
        """All of them or none. Raises `BadInput`, `OSError`."""
        with self._open_folder(is_making=True) as folder:
            self._write(folder, environment, changes)

    def take_over(self, sections: Document, environment: Mapping[str, str]) -> None:
        """These are in our config.yaml, and are about to be removed there. Raises `BadInput`, `OSError`."""
        with self._open_folder(is_making=True) as folder:
            self._write(folder, environment, [((key,), value) for key, value in sections.items()], is_taking_over=True)

    def secrets(self) -> dict[str, str]:
        """What plugins keep in their .env; unreadable lines are skipped."""
        try:
            with self._open_folder() as folder:
                lines = _text(folder, SECRETS).splitlines()
        except OSError:
            return {}
        found: dict[str, str] = {}
        for number, line in enumerate(lines, 1):
            try:
                found.update([parse_line(line, number, self.path / SECRETS)] if says_something(line) else [])
            except BadConfig:
                continue
        return {name: value for name, value in found.items() if not name.startswith(_OWN)}

    def save_secret(self, name: str, value: str) -> None:
        """Raises `BadInput`, `OSError`."""
        with self._open_folder(is_making=True) as folder:
            text = with_secret(_text(folder, SECRETS), name, value, self.path / SECRETS)
            replace_in(folder, SECRETS, text.encode(), mode=0o600)

    def _ours(self) -> dict[str, Any]:
        file = paths.config_file(self._home)
        try:
            document = read_yaml(file)
            expand(document, _Lenient({}), file)
        except (BadConfig, RecursionError):  # the code that needs it reports it
            return {}
        return document

    def _write(
        self, folder: int, environment: Mapping[str, str], changes: Sequence[Change], *, is_taking_over: bool = False
    ) -> None:
        """First the file, then what was copied: after a crash between the two, our settings have priority."""
        leaving = {path[0] for path, _ in changes} if is_taking_over else set[str]()
        ours = {key: value for key, value in self._ours().items() if key not in leaving}
        file = paths.config_file(self._home)
        shown, filled = _strip_secrets(ours, file), expand(ours, _Lenient(environment), file)
        own = _own(_document(folder, CONFIG), _document(folder, COPIED), shown, filled)
        document = copy.deepcopy(merge(shown, own))
        for path, value in changes:
            inner = document
            for name in path[:-1]:
                if not isinstance(inner.get(name), dict):
                    inner[name] = {}
                inner = inner[name]
            inner[path[-1]] = value
        _replace(folder, CONFIG, _HEAD + _format_yaml(document))
        _replace(folder, COPIED, _format_yaml(shown))

    @contextmanager
    def _open_folder(self, *, is_making: bool = False) -> Generator[int]:
        """Raises `OSError`, also if it is a link."""
        if is_making:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError):
                self.path.mkdir(mode=0o700)
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            yield folder
        finally:
            os.close(folder)


def changes(before: Document, after: Document) -> list[Change]:
    """The innermost ones; what `after` lacks stays."""
    found: list[Change] = []
    for key, value in after.items():
        old = before.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            inner = changes(cast("Document", old), cast("Document", value))
            found += [((key, *path), leaf) for path, leaf in inner]
        elif value != old:
            found.append(((key,), value))
    return found


def merge(under: Any, over: Any) -> Any:
    if not isinstance(under, Mapping) or not isinstance(over, Mapping):
        return over
    old, new = cast("Document", under), cast("Document", over)
    return {**old, **{key: merge(old[key], value) if key in old else value for key, value in new.items()}}


def _own(theirs: Document, copied: Document, ours: Document, filled: Document) -> dict[str, Any]:
    """What plugins have set in their file: everything that is not a copy of ours. If ours has changed since, it has
    priority."""
    found: dict[str, Any] = {}
    for key, value in theirs.items():
        sides = [side.get(key) for side in (copied, ours, filled)]
        if isinstance(value, Mapping) and any(isinstance(side, Mapping) for side in sides[:2]):
            inner = [cast("Document", side if isinstance(side, Mapping) else {}) for side in sides]
            if own := _own(cast("Document", value), *inner):
                found[key] = own
        elif value not in sides and sides[0] == sides[1]:
            found[key] = value
    return found


def _strip_secrets(ours: Document, file: Path) -> dict[str, Any]:
    """A reference to a secret (`${NAME}`) is not one, and stays."""

    def mask(value: object) -> object:
        if isinstance(value, Secret):
            return _SECRET if value else ""
        raise NotImplementedError

    config, _ = decode_leniently(ours, _Lenient({}), file)
    return _without(ours, msgspec.to_builtins(config, enc_hook=mask), find_secrets({}, dict(ours)))


def _without(value: Document, typed: Any, secrets: frozenset[str]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, item in value.items():
        inner = cast("Document", typed).get(key) if isinstance(typed, Mapping) else None
        if isinstance(item, Mapping):
            kept[key] = _without(cast("Document", item), inner, secrets)
        elif isinstance(item, list):
            kept[key] = [one for one in cast("list[Any]", item) if not _holds(one, secrets)]
        elif _is_reference(item) or (inner != _SECRET and not _holds(item, secrets)):
            kept[key] = item
    return kept


def _holds(value: object, secrets: frozenset[str]) -> bool:
    return any(secret in str(value) for secret in secrets if not _is_reference(secret))


def _is_reference(value: object) -> bool:
    return isinstance(value, str) and _REFERENCE.fullmatch(value) is not None


def _document(folder: int, name: str) -> dict[str, Any]:
    """Empty if the file is not valid YAML; it is then kept under another name."""
    text = _text(folder, name)
    try:
        return parse_yaml(text, Path(name))
    except BadConfig as fault:
        log.warning("%s of plugins is kept as %s: %s", name, BROKEN, fault)
        os.replace(name, BROKEN, src_dir_fd=folder, dst_dir_fd=folder)
        return {}


def _text(folder: int, name: str) -> str:
    try:
        descriptor = open_in(folder, name)
    except FileNotFoundError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        return file.read(MAX_BYTES).decode("utf-8-sig", "replace")


def _replace(folder: int, name: str, text: str) -> None:
    if _text(folder, name) != text:
        replace_in(folder, name, text.encode(), mode=0o600)


def _format_yaml(document: Document) -> str:
    import yaml  # noqa: PLC0415  (only those who write pay for it)

    try:
        return yaml.safe_dump(dict(document), allow_unicode=True, sort_keys=False) if document else ""
    except yaml.YAMLError as fault:
        raise BadInput(f"These settings cannot be saved: {' '.join(str(fault).split())}.") from fault


class _Lenient(dict[str, str]):
    """Leaves a name that is not set as it is."""

    def __missing__(self, name: str) -> str:
        return f"${{{name}}}"
